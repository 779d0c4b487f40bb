"""Checks of selectors. Fewer tokens than min(budget, M) are allowed (blocks); more never are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ..protocols import Selector
from .findings import Finding, attempt, each, gather
from .steps import Observe, advance, make_step
from .trials import BUDGET, STEPS, Tried, conduct, one_dimension, right_device

TAKEN_BACK = (8, 60, 50)
"""Tokens cropped in turn: the last chunk, half of the document, nearly all that is left."""


def _int64(tried: Tried) -> str:
    return "" if tried.out.dtype == torch.int64 else f"is {tried.out.dtype}"


def _within_budget(tried: Tried) -> str:
    most, count = min(tried.budget, tried.step.middle), tried.out.shape[0]
    if count <= most:
        return ""
    return f"{count} tokens for budget {tried.budget} and M = {tried.step.middle}: {most} at most"


def _inside(tried: Tried) -> str:
    bad = tried.out[(tried.out < 0) | (tried.out >= tried.step.middle)]
    return f"offset {bad[0].item()} with M = {tried.step.middle}" if bad.numel() else ""


def _ascending(tried: Tried) -> str:
    down = torch.nonzero(tried.out[1:] < tried.out[:-1])[:, 0]
    if not down.numel():
        return ""
    at = int(down[0])
    before, after = tried.out[at : at + 2].tolist()
    return f"{after} follows {before} at place {at + 1}; {down.numel()} descents in all"


def _unique(tried: Tried) -> str:
    values, counts = tried.out.unique(return_counts=True)
    again = values[counts > 1]
    return f"{again.numel()} offsets come twice, such as {again[0]}" if again.numel() else ""


PICKED: dict[str, Callable[[Tried], str]] = {
    "int64": _int64,
    "on the queries' device": right_device,
    "within the budget": _within_budget,
    "inside M": _inside,
    "ascending": _ascending,
    "unique": _unique,
}


def _after_crop(selector: Selector, device: str, observe: Observe | None) -> str:
    step = make_step(device=device, observe=observe)
    selector.select(step, BUDGET)
    for tokens in TAKEN_BACK:
        step.store.crop(-tokens)
        step = advance(step, observe=observe)
        tried = Tried(step, step, BUDGET, selector.select(step, BUDGET))
        for name, complaint in {"a tensor of one dimension": one_dimension, **PICKED}.items():
            detail = complaint(tried)
            if detail:
                return f"{tokens} tokens taken back, M = {step.middle}: not {name}: {detail}"
    return ""


def check_selector(selector: Any, device: str) -> list[Finding]:
    """Every check of a selector, on random steps on `device`."""
    if not isinstance(selector, Selector):
        return [Finding("has select(step, budget)", False, "there is no such method")]
    observe: Observe | None = getattr(selector, "observe", None)

    def tried(budget: int, hook: Observe | None, options: dict[str, Any]) -> Tried:
        step = make_step(device=device, observe=hook, **options)
        twin = make_step(device=device, **options)
        return Tried(step, twin, budget, selector.select(step, budget))

    cases = {case: partial(tried, BUDGET, observe, options) for case, options in STEPS.items()}
    cases["budget 0"] = partial(tried, 0, observe, {})
    cases["budget 1"] = partial(tried, 1, observe, {})
    cases["nothing observed"] = partial(tried, BUDGET, None, {})
    findings, results = gather(cases)
    findings.append(each("a tensor of one dimension", results, one_dimension))
    flat = {case: result for case, result in results.items() if not one_dimension(result)}
    findings += [each(name, flat, complaint) for name, complaint in PICKED.items()]
    findings += conduct(results, device, observe, lambda step: selector.select(step, BUDGET))
    cropped = partial(_after_crop, selector, device, observe)
    return [*findings, attempt("works after the store is cropped", cropped)]

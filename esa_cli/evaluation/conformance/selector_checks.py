"""Checks of selectors. They may select fewer than min(budget, M) tokens (blocks), never more.

As in `attention`, a selector gets its own allowance, and observes the chunk after. It returns one
selection, or one for each query head; each head's is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.compression import Linear
from esa_cli.attention.parts import Score, Selector
from esa_cli.attention.step import Selection, Step
from esa_cli.evaluation.conformance.finding import Finding, attempt, each, gather, whole_number
from esa_cli.evaluation.conformance.purity_checks import (
    BUDGET,
    STEPS,
    TriedStep,
    conduct,
    one_dimension,
    right_device,
)
from esa_cli.evaluation.conformance.random_steps import Observe, advance, make_step, observed_step

TAKEN_BACK = (8, 60, 50)
"""Tokens cropped in turn: the last chunk, half of the document, nearly all that is left."""
SHAPE = "a tensor of one dimension, or a list with one for each query head"


def _within_budget(tried: TriedStep) -> str:
    most, count = min(tried.budget, tried.step.middle), tried.out.shape[0]
    if count <= most:
        return ""
    return f"{count} tokens for budget {tried.budget} and M = {tried.step.middle}: {most} at most"


def _inside(tried: TriedStep) -> str:
    bad = tried.out[(tried.out < 0) | (tried.out >= tried.step.middle)]
    return f"offset {bad[0].item()} with M = {tried.step.middle}" if bad.numel() else ""


def _ascending(tried: TriedStep) -> str:
    down = torch.nonzero(tried.out[1:] < tried.out[:-1])[:, 0]
    if not down.numel():
        return ""
    at = int(down[0])
    before, after = tried.out[at : at + 2].tolist()
    return f"{after} follows {before} at place {at + 1}; {down.numel()} descents in all"


def _unique(tried: TriedStep) -> str:
    values, counts = tried.out.unique(return_counts=True)
    again = values[counts > 1]
    return f"{again.numel()} offsets come twice, such as {again[0]}" if again.numel() else ""


PICKED: dict[str, Callable[[TriedStep], str]] = {
    "int64": lambda tried: "" if tried.out.dtype == torch.int64 else f"is {tried.out.dtype}",
    "on the queries' device": right_device,
    "within the budget": _within_budget,
    "inside M": _inside,
    "ascending": _ascending,
    "unique": _unique,
}


def _shape(tried: TriedStep) -> str:
    heads = tried.step.queries.shape[0]
    if isinstance(tried.out, list) and len(tried.out) != heads:
        return f"a list of {len(tried.out)} for {heads} query heads"
    return _of_each(one_dimension, tried)


def _of_each(complaint: Callable[[TriedStep], str], tried: TriedStep) -> str:
    """The complaint about the selection, or about the first head's that deserves it."""
    if not isinstance(tried.out, list):
        return complaint(tried)
    details = (complaint(replace(tried, out=row)) for row in tried.out)
    return next((f"head {h}: {detail}" for h, detail in enumerate(details) if detail), "")


CHECKS: dict[str, Callable[[TriedStep], str]] = {
    name: partial(_of_each, complaint) for name, complaint in PICKED.items()
}


def _select(selector: Selector, step: Step, budget: int = BUDGET) -> Selection:
    return selector.select(step, selector.allowance(step, budget))


def _tried(
    selector: Selector, device: str, budget: int, observe: Observe | None, options: dict[str, Any]
) -> TriedStep:
    step = make_step(device=device, observe=observe, **options)
    twin = make_step(device=device, **options)
    budget = selector.allowance(step, budget)
    out = selector.select(step, budget)
    if observe is not None:
        observe(observed_step(step))
    return TriedStep(step, twin, budget, out)


def _after_crop(selector: Selector, device: str, observe: Observe | None) -> str:
    step = make_step(device=device, observe=observe)
    _select(selector, step)
    for tokens in TAKEN_BACK:
        step = advance(step, back=tokens, observe=observe)
        budget = selector.allowance(step, BUDGET)
        tried = TriedStep(step, step, budget, selector.select(step, budget))
        for name, complaint in {SHAPE: _shape, **CHECKS}.items():
            detail = complaint(tried)
            if detail:
                return f"{tokens} tokens taken back, M = {step.middle}: not {name}: {detail}"
    return ""


def _allowance(selector: Selector, device: str) -> str:
    for layer in (0, 30):
        for budget in (0, BUDGET):
            value: Any = selector.allowance(make_step(device=device, layer=layer), budget)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                return f"{value!r} in layer {layer} for budget {budget}"
    return ""


def _members(selector: Selector, device: str) -> str:
    for name, value in (("sums_layers", selector.sums_layers), ("surveys", selector.surveys)):
        if not isinstance(value, bool):
            return f"{name} is {value!r}, not True or False"
    if selector.surveys:
        step = make_step(device=device)
        selector.select(step, BUDGET)
        complete: Any = selector.survey_complete(step)
        if not isinstance(complete, bool):
            return f"survey_complete gives {complete!r}, not True or False"
        for turn in (step.query.selector, selector.new_turn_state()):
            selector.after_survey(turn)
    return ""


def check_selector(selector: Selector, device: str) -> list[Finding]:
    """Every check of a selector, on random steps on `device`."""
    observe: Observe | None = selector.observe if selector.observes else None
    allowed = [
        attempt("declares its members", partial(_members, selector, device)),
        attempt("allowance is a whole number from 0", partial(_allowance, selector, device)),
    ]
    if not allowed[-1].passed:
        return allowed
    run = partial(_tried, selector, device)
    cases = {case: partial(run, BUDGET, observe, options) for case, options in STEPS.items()}
    cases["budget 0"] = partial(run, 0, observe, {})
    cases["budget 1"] = partial(run, 1, observe, {})
    cases["nothing observed"] = partial(run, BUDGET, None, {})
    findings, results = gather(cases)
    findings = [*allowed, *findings, each(SHAPE, results, _shape)]
    flat = {case: result for case, result in results.items() if not _shape(result)}
    findings += [each(name, flat, complaint) for name, complaint in CHECKS.items()]
    findings += conduct(results, cases, device, observe, partial(_select, selector))
    cropped = partial(_after_crop, selector, device, observe)
    return [*findings, attempt("works after the store is cropped", cropped)]


FOLDED = 32
"""F of the steps that keep make_step's G and D."""


def _score_shape(tried: TriedStep) -> str:
    detail = one_dimension(tried)
    if detail or tried.out.shape[0] == tried.step.middle:
        return detail
    return f"has {tried.out.shape[0]} scores for M = {tried.step.middle}"


def _share(found: Tensor, what: str) -> str:
    return f"{int(found.sum())} of {found.numel()} are {what}" if found.any() else ""


SCORED: dict[str, Callable[[TriedStep], str]] = {
    "floating point": lambda tried: (
        "" if tried.out.is_floating_point() else f"is {tried.out.dtype}"
    ),
    "on the queries' device": right_device,
    "never NaN": lambda tried: _share(tried.out.isnan(), "NaN"),
    "never +inf": lambda tried: _share(tried.out.isposinf(), "+inf"),
}


def check_score(score: Score, device: str) -> list[Finding]:
    """Every check of a score, on random steps on `device`."""

    def tried(options: dict[str, Any]) -> TriedStep:
        step = make_step(device=device, score=score, **options)
        twin = make_step(device=device, score=score, **options)
        return TriedStep(step, twin, 0, score.scores(step))

    def flag() -> str:
        value = score.features
        return "" if isinstance(value, bool) else f"features is {value!r}, not True or False"

    def layer() -> str:
        last = score.last_layer
        wrong = last is not None and whole_number("last_layer", last, 0)
        return f"last_layer is {last!r}, not a layer or None" if wrong else ""

    def rotation() -> str:
        """A score whose numbers depend on the far distance rotates its queries, and must say so:
        compressors are fitted, and stored rows found again, by what `rotates` says."""
        near, again, far = (
            score.scores(make_step(device=device, score=score, distance=at)).nan_to_num()
            for at in (8, 8, 4096)
        )
        differ = torch.equal(near, again) and not torch.equal(near, far)
        if differ and not score.rotates:
            return "scores change with the far distance, but rotates is False"
        return ""

    cases = {case: partial(tried, options) for case, options in STEPS.items()}
    if score.features:
        random = torch.Generator().manual_seed(7)
        maps = Linear(*torch.randn(2, FOLDED, 5, generator=random))
        cases["reduced keys"] = partial(tried, {"projection": maps})
        half = {"projection": maps, "dtype": torch.bfloat16}
        cases["reduced keys, bfloat16"] = partial(tried, half)
    findings, results = gather(cases)
    findings += [attempt("declares features", flag), attempt("declares last_layer", layer)]
    findings.append(attempt("declares whether it rotates", rotation))
    findings.append(each("a tensor of M scores", results, _score_shape))
    flat = {case: result for case, result in results.items() if not one_dimension(result)}
    findings += [each(name, flat, complaint) for name, complaint in SCORED.items()]
    return findings + conduct(results, cases, device, None, score.scores)

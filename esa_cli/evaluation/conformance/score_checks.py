"""Checks of scores, on whole keys and, if the score uses them, on reduced ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.compression import Linear
from esa_cli.attention.parts import Score
from esa_cli.evaluation.conformance.finding import Finding, attempt, each, gather, whole_number
from esa_cli.evaluation.conformance.purity_checks import (
    STEPS,
    TriedStep,
    conduct,
    one_dimension,
    right_device,
)
from esa_cli.evaluation.conformance.random_steps import make_step

FOLDED = 32
"""F of the steps that keep make_step's G and D."""


def _shape(tried: TriedStep) -> str:
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
    findings.append(each("a tensor of M scores", results, _shape))
    flat = {case: result for case, result in results.items() if not one_dimension(result)}
    findings += [each(name, flat, complaint) for name, complaint in SCORED.items()]
    return findings + conduct(results, cases, device, None, score.scores)

"""Checks of compressors: what they fit on random moments, and how it maps queries and keys.

Each key must be reduced on its own: reduced keys are made block by block, as tokens leave L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..compressors import Moments
from ..protocols import Compressor, Projection
from .findings import Finding, attempt, each, gather

ROWS = {"C = 1, n = 1": (1, 1), "C = 8, n = 100": (8, 100), "C = 40, n = 3": (40, 3)}


@dataclass(frozen=True)
class Mapped:
    """A projection's results: queries (C, F) -> (C, R) and keys (n, F) -> (n, R)."""

    q: Tensor
    k: Tensor
    queries: Tensor
    keys: Tensor


def random_moments(count: int, folded: int, device: str, seed: int = 0) -> Moments:
    """Moments of `count` random folded queries and keys (count, F)."""
    random = torch.Generator().manual_seed(seed)
    moments = Moments()
    if count:
        q, k = torch.randn(2, count, folded, generator=random).to(device)
        moments.add(q, k)
    return moments


def _shapes(mapped: Mapped) -> str:
    for name, rows, out in (("queries", mapped.q, mapped.queries), ("keys", mapped.k, mapped.keys)):
        if out.ndim != 2 or out.shape[0] != rows.shape[0]:
            return f"{name} {tuple(rows.shape)} became {tuple(out.shape)}"
    if mapped.queries.shape[1] != mapped.keys.shape[1]:
        return f"R is {mapped.queries.shape[1]} for queries and {mapped.keys.shape[1]} for keys"
    return ""


def _dtypes(mapped: Mapped) -> str:
    if not mapped.keys.is_floating_point() or mapped.queries.dtype != mapped.keys.dtype:
        return f"{mapped.q.dtype} became {mapped.queries.dtype} queries, {mapped.keys.dtype} keys"
    return ""


def _devices(mapped: Mapped) -> str:
    if {mapped.queries.device, mapped.keys.device} != {mapped.q.device}:
        return f"{mapped.q.device} became {mapped.queries.device} and {mapped.keys.device}"
    return ""


def _finite(mapped: Mapped) -> str:
    bad = sum(int((~out.isfinite()).sum()) for out in (mapped.queries, mapped.keys))
    return f"{bad} numbers are not finite" if bad else ""


MAPPED: dict[str, Callable[[Mapped], str]] = {
    "shapes (C, R) and (n, R)": _shapes,
    "one floating point dtype": _dtypes,
    "on the input's device": _devices,
    "finite": _finite,
}


def check_compressor(compressor: Any, device: str, folded: int) -> list[Finding]:
    """Every check of a compressor for layer 0 and F = `folded`."""
    if not isinstance(compressor, Compressor):
        return [Finding("has fit_tokens and fit(layer, moments)", False, "no such members")]

    def fit_tokens() -> str:
        count = compressor.fit_tokens
        whole = isinstance(count, int) and not isinstance(count, bool) and count >= 0
        return "" if whole else f"fit_tokens is {count!r}, not a whole number from 0"

    findings = [attempt("declares fit_tokens", fit_tokens)]
    if not findings[0].passed:
        return findings
    seen = compressor.fit_tokens
    counts = {"a short document": min(seen, 5), "all the tokens asked for": min(seen, 4096)}
    fits = {
        f"fit on {case}": partial(_fit, compressor, count, folded, device)
        for case, count in counts.items()
    }
    found, fitted = gather(fits)
    findings += found
    for projection in fitted.values():
        if projection is not None:
            return findings + _mapping(compressor, projection, seen, folded, device)
    return findings


def _fit(compressor: Compressor, count: int, folded: int, device: str) -> Projection | None:
    moments = random_moments(count, folded, device)
    before = None if moments.keys is None else moments.keys.clone()
    projection = compressor.fit(0, moments)
    if before is not None and not (moments.keys is not None and torch.equal(moments.keys, before)):
        raise ValueError("fit changed the moments it was given")
    return projection


def _mapping(
    compressor: Compressor, projection: Projection, seen: int, folded: int, device: str
) -> list[Finding]:
    def mapped(rows: tuple[int, int], dtype: torch.dtype) -> Mapped:
        random = torch.Generator().manual_seed(3)
        drawn = (torch.randn(count, folded, generator=random) for count in rows)
        q, k = (rows_.to(device, dtype) for rows_ in drawn)
        return Mapped(q, k, projection.queries(q), projection.keys(k))

    def repeats() -> str:
        again = _fit(compressor, min(seen, 5), folded, device)
        twin = _fit(compressor, min(seen, 5), folded, device)
        assert again is not None, "fit gave None, and a projection before"
        assert twin is not None, "fit gave None, and a projection before"
        keys = torch.randn(9, folded, generator=torch.Generator().manual_seed(4)).to(device)
        apart = float((again.keys(keys) - twin.keys(keys)).abs().max())
        return f"two fits map the same keys up to {apart:.3g} apart" if apart else ""

    cases = {case: partial(mapped, rows, torch.float32) for case, rows in ROWS.items()}
    cases["bfloat16"] = partial(mapped, (8, 100), torch.bfloat16)
    findings, results = gather(cases)
    findings += [each(name, results, complaint) for name, complaint in MAPPED.items()]
    findings.append(attempt("deterministic", repeats))
    return [*findings, each("each key on its own", results, partial(_rowwise, projection))]


def _rowwise(projection: Projection, mapped: Mapped) -> str:
    alone = projection.keys(mapped.k[:1]).float()
    apart = float((alone - mapped.keys[:1].float()).abs().max())
    limit = 0.02 * float(alone.abs().max()) + 1e-5
    return f"one key alone is mapped {apart:.3g} apart" if apart > limit else ""

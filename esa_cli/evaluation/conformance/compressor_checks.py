"""Checks of compressors: they are fitted on random moments and reduce random queries and keys.

Each key must be reduced independently: keys are reduced block by block, as tokens leave L.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from esa_cli.attention.parts import Compressor, Moments
from esa_cli.attention.step import Projection
from esa_cli.evaluation.conformance.finding import Finding, attempt, each, gather, whole_number

ROWS = {"C = 1, n = 1": (1, 1), "C = 8, n = 100": (8, 100), "C = 40, n = 3": (40, 3)}


@dataclass(frozen=True)
class MappedRows:
    """A projection's results: queries (C, F) -> (C, R) and keys (n, F) -> (n, R).

    Args:
        changed: how many numbers of its inputs it changed.
    """

    projection: Projection
    q: Tensor
    k: Tensor
    queries: Tensor
    keys: Tensor
    changed: int


def random_moments(count: int, folded: int, device: str, seed: int = 0) -> Moments:
    """Moments of `count` random folded queries and keys (count, F)."""
    random = torch.Generator().manual_seed(seed)
    moments = Moments()
    if count:
        q, k = torch.randn(2, count, folded, generator=random).to(device)
        moments.add(q, k)
    return moments


def _shapes(mapped: MappedRows) -> str:
    for name, rows, out in (("queries", mapped.q, mapped.queries), ("keys", mapped.k, mapped.keys)):
        if out.ndim != 2 or out.shape[0] != rows.shape[0]:
            return f"{name} {tuple(rows.shape)} became {tuple(out.shape)}"
    if mapped.queries.shape[1] != mapped.keys.shape[1]:
        return f"R is {mapped.queries.shape[1]} for queries and {mapped.keys.shape[1]} for keys"
    return ""


def _dtypes(mapped: MappedRows) -> str:
    if not mapped.keys.is_floating_point() or mapped.queries.dtype != mapped.keys.dtype:
        return f"{mapped.q.dtype} became {mapped.queries.dtype} queries, {mapped.keys.dtype} keys"
    # A step's queries are float32, and meet the reduced keys in it.
    if mapped.q.dtype == torch.float32 != mapped.queries.dtype:
        return f"{mapped.q.dtype} queries became {mapped.queries.dtype}"
    return ""


def _rowwise(mapped: MappedRows) -> str:
    count = mapped.k.shape[0]
    for at in sorted({0, count // 2, count - 1}):
        alone = mapped.projection.keys(mapped.k[at : at + 1].clone()).float()
        apart = float((alone - mapped.keys[at : at + 1].float()).abs().max())
        if apart > 0.02 * float(alone.abs().max()) + 1e-5:
            return f"key {at} of {count} is mapped {apart:.3g} apart from when it is alone"
    return ""


MAPPED: dict[str, Callable[[MappedRows], str]] = {
    "shapes (C, R) and (n, R)": _shapes,
    "one floating point dtype": _dtypes,
    "on the input's device": lambda mapped: (
        f"{mapped.q.device} became {mapped.queries.device} and {mapped.keys.device}"
        if {mapped.queries.device, mapped.keys.device} != {mapped.q.device}
        else ""
    ),
    "finite": lambda mapped: (
        f"{bad} numbers are not finite"
        if (bad := sum(int((~out.isfinite()).sum()) for out in (mapped.queries, mapped.keys)))
        else ""
    ),
    "leaves queries and keys alone": lambda mapped: (
        f"{mapped.changed} numbers were written over" if mapped.changed else ""
    ),
    "each key on its own": _rowwise,
}


def check_compressor(compressor: Compressor, device: str, folded: int) -> list[Finding]:
    """Every check of a compressor for layer 0 and F = `folded`."""
    whole = partial(whole_number, "fit_tokens", compressor.fit_tokens, 0)
    findings = [attempt("declares fit_tokens", whole)]
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
    results: dict[str, MappedRows] = {}
    for case, projection in fitted.items():
        if projection is None:
            continue
        # What is fitted on few tokens may be another map, or none.
        ran, mapped = gather(_mapped(projection, folded, device, f", {case}"))
        findings, results = findings + ran, {**results, **mapped}
    if not results:
        return findings
    findings += [each(name, results, complaint) for name, complaint in MAPPED.items()]
    again = {case: fits[case] for case, projection in fitted.items() if projection is not None}
    return [*findings, each("deterministic", again, partial(_repeats, folded, device))]


def _fit(compressor: Compressor, count: int, folded: int, device: str) -> Projection | None:
    moments, twin = (random_moments(count, folded, device) for _ in range(2))
    projection = compressor.fit(0, moments)
    same = (moments.count, moments.seen) == (twin.count, twin.seen)
    pairs = ((moments.queries, twin.queries), (moments.keys, twin.keys))
    if not same or not all(_equal(now, before) for now, before in pairs):
        raise ValueError("fit changed the moments it was given")
    return projection


def _equal(now: Tensor | None, before: Tensor | None) -> bool:
    return now is before or (now is not None and before is not None and torch.equal(now, before))


def _mapped(
    projection: Projection, folded: int, device: str, after: str
) -> dict[str, Callable[[], MappedRows]]:
    """Random queries and keys through the projection, by case."""

    def mapped(rows: tuple[int, int], dtype: torch.dtype) -> MappedRows:
        random = torch.Generator().manual_seed(3)
        drawn = (torch.randn(count, folded, generator=random) for count in rows)
        q, k = (rows_.to(device, dtype) for rows_ in drawn)
        given = q.clone(), k.clone()
        queries, keys = projection.queries(given[0]), projection.keys(given[1])
        changed = int((given[0] != q).sum()) + int((given[1] != k).sum())
        return MappedRows(projection, q, k, queries, keys, changed)

    cases = {case: partial(mapped, rows, torch.float32) for case, rows in ROWS.items()}
    cases["bfloat16"] = partial(mapped, (8, 100), torch.bfloat16)
    return {f"{case}{after}": call for case, call in cases.items()}


def _repeats(folded: int, device: str, fit: Callable[[], Projection | None]) -> str:
    rows = torch.randn(9, folded, generator=torch.Generator().manual_seed(4)).to(device)
    maps = [fit(), fit()]
    if maps[0] is None or maps[1] is None:
        return "fit gave None, and a projection before"
    for name in ("queries", "keys"):
        first, second = (getattr(projection, name)(rows.clone()) for projection in maps)
        apart = float((first - second).abs().max())
        if apart:
            return f"two fits map the same {name} up to {apart:.3g} apart"
    return ""

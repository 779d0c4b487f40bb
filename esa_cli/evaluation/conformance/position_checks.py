"""Checks of position encodings: shapes, number types, finite, not negative, no far query before a
far key. Near tokens need not have their true distances.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.step import Positions
from esa_cli.evaluation.conformance.finding import Finding, attempt, each, gather, whole_number


class StepPlace(NamedTuple):
    """Arguments of an encoding: L, C, the first current token, and n far tokens."""

    local: int
    chunk: int
    start: int
    far: int


PLACES = {
    "usual": StepPlace(16, 8, 200, 40),
    "no far token": StepPlace(16, 8, 200, 0),
    "L = 0": StepPlace(0, 8, 200, 40),
    "C = 1": StepPlace(16, 1, 200, 40),
    "C = 40": StepPlace(16, 40, 200, 40),
    "the first chunk": StepPlace(0, 8, 0, 0),
    "all is local": StepPlace(100, 8, 100, 0),
    "a long document": StepPlace(1024, 512, 1_000_000, 1024),
}


class PlacedTokens(NamedTuple):
    """The positions given to a place: near (C,) and (L + C,), far (C,) and (n,).

    Args:
        changed: how many of the far tokens' absolute positions were written over.
    """

    place: StepPlace
    near: Positions
    far: Positions
    changed: int


def _put(encoding: PositionEncoding, place: StepPlace) -> PlacedTokens:
    """Half of the far tokens are at the document's start, half right before L."""
    last = place.start - place.local
    half = place.far // 2
    at = torch.cat((torch.arange(half), torch.arange(last - place.far + half, last)))
    near = encoding.near(place.local, place.chunk, place.start, place.far)
    given = at.clone()
    far = encoding.far(given, place.local, place.chunk, place.start)
    return PlacedTokens(place, near, far, int((given != at).sum()))


def _parts(placed: PlacedTokens) -> dict[str, tuple[Tensor, int]]:
    """Every tensor and its expected number of positions."""
    place = placed.place
    return {
        "near queries": (placed.near[0], place.chunk),
        "near keys": (placed.near[1], place.local + place.chunk),
        "far queries": (placed.far[0], place.chunk),
        "far keys": (placed.far[1], place.far),
    }


def _shapes(placed: PlacedTokens) -> str:
    for name, pair in (("near", placed.near), ("far", placed.far)):
        if not isinstance(pair, Positions):
            return f"{name} gives a {type(pair).__name__}, not Positions"
    for name, (out, count) in _parts(placed).items():
        if not isinstance(out, Tensor):
            return f"{name} are a {type(out).__name__}"
        if out.shape != (count,):
            return f"{name} have shape {tuple(out.shape)}, not ({count},)"
    return ""


def _numbers(placed: PlacedTokens) -> str:
    for name, (out, _) in _parts(placed).items():
        if out.dtype == torch.bool or out.is_complex():
            return f"{name} are {out.dtype}"
    return ""


def _finite(placed: PlacedTokens) -> str:
    for name, (out, _) in _parts(placed).items():
        bad = int((~out.isfinite()).sum())
        if bad:
            return f"{bad} {name} are not finite"
    return ""


def _not_negative(placed: PlacedTokens) -> str:
    for name, (out, _) in _parts(placed).items():
        if out.numel() and out.min() < 0:
            return f"{name} go down to {out.min().item()}"
    return ""


def _behind(placed: PlacedTokens) -> str:
    query, key = placed.far
    if not key.numel() or query.min() >= key.max():
        return ""
    return f"a far query at {query.min().item()}, a far key at {key.max().item()}"


PLACED: dict[str, Callable[[PlacedTokens], str]] = {
    "integers or floats": _numbers,
    "finite": _finite,
    "not negative": _not_negative,
    "no far query before a far key": _behind,
    "leaves the positions it is given alone": lambda placed: (
        f"{placed.changed} of the positions `at` were written over" if placed.changed else ""
    ),
}


QUERIES = {"the first tokens": (0, 8), "one token": (200, 1), "far on": (1_000_000, 40)}
"""Absolute position of the first query and how many there are."""

RATES = {
    "short": (8, 10_000.0, 1),
    "longer than any window": (128, 500_000.0, 10_000_000),
    "D = 64": (64, 10_000.0, 30_000),
}
"""D, the base of the host's frequencies, and how many tokens are cached."""


def _max_distance(encoding: PositionEncoding) -> str:
    value = encoding.max_distance
    return "" if value is None else whole_number("max_distance", value, 1)


def _query_scale(encoding: PositionEncoding, device: str, start: int, count: int) -> str:
    at = torch.arange(start, start + count, device=device)
    out: Any = encoding.query_scale(at)
    alone = encoding.query_scale(at[-1:])
    if out is None and alone is None:
        return ""
    if not isinstance(out, Tensor) or alone is None or out.shape != (count,):
        return f"not one factor a query: {_kind(out)} for {count} queries"
    if not out.is_floating_point():
        return f"factors are {out.dtype}"
    bad = int((~(out.isfinite() & (out > 0))).sum())
    if bad:
        return f"{bad} factors are not finite and above 0"
    if not torch.allclose(out[-1:], alone):
        return f"the last query's factor is {out[-1]:.3g}, but alone it has {alone.item():.3g}"
    return ""


def _frequencies(encoding: Any, device: str, dim: int, base: float, length: int) -> str:
    inverse = base ** (-torch.arange(0, dim, 2, device=device) / dim)
    before = inverse.clone()
    changed: Any = encoding.frequencies(inverse, 1.0, length)
    second: Any = encoding.frequencies(before.clone(), 1.0, length)
    if changed is None and second is None:
        return ""
    if changed is None or second is None:
        return "gives frequencies only sometimes"
    (out, factor), (again, _) = changed, second
    if not torch.equal(inverse, before):
        return "changes the frequencies it is given"
    if not isinstance(out, Tensor) or out.shape != inverse.shape:
        return f"not D / 2 = {dim // 2} frequencies: {_kind(out)}"
    if not out.is_floating_point() or not bool((out.isfinite() & (out >= 0)).all()):
        return "frequencies are not finite floats from 0"
    if (
        isinstance(factor, bool)
        or not isinstance(factor, (int, float))
        or not 0 < factor < torch.inf
    ):
        return f"the factor is {factor!r}, not a number above 0"
    return "" if torch.equal(out, again) else "gives other frequencies the second time"


def _kind(out: Any) -> str:
    return f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"


def _optional(encoding: PositionEncoding, device: str) -> list[Finding]:
    """Checks of the members that have defaults."""
    scale = partial(_query_scale, encoding, device)
    change = partial(_frequencies, encoding, device)
    return [
        attempt("declares max_distance", partial(_max_distance, encoding)),
        each("query_scale (C,)", QUERIES, lambda queries: scale(*queries)),
        each("frequencies (D / 2,)", RATES, lambda rates: change(*rates)),
    ]


def _repeats(encoding: PositionEncoding, placed: PlacedTokens) -> str:
    first, second = _parts(placed), _parts(_put(encoding, placed.place))
    for name, (out, _) in first.items():
        changed = int((out != second[name][0]).sum())
        if changed:
            return f"{changed} {name} differ the second time"
    return ""


def check_position(encoding: PositionEncoding, device: str) -> list[Finding]:
    """Every check of a position encoding; positions may be on any device."""
    cases = {case: partial(_put, encoding, place) for case, place in PLACES.items()}
    findings, results = gather(cases)
    whole_distance = partial(whole_number, "distance", encoding.distance, 0)
    findings.append(attempt("declares distance", whole_distance))
    findings.append(each("shapes (C,), (L + C,) and (n,)", results, _shapes))
    whole = {case: placed for case, placed in results.items() if not _shapes(placed)}
    findings += [each(name, whole, complaint) for name, complaint in PLACED.items()]
    findings.append(each("deterministic", whole, partial(_repeats, encoding)))
    return [*findings, *_optional(encoding, device)]

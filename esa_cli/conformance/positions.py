"""Checks of position encodings: positions exist for every shape of step, and order is kept.

Required: shapes, a number type, finite, not negative, and no far query before a far key. Whether
near tokens stand at their true distances is the encoding's own business.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..protocols import PositionEncoding, Positions
from .findings import Finding, attempt, each, gather


class Place(NamedTuple):
    """A step as an encoding sees it: L, C, the first current token, and n far tokens."""

    local: int
    chunk: int
    start: int
    far: int


PLACES = {
    "usual": Place(16, 8, 200, 40),
    "no far token": Place(16, 8, 200, 0),
    "L = 0": Place(0, 8, 200, 40),
    "C = 1": Place(16, 1, 200, 40),
    "C = 40": Place(16, 40, 200, 40),
    "the first chunk": Place(0, 8, 0, 0),
    "all is local": Place(100, 8, 100, 0),
    "a long document": Place(1024, 512, 1_000_000, 1024),
}


class Placed(NamedTuple):
    """The positions given to a place: near (C,) and (L + C,), far (C,) and (n,)."""

    place: Place
    near: Positions
    far: Positions


def _put(encoding: PositionEncoding, place: Place) -> Placed:
    """Half of the far tokens come from the document's start, half from right before L."""
    last = place.start - place.local
    half = place.far // 2
    at = torch.cat((torch.arange(half), torch.arange(last - place.far + half, last)))
    near = encoding.near(place.local, place.chunk, place.start, place.far)
    return Placed(place, near, encoding.far(at, place.local, place.chunk, place.start))


def _parts(placed: Placed) -> dict[str, tuple[Tensor, int]]:
    """Every tensor and how many positions it should hold."""
    place = placed.place
    return {
        "near queries": (placed.near[0], place.chunk),
        "near keys": (placed.near[1], place.local + place.chunk),
        "far queries": (placed.far[0], place.chunk),
        "far keys": (placed.far[1], place.far),
    }


def _shapes(placed: Placed) -> str:
    for name, (out, count) in _parts(placed).items():
        if not isinstance(out, Tensor):
            return f"{name} are a {type(out).__name__}"
        if out.shape != (count,):
            return f"{name} have shape {tuple(out.shape)}, not ({count},)"
    return ""


def _numbers(placed: Placed) -> str:
    for name, (out, _) in _parts(placed).items():
        if out.dtype == torch.bool or out.is_complex():
            return f"{name} are {out.dtype}"
    return ""


def _finite(placed: Placed) -> str:
    for name, (out, _) in _parts(placed).items():
        bad = int((~out.isfinite()).sum())
        if bad:
            return f"{bad} {name} are not finite"
    return ""


def _not_negative(placed: Placed) -> str:
    for name, (out, _) in _parts(placed).items():
        if out.numel() and out.min() < 0:
            return f"{name} go down to {out.min().item()}"
    return ""


def _behind(placed: Placed) -> str:
    query, key = placed.far
    if not key.numel() or query.min() >= key.max():
        return ""
    return f"a far query at {query.min().item()}, a far key at {key.max().item()}"


PLACED: dict[str, Callable[[Placed], str]] = {
    "integers or floats": _numbers,
    "finite": _finite,
    "not negative": _not_negative,
    "no far query before a far key": _behind,
}


def check_position(encoding: Any, device: str) -> list[Finding]:
    """Every check of a position encoding; positions may be on any device."""
    if not isinstance(encoding, PositionEncoding):
        return [Finding("has distance, near and far", False, "there are no such members")]

    def distance() -> str:
        value = encoding.distance
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return "" if whole else f"distance is {value!r}, not a whole number from 0"

    def repeats() -> str:
        first, second = (_parts(_put(encoding, PLACES["usual"])) for _ in range(2))
        for name in first:
            changed = int((first[name][0] != second[name][0]).sum())
            if changed:
                return f"{changed} {name} differ the second time"
        return ""

    cases = {case: partial(_put, encoding, place) for case, place in PLACES.items()}
    findings, results = gather(cases)
    findings.append(attempt("declares distance", distance))
    findings.append(each("shapes (C,), (L + C,) and (n,)", results, _shapes))
    whole = {case: placed for case, placed in results.items() if not _shapes(placed)}
    findings += [each(name, whole, complaint) for name, complaint in PLACED.items()]
    return [*findings, attempt("deterministic", repeats)]

"""Position interpolation: all positions, or equally all frequencies, divided by s.

Needs no base b, so it also works on a model whose frequencies are scaled already.
Source: Chen et al., "Extending Context Window of Large Language Models via Positional
Interpolation", 2023.

`StretchedPositions` is the common base of interpolation, ntk and yarn: a factor s, and the model's
base b. Inverse frequencies are b^(-2i/D), i = 0 .. D/2 - 1; b comes from the last one, which keeps
most of its digits. Other frequencies (models with llama3, yarn or linear scaling) are refused.
Python floats, so that they are the same on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from esa_cli.attention.positions import ROTATED, TruePositions
from esa_cli.errors import PresetError
from esa_cli.methods.full_attention import FULL_COST, everything, whole_stretch
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import Base, recipe

TOLERANCE = 0.01
"""Largest relative error of a frequency that belongs to the series. Rounding to bfloat16 makes
0.004, the scalings in use make far more."""


@dataclass(frozen=True)
class StretchedPositions(TruePositions):
    """True positions for a window `factor` times the trained one.

    Args:
        distance: of far tokens when they are scored.
        factor: s, at least 1.
    """

    factor: float = 4.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"factor must be at least 1 and finite, got {self.factor}")


def base_of(inverse: Tensor) -> float:
    """b of inverse frequencies (D / 2,).

    Raises:
        PresetError: they are not b^(-2i/D).
    """
    rates = inverse.tolist()
    dim, last = 2 * len(rates), len(rates) - 1
    if last > 0 and min(rates) > 0:
        base = float(rates[last] ** (-dim / (2 * last)))
        pairs = zip(rates, series(base, dim), strict=True)
        if base > 1 and all(abs(rate / plain - 1) < TOLERANCE for rate, plain in pairs):
            return base
    raise PresetError(
        "the model's rotary frequencies must be a series b^(-2i/D), got others; its window may "
        "have been stretched already, or part of a head does not rotate",
        "use position `true` or `interpolation` with this model",
    )


def series(base: float, dim: int) -> list[float]:
    """Inverse frequencies b^(-2i/D) for i = 0 .. D/2 - 1."""
    return [base ** (-2 * i / dim) for i in range(dim // 2)]


@register(
    "position",
    "interpolation",
    about="true positions, divided by a factor",
    source="Chen et al. 2023, position interpolation, arXiv 2306.15595",
    cost=ROTATED,
)
@dataclass(frozen=True)
class Interpolation(StretchedPositions):
    """True positions divided by `factor`.

    Args:
        distance: of far tokens when they are scored, before the division.
        factor: s, how many times the trained window the text is long.
    """

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        return inverse.float() / self.factor, factor


@recipe(
    "interpolation",
    about="full attention, positions divided to fit into the trained window",
    source="Chen et al. 2023, position interpolation",
    cost=FULL_COST,
    full=True,
)
def interpolation(base: Base) -> dict[str, Any]:
    return everything({"name": "interpolation", "factor": whole_stretch(base)})

"""What the encodings with changed frequencies share: a factor s, and the host's base b.

The host's inverse frequencies are b^(-2i/D), i = 0 .. D/2 - 1, so the last one gives b. It is the
one that keeps most of b's digits. Frequencies that are no such series (llama3, yarn or linear
scaling in the host) have no b, and are refused.

Plain Python numbers: D/2 of them, and the same on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from esa_cli.attention.positions import TruePositions
from esa_cli.errors import PresetError

TOLERANCE = 0.01
"""Largest relative error of a frequency that belongs to the series. Rounding to bfloat16 makes
0.004, the scalings in use make far more."""


@dataclass(frozen=True)
class Stretched(TruePositions):
    """True positions for a window `factor` times the trained one.

    Args:
        distance: where a far token is taken to be when it is scored.
        factor: s, at least 1.
    """

    factor: float = 4.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError("factor must be at least 1")


def base_of(inverse: Tensor) -> float:
    """b of the host's inverse frequencies (D / 2,).

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
        "this model's rotary frequencies are no plain series b^(-2i/D), perhaps because its window "
        "was stretched already; there is no base b to change",
        "use position `true` or `interpolation` with this model",
    )


def series(base: float, dim: int) -> list[float]:
    """Inverse frequencies b^(-2i/D) for i = 0 .. D/2 - 1."""
    return [base ** (-2 * i / dim) for i in range(dim // 2)]

"""Methods that stretch the rotary embedding, and ReRoPE's clipped distances.

Position interpolation: all positions, or equally all frequencies, divided by s.

Needs no base b, so it also works on a model whose frequencies are scaled already.
Source: Chen et al., "Extending Context Window of Large Language Models via Positional
Interpolation", 2023.

`StretchedPositions` is the common base of interpolation, ntk and yarn: a factor s, and the model's
base b. Inverse frequencies are b^(-2i/D), i = 0 .. D/2 - 1; b comes from the last one, which keeps
most of its digits. Other frequencies (models with llama3, yarn or linear scaling) are refused.
Python floats, so that they are the same on every device.

NTK-aware scaling: a larger base b', so that slow frequencies are stretched and fast ones kept.

    fixed     b' = b s^(D / (D - 2))
    dynamic   b' = b (s N / L0 - (s - 1))^(D / (D - 2)) once N tokens, more than L0, are cached
The slowest frequency of the fixed form is exactly that of interpolation by s.

Dynamic: cached keys are unrotated, so all of a step's tokens are rotated by the same b'. N is the
end of the current chunk: during a prefill in chunks the base grows with them. At N = L0 the base is
b whatever s is, and its factor grows by s / L0 with every token. The recipe sets s to the whole
stretch of the document, as for `ntk`; at N = s L0 the stretch is s^2 - s + 1 where the fixed form
has s. transformers does the same with a configuration of factor s.

Source: bloc97 (fixed) and emozilla (dynamic), 2023, as in transformers. The ESA paper runs NTK in
vLLM and does not say in which form; `ntk` is the fixed one.

YaRN: fast frequencies kept, slow ones interpolated, a ramp in between, and a temperature.

    c(r)    = D ln(L0 / (2 pi r)) / (2 ln b)           the dimension that turns r times in L0 tokens
    low     = max(floor c(beta_fast), 0)
    high    = min(ceil c(beta_slow), D - 1)
    gamma_i = 1 - clip((i - low) / (high - low), 0, 1)
    theta'_i = theta_i (gamma_i + (1 - gamma_i) / s)
Cosines and sines are multiplied by 0.1 ln s + 1, so logits by its square.
Source: Peng et al., "YaRN", 2023. Bounds are rounded outwards, as transformers does by default.

ReRoPE's positions: distances min(i - j, w), queries scaled by the log of their position.

    far        query at w, keys at 0
    near       true distances, cut off at w by `max_distance`
    queries    query i times max(1, ln(i + 1) / ln L_train)
Exact where L has at least w tokens, or everything is near: closer far tokens are moved to w.
Source: Su, "Rectified Rotary Position Embeddings" (ReRoPE), 2023. The ESA paper takes the distances
and does not mention the factor, so it is off unless `trained` is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.parts import check_at_least
from esa_cli.attention.positions import ROTATED, FixedDistance, TruePositions
from esa_cli.errors import PresetError
from esa_cli.methods.full_attention import FULL_COST, everything, whole_stretch
from esa_cli.methods.registry import Base, recipe, register

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


@register("position", "interpolation", about="true positions, divided by a factor")
@dataclass(frozen=True)
class Interpolation(StretchedPositions):
    """True positions divided by `factor`.

    Args:
        distance: of far tokens when they are scored, before the division.
        factor: s, how many times the trained window the text is long.
    """

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        return inverse.float() / self.factor, factor


def _of_larger_base(base: float, stretch: float, inverse: Tensor) -> Tensor:
    """Inverse frequencies (D / 2,) of b' = base * stretch^(D / (D - 2)), where `inverse` is."""
    dim = 2 * inverse.shape[0]
    larger = base * stretch ** (dim / (dim - 2))
    return inverse.new_tensor(series(larger, dim), dtype=torch.float32)


@register("position", "ntk", about="true positions, a larger rotary base")
@dataclass(frozen=True)
class NTK(StretchedPositions):
    """True positions, the base enlarged for a text `factor` times the trained window.

    Args:
        distance: of far tokens when they are scored. factor: s, at least 1.
    """

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        return _of_larger_base(base_of(inverse), self.factor, inverse), factor


@register("position", "ntk-dynamic", about="true positions, a base that grows with the text")
@dataclass(frozen=True)
class DynamicNTK(StretchedPositions):
    """True positions, the base enlarged as the text grows beyond the trained window.

    Args:
        distance: of far tokens when they are scored. factor: s, at least 1.
        trained: L0, the model's trained window in tokens.
    """

    trained: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, trained=self.trained)

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        base = base_of(inverse)  # a model without one is refused at once, not in mid-document
        if length <= self.trained:
            return inverse, factor
        stretch = self.factor * length / self.trained - (self.factor - 1)
        return _of_larger_base(base, stretch, inverse), factor


@register("position", "yarn", about="true positions, slow frequencies stretched")
@dataclass(frozen=True)
class YaRN(StretchedPositions):
    """True positions at YaRN's frequencies for a text `factor` times the trained window.

    Args:
        distance: of far tokens when they are scored. factor: s, at least 1.
        trained: L0, the model's trained window in tokens.
        beta_fast, beta_slow: frequencies that turn more often than beta_fast in L0 tokens are kept,
            those that turn less often than beta_slow are divided by s.
    """

    trained: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, trained=self.trained)
        if not self.beta_fast >= self.beta_slow > 0:
            raise ValueError(
                f"beta_slow must be above 0 and at most beta_fast, got {self.beta_slow} and "
                f"{self.beta_fast}"
            )

    def _turning(self, turns: float, base: float, dim: int) -> float:
        return dim * math.log(self.trained / (2 * math.pi * turns)) / (2 * math.log(base))

    def kept(self, base: float, dim: int) -> list[float]:
        """gamma_i, the share of each of the D / 2 frequencies that is not interpolated."""
        low: float = max(math.floor(self._turning(self.beta_fast, base, dim)), 0)
        high: float = min(math.ceil(self._turning(self.beta_slow, base, dim)), dim - 1)
        if low == high:
            high += 0.001  # a step in place of a ramp, without dividing by zero
        ramp = ((i - low) / (high - low) for i in range(dim // 2))
        return [1 - min(max(x, 0.0), 1.0) for x in ramp]

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        dim = 2 * inverse.shape[0]
        base = base_of(inverse)
        pairs = zip(series(base, dim), self.kept(base, dim), strict=True)
        rates = [rate * (kept + (1 - kept) / self.factor) for rate, kept in pairs]
        temperature = 0.1 * math.log(self.factor) + 1
        return inverse.new_tensor(rates, dtype=torch.float32), factor * temperature


@register(
    "position",
    "rerope",
    about="no token further away than a fixed distance",
    source="Su 2023, Rectified Rotary Position Embeddings (ReRoPE)",
    cost=f"{ROTATED}, those of L and C twice, for two kinds of logits",
)
@dataclass(frozen=True)
class ReRoPE(FixedDistance):
    """Distances of at most w.

    Args:
        distance: w, in tokens. trained: L_train of the query scale, the model's trained window in
            tokens; 0: queries are not scaled.
    """

    distance: int = 512
    trained: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, distance=self.distance)
        if self.trained < 0 or self.trained == 1:
            raise ValueError(f"trained must be 0 or at least 2 tokens, got {self.trained}")

    @property
    def max_distance(self) -> int:
        return self.distance

    def query_scale(self, at: Tensor) -> Tensor | None:
        if not self.trained:
            return None
        return ((at + 1).float().log() / math.log(self.trained)).clamp(min=1.0)


def _recipe(name: str, about: str, source: str, trained: bool) -> None:
    """Full attention with the position encoding of this name; `trained`: it has that setting."""

    def settings(base: Base) -> dict[str, Any]:
        window = {"trained": base.context} if trained else {}
        return everything({"name": name, "factor": whole_stretch(base), **window})

    recipe(name, about=f"full attention, {about}", source=source, cost=FULL_COST, full=True)(
        settings
    )


_recipe("interpolation", "positions divided to fit into the trained window",
        "Chen et al. 2023, position interpolation", trained=False)  # fmt: skip
_recipe("ntk", "a larger rotary base for the document's length",
        "bloc97 2023, NTK-aware scaling", trained=False)  # fmt: skip
_recipe("ntk-dynamic", "a rotary base that grows with the tokens cached",
        "emozilla 2023, dynamic NTK-aware scaling", trained=True)  # fmt: skip
_recipe("yarn", "slow frequencies stretched to the document's length",
        "Peng et al. 2023, YaRN", trained=True)  # fmt: skip

"""Full attention, and position encodings for documents longer than a model's trained window.

For a document s times as long as the trained window, `interpolation` divides all rotary frequencies
by s (Chen et al., 2023), and `yarn` only slow frequencies (Peng et al., 2023). For head dimension
D, `ntk` multiplies the rotary base by s^(D / (D - 2)) (bloc97, 2023). In `ntk-dynamic` the rotary
base grows with the cached tokens (emozilla, 2023). `rerope` limits the distances of tokens (Su,
2023).

Only `interpolation` accepts models whose inverse frequencies are not b^(-2i/D) for a base b. Cached
keys are unrotated, so `ntk-dynamic` rotates all tokens of a step by one base. The ESA paper
compares with NTK without saying whether the base is fixed, as in `ntk`, or dynamic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.parts import Selector, require_at_least
from esa_cli.attention.positions import FixedDistancePositions, TruePositions
from esa_cli.attention.step import Step
from esa_cli.errors import PresetError
from esa_cli.methods.paper import ROTATED
from esa_cli.methods.registry import OWN_SCORE, PresetSizes, Settings, recipe, register

ROOM = 256
"""Number of tokens for the prompt, the question and the answer."""
TOLERANCE = 0.01
"""The largest relative error of a frequency b^(-2i/D); bfloat16 has 0.004, scalings far more."""


@register("selector", "full", about="all middle tokens, whatever the budget")
@dataclass(frozen=True)
class AllTokensSelector(Selector):
    def allowance(self, step: Step, budget: int) -> int:
        return step.middle

    def select(self, step: Step, budget: int) -> Tensor:
        return torch.arange(min(budget, step.middle), device=step.queries.device)


@register(
    "selector", "none", about="no middle tokens: I and L only",
    source="as Xiao et al., StreamingLLM, arXiv 2309.17453", cost="nothing",
)  # fmt: skip
@dataclass(frozen=True)
class NoTokensSelector(Selector):
    def select(self, step: Step, budget: int) -> Tensor:
        return torch.arange(0, device=step.queries.device)


@dataclass(frozen=True)
class StretchedPositions(TruePositions):
    """Base class of position encodings for texts `factor` times as long as the trained window."""

    factor: float = 4.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.factor) and self.factor >= 1):
            raise ValueError(f"factor must be at least 1 and finite, got {self.factor}")


def find_rotary_base(frequencies: Tensor) -> float:
    """Returns the base b of rotary frequencies b^(-2i/D), computed from the last frequency, which
    retains the most digits. Raises PresetError: the frequencies are not b^(-2i/D)."""
    rates = frequencies.tolist()
    dim, last = 2 * len(rates), len(rates) - 1
    if last > 0 and min(rates) > 0:
        base = float(rates[last] ** (-dim / (2 * last)))
        pairs = zip(rates, compute_inverse_frequencies(base, dim), strict=True)
        if base > 1 and all(abs(rate / plain - 1) < TOLERANCE for rate, plain in pairs):
            return base
    raise PresetError(
        "the model's rotary frequencies must be a series b^(-2i/D), but are not; its window may "
        "have been stretched already, or part of a head does not rotate",
        "use the position encoding `true` or `interpolation` with this model",
    )


def compute_inverse_frequencies(rotary_base: float, head_dim: int) -> list[float]:
    """Returns the inverse frequencies b^(-2i/D) of a rotary base b, for i from 0 to D/2 - 1."""
    return [rotary_base ** (-2 * i / head_dim) for i in range(head_dim // 2)]


def _compute_frequencies_of_larger_base(frequencies: Tensor, stretch: float) -> Tensor:
    """Returns frequencies (D / 2,) with a rotary base stretch^(D / (D - 2)) times the given one."""
    dim = 2 * frequencies.shape[0]
    larger = find_rotary_base(frequencies) * stretch ** (dim / (dim - 2))
    return frequencies.new_tensor(compute_inverse_frequencies(larger, dim), dtype=torch.float32)


@register("position", "interpolation", about="true positions, divided by a factor")
@dataclass(frozen=True)
class InterpolatedPositions(StretchedPositions):
    """True positions divided by `factor`, so that a long document fits into the trained window."""

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        return inverse.float() / self.factor, factor


@register("position", "ntk", about="true positions, a larger rotary base")
@dataclass(frozen=True)
class NtkPositions(StretchedPositions):
    """True positions with a larger rotary base, for texts `factor` times the trained window."""

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        return _compute_frequencies_of_larger_base(inverse, self.factor), factor


@register("position", "ntk-dynamic", about="true positions, a base that grows with the text")
@dataclass(frozen=True)
class DynamicNtkPositions(StretchedPositions):
    """True positions with a rotary base that grows as the text exceeds the `trained` window."""

    trained: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, trained=self.trained)

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        find_rotary_base(inverse)  # refuses a model at once, not in mid-document
        if length <= self.trained:
            return inverse, factor
        stretch = self.factor * length / self.trained - (self.factor - 1)
        return _compute_frequencies_of_larger_base(inverse, stretch), factor


@register("position", "yarn", about="true positions, slow frequencies stretched")
@dataclass(frozen=True)
class YarnPositions(StretchedPositions):
    """True positions with YaRN's frequencies, for texts `factor` times the trained window.

    Frequency i is multiplied by gamma_i + (1 - gamma_i) / `factor`. gamma_i falls linearly from 1
    for dimensions that turn `beta_fast` times in `trained` tokens to 0 for `beta_slow` turns.
    Cosines and sines are multiplied by 0.1 ln `factor` + 1."""

    trained: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(1, trained=self.trained)
        if not self.beta_fast >= self.beta_slow > 0:
            raise ValueError(
                f"beta_slow must be above 0 and at most beta_fast, got {self.beta_slow} and "
                f"{self.beta_fast}"
            )

    def compute_uninterpolated_shares(self, rotary_base: float, head_dim: int) -> list[float]:
        """Returns gamma_i, the share of each rotary frequency i that is not interpolated."""

        def find_dimension_with_turns(turn_count: float) -> float:
            ratio = self.trained / (2 * math.pi * turn_count)
            return head_dim * math.log(ratio) / (2 * math.log(rotary_base))

        low: float = max(math.floor(find_dimension_with_turns(self.beta_fast)), 0)
        high: float = min(math.ceil(find_dimension_with_turns(self.beta_slow)), head_dim - 1)
        if low == high:
            high += 0.001  # a step in place of a ramp, without dividing by zero
        ramp = ((i - low) / (high - low) for i in range(head_dim // 2))
        return [1 - min(max(x, 0.0), 1.0) for x in ramp]

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        dim = 2 * inverse.shape[0]
        base = find_rotary_base(inverse)
        shares = self.compute_uninterpolated_shares(base, dim)
        pairs = zip(compute_inverse_frequencies(base, dim), shares, strict=True)
        rates = [rate * (kept + (1 - kept) / self.factor) for rate, kept in pairs]
        temperature = 0.1 * math.log(self.factor) + 1
        return inverse.new_tensor(rates, dtype=torch.float32), factor * temperature


@register(
    "position", "rerope", about="no token further away than a fixed distance",
    source="Su 2023, Rectified Rotary Position Embeddings (ReRoPE)",
    cost=f"{ROTATED}, those of L and C twice, for two kinds of logits",
)  # fmt: skip
@dataclass(frozen=True)
class ReRopePositions(FixedDistancePositions):
    """Positions at which no token is more than `distance` tokens away from a query.

    If `trained` is not 0, query i is multiplied by max(1, ln(i + 1) / ln `trained`), as in the
    original ReRoPE; the ESA paper does not mention this factor."""

    distance: int = 512
    trained: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, distance=self.distance)
        if self.trained < 0 or self.trained == 1:
            raise ValueError(f"trained must be 0 or at least 2 tokens, got {self.trained}")

    @property
    def max_distance(self) -> int:
        return self.distance

    def query_scale(self, at: Tensor) -> Tensor | None:
        if not self.trained:
            return None
        return ((at + 1).float().log() / math.log(self.trained)).clamp(min=1.0)


def _register_full_attention(
    name: str, about: str, source: str, build_position_settings: Settings
) -> None:

    def build_method_settings(preset: PresetSizes) -> dict[str, Any]:
        everything = {"selector": {"name": "full"}, **OWN_SCORE, "reading": "select"}
        return {**everything, "position": build_position_settings(preset)}

    cost = "H C N D: every cached token is attended to"
    about = f"full attention{about}"
    recipe(name, about=about, source=source, cost=cost, full=True)(build_method_settings)


def _stretch(position_name: str, preset: PresetSizes) -> dict[str, Any]:
    """Returns a position encoding whose factor is how many trained windows the text takes."""
    taken = preset.length + ROOM if preset.length else 0
    return {"name": position_name, "factor": float(max(1, math.ceil(taken / preset.context)))}


_register_full_attention("origin", " as the model was trained", "appendix of the ESA paper",
            lambda preset: {"name": "true"})  # fmt: skip
_register_full_attention("full", ", far tokens where the preset's position encoding puts them",
            "Vaswani et al. 2017, Attention Is All You Need, arXiv 1706.03762",
            lambda preset: dict(preset.position))  # fmt: skip
_register_full_attention("interpolation", ", positions divided to fit into the trained window",
            "Chen et al. 2023, position interpolation",
            lambda preset: _stretch("interpolation", preset))  # fmt: skip
_register_full_attention("ntk", ", a larger rotary base for the document's length",
            "bloc97 2023, NTK-aware scaling",
            lambda preset: _stretch("ntk", preset))  # fmt: skip
_register_full_attention("ntk-dynamic", ", a rotary base that grows with the tokens cached",
        "emozilla 2023, dynamic NTK-aware scaling",
        lambda preset: _stretch("ntk-dynamic", preset) | {"trained": preset.context})  # fmt: skip
_register_full_attention("yarn", ", slow frequencies stretched to the document's length",
            "Peng et al. 2023, YaRN",
            lambda preset: _stretch("yarn", preset) | {"trained": preset.context})  # fmt: skip

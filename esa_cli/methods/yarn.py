"""YaRN: fast frequencies kept, slow ones interpolated, a ramp in between, and a temperature.

    c(r)    = D ln(L0 / (2 pi r)) / (2 ln b)           the dimension that turns r times in L0 tokens
    low     = max(floor c(beta_fast), 0)
    high    = min(ceil c(beta_slow), D - 1)
    gamma_i = 1 - clip((i - low) / (high - low), 0, 1)
    theta'_i = theta_i (gamma_i + (1 - gamma_i) / s)
Cosines and sines are multiplied by 0.1 ln s + 1, so logits by its square.
Source: Peng et al., "YaRN", 2023. Bounds are rounded outwards, as transformers does by default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.parts import check_at_least
from esa_cli.attention.positions import ROTATED
from esa_cli.methods.full_attention import FULL_COST, everything, whole_stretch
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import Base, recipe
from esa_cli.methods.rope_interpolation import StretchedPositions, base_of, series


@register(
    "position",
    "yarn",
    about="true positions, slow frequencies stretched",
    source="Peng et al. 2023, YaRN, arXiv 2309.00071",
    cost=ROTATED,
)
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
        made = [rate * (kept + (1 - kept) / self.factor) for rate, kept in pairs]
        temperature = 0.1 * math.log(self.factor) + 1
        return inverse.new_tensor(made, dtype=torch.float32), factor * temperature


@recipe(
    "yarn",
    about="full attention, slow frequencies stretched to the document's length",
    source="Peng et al. 2023, YaRN",
    cost=FULL_COST,
    full=True,
)
def yarn(base: Base) -> dict[str, Any]:
    position = {"name": "yarn", "factor": whole_stretch(base)}
    return everything({**position, "trained": base.context})

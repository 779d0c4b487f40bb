"""NTK-aware scaling: a larger base b', so that slow frequencies are stretched and fast ones kept.

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
"""

from __future__ import annotations

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


def _of_larger_base(base: float, stretch: float, inverse: Tensor) -> Tensor:
    """Inverse frequencies (D / 2,) of b' = base * stretch^(D / (D - 2)), made like `inverse`."""
    dim = 2 * inverse.shape[0]
    larger = base * stretch ** (dim / (dim - 2))
    return inverse.new_tensor(series(larger, dim), dtype=torch.float32)


@register(
    "position",
    "ntk",
    about="true positions, a larger rotary base",
    source="bloc97 2023, NTK-aware scaling",
    cost=ROTATED,
)
@dataclass(frozen=True)
class NTK(StretchedPositions):
    """True positions, the base enlarged for a text `factor` times the trained window.

    Args:
        distance: of far tokens when they are scored. factor: s, at least 1.
    """

    def frequencies(self, inverse: Tensor, factor: float, length: int) -> tuple[Tensor, float]:
        return _of_larger_base(base_of(inverse), self.factor, inverse), factor


@register(
    "position",
    "ntk-dynamic",
    about="true positions, a base that grows with the text",
    source="emozilla 2023, dynamic NTK-aware scaling",
    cost=ROTATED,
)
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


@recipe(
    "ntk",
    about="full attention, a larger rotary base for the document's length",
    source="bloc97 2023, NTK-aware scaling",
    cost=FULL_COST,
    full=True,
)
def ntk(base: Base) -> dict[str, Any]:
    return everything({"name": "ntk", "factor": whole_stretch(base)})


@recipe(
    "ntk-dynamic",
    about="full attention, a rotary base that grows with the tokens cached",
    source="emozilla 2023, dynamic NTK-aware scaling",
    cost=FULL_COST,
    full=True,
)
def ntk_dynamic(base: Base) -> dict[str, Any]:
    position = {"name": "ntk-dynamic", "factor": whole_stretch(base)}
    return everything({**position, "trained": base.context})

"""Position interpolation: all positions, or which is the same all frequencies, divided by s.

Needs no base b, so it also works on a host whose frequencies are scaled already.
Source: Chen et al., "Extending Context Window of Large Language Models via Positional
Interpolation", 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from esa_cli.attention.positions import ROTATED
from esa_cli.methods.origin_positions import FULL_COST, everything, whole_stretch
from esa_cli.methods.recipes import Base, recipe
from esa_cli.methods.registry import register
from esa_cli.methods.stretched import Stretched


@register(
    "position",
    "interpolation",
    about="true positions, divided by a factor",
    source="Chen et al. 2023, position interpolation, arXiv 2306.15595",
    cost=ROTATED,
)
@dataclass(frozen=True)
class Interpolation(Stretched):
    """True positions divided by `factor`.

    Args:
        distance: where a far token is taken to be when it is scored, before the division.
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

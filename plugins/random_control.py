r"""A selector that draws middle tokens at random, as a control in comparisons.

A method that looks at the question must do better than this one at the same budget; what it does
not do better comes from the initial and local tokens, or from the model's memory.

    esa selftest needle --plugin plugins/random_control.py \
        --set answer.from=rows --set selector.name=random-control
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.methods import Selector, Step, register


@register("selector", "random-control", cost="M")
@dataclass(frozen=True)
class RandomControl(Selector):
    """Selects uniformly random middle tokens, drawn anew for each layer and position.

    Args:
        seed: the same seed draws the same tokens, on every machine and device.
    """

    seed: int = 0

    def select(self, step: Step, budget: int) -> Tensor:
        """Returns min(budget, M) random offsets (K,)."""
        generator = torch.Generator()  # of its own: the model's sampling must not change
        generator.manual_seed(((self.seed * 1009 + step.layer) * 1_000_003 + step.start) % 2**63)
        drawn = torch.randperm(step.middle, generator=generator)[: max(budget, 0)]
        return drawn.sort().values.to(step.queries.device)

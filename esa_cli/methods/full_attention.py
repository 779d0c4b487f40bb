"""Selectors that do not choose: `full` takes all of M, `none` takes nothing.

`full` is full attention, for encodings that stretch the window. `none` leaves I and L, for methods
without a memory. Neither looks at a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.methods.registry import register


@register(
    "selector",
    "full",
    about="all middle tokens, whatever the budget",
    source="Vaswani et al. 2017, Attention Is All You Need, arXiv 1706.03762",
    cost="nothing to choose; attention then reads 2 F N",
)
@dataclass(frozen=True)
class Full(Selector):
    """All of M, whatever the budget."""

    def allowance(self, step: Step, budget: int) -> int:
        """M: this method has no budget."""
        return step.middle

    def select(self, step: Step, budget: int) -> Tensor:
        """(M,) offsets, or the first `budget` of them where less is allowed."""
        return torch.arange(min(budget, step.middle), device=step.queries.device)


@register(
    "selector",
    "none",
    about="no middle tokens: I and L only",
    source="as StreamingLLM and LM-Infinite have it",
    cost="nothing",
)
@dataclass(frozen=True)
class Nothing(Selector):
    """No middle token."""

    def select(self, step: Step, budget: int) -> Tensor:
        """(0,) offsets."""
        return torch.arange(0, device=step.queries.device)

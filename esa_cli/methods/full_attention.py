"""Selectors without a score: `full` selects all of M, `none` nothing.

`full` is full attention, for encodings that stretch the window; `none` leaves I and L. Recipes:
`origin` at true positions, `full` at the preset's. The factor s of methods that stretch the window
is the document's length plus 256 tokens in trained windows, rounded up to a whole number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.parts import Selector
from esa_cli.attention.step import Step
from esa_cli.methods.registry import OWN_SCORE, Base, recipe, register


@register("selector", "full", about="all middle tokens, whatever the budget")
@dataclass(frozen=True)
class Full(Selector):
    """All middle tokens, whatever the budget."""

    def allowance(self, step: Step, budget: int) -> int:
        """All of M."""
        return step.middle

    def select(self, step: Step, budget: int) -> Tensor:
        """(M,) offsets, or the first `budget` of them where less is allowed."""
        return torch.arange(min(budget, step.middle), device=step.queries.device)


@register(
    "selector",
    "none",
    about="no middle tokens: I and L only",
    source="as Xiao et al., StreamingLLM, arXiv 2309.17453",
    cost="nothing",
)
@dataclass(frozen=True)
class Nothing(Selector):
    """No middle token."""

    def select(self, step: Step, budget: int) -> Tensor:
        """(0,) offsets."""
        return torch.arange(0, device=step.queries.device)


FULL_COST = "H C N D: every cached token is attended to"
ROOM = 256
"""Tokens for the prompt, the question and the answer."""


def everything(position: dict[str, Any]) -> dict[str, Any]:
    """Settings of full attention with this position encoding."""
    return {"selector": {"name": "full"}, **OWN_SCORE, "position": position, "reading": "select"}


def whole_stretch(base: Base) -> float:
    """s of a recipe: trained windows for the document and ROOM, a whole number."""
    taken = base.length + ROOM if base.length else 0
    return float(max(1, math.ceil(taken / base.context)))


@recipe(
    "origin",
    about="full attention as the model was trained",
    source="appendix of the ESA paper",
    cost=FULL_COST,
    full=True,
)
def origin(base: Base) -> dict[str, Any]:
    return everything({"name": "true"})


@recipe(
    "full",
    about="full attention, far tokens where the preset's position encoding puts them",
    source="Vaswani et al. 2017, Attention Is All You Need, arXiv 1706.03762",
    cost=FULL_COST,
    full=True,
)
def full(base: Base) -> dict[str, Any]:
    return everything(dict(base.position))

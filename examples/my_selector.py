"""The smallest useful selector plugin: evenly spaced tokens, whatever the question.

It is a control: a method that looks at the question should do better than one that does not.

    esa plugins check examples/my_selector.py
    esa ask book.txt "Who is Ahab?" --plugin examples/my_selector.py \\
        --set answer.from=rows --set selector.name=every-nth
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.methods import Selector, Step, register


@register("selector", "every-nth")
@dataclass(frozen=True)
class EveryNth(Selector):
    """Every n-th middle token.

    Args:
        n: the least distance; it is larger when the budget does not reach through the middle.
    """

    n: int = 1

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ValueError("n must be at least 1")

    def select(self, step: Step, budget: int) -> Tensor:
        """(K,) int64 offsets into M: 0, n, 2n, ..., with K <= budget."""
        device = step.queries.device
        if budget <= 0:
            return torch.arange(0, device=device)
        needed = -(-step.middle // budget)  # M / budget, rounded up
        return torch.arange(0, step.middle, max(self.n, needed), device=device)

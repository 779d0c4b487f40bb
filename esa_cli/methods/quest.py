"""Quest: pages of keys for each query head, by an upper bound of the page's best logit.

    u_h(p) = scale * sum over d of max( q_d max_{m in p} k_m,d , q_d min_{m in p} k_m,d )
    choice   for each query head h the floor(budget / page) pages with the highest u_h

q is rotated to the far distance, keys are unrotated; the original's are at their true positions.
Other than there, chunks select, too (`per_head`), and the newest page is not always taken: L is.
Source: Tang et al., arXiv 2406.10774, and its published code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.parts import Selector, check_at_least
from esa_cli.attention.selection import Blocks
from esa_cli.attention.step import Step, tokens_per_block
from esa_cli.methods.paper import far_away
from esa_cli.methods.per_head import BlockRows, best_by_head, tokens_of_blocks
from esa_cli.methods.registry import OWN_SCORE, Base, recipe, register
from esa_cli.storage.memory_store import GrowingRows


@register("selector", "quest", about="pages for each head, by a bound of their logits")
@dataclass(frozen=True)
class Quest(Selector):
    """Whole pages for each query head; fewer than `page` tokens of budget take none.

    Args:
        page: tokens in a page. dense_layers: number of first layers with full attention; the
            original has 2, and at least 3 pages.
    """

    page: int = 16
    dense_layers: int = 0

    def __post_init__(self) -> None:
        check_at_least(1, page=self.page)
        check_at_least(0, dense_layers=self.dense_layers)

    def new_layer_state(self) -> BlockRows:
        return BlockRows()

    def allowance(self, step: Step, budget: int) -> int:
        return step.middle if step.layer < self.dense_layers else budget

    def select(self, step: Step, budget: int) -> Tensor | list[Tensor]:
        """H tensors (K,) of offsets into M."""
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        bounds, pages = self._page_bounds(step), -(-step.middle // self.page)
        chosen = best_by_head(
            lambda: self._upper_bounds(step, bounds), step.queries, pages, budget // self.page
        )
        return [tokens_of_blocks(row, self.page, step.middle) for row in chosen]

    def _page_bounds(self, step: Step) -> GrowingRows:
        """Rows (whole pages, G * 2 D): a page's largest and smallest numbers of each key head."""

        def compute(start: int, count: int) -> Tensor:
            return key_bounds(step.store.span(start, start + count * self.page)[0], self.page)

        rows: BlockRows = step.layer_state(self)
        return rows.extend(step, self.page, 2 * step.store.heads * step.store.dim, compute)

    def _upper_bounds(self, step: Step, bounds: GrowingRows) -> Blocks:
        """Yields (first page, u (H, C, n)); the bounds of a short last page are computed anew."""
        heads, chunk, dim = step.queries.shape
        groups, whole = step.store.heads, step.middle // self.page
        q = step.rotated(True).float() * step.scale
        # max(q a, q b) with a >= b is q a where q > 0, and q b elsewhere.
        both = torch.cat((q.clamp(min=0), q.clamp(max=0)), dim=-1)
        both = both.view(groups, heads // groups * chunk, 2 * dim)

        def multiply(rows: Tensor) -> Tensor:
            pages = rows.float().view(-1, groups, 2 * dim).permute(1, 2, 0)
            return (both @ pages).view(heads, chunk, -1)

        for first, rows in bounds.blocks(0, whole, tokens_per_block(heads * chunk)):
            yield first, multiply(rows)
        if whole * self.page < step.middle:
            keys = step.store.span(step.low + whole * self.page, step.high)[0]
            yield whole, multiply(key_bounds(keys, keys.shape[1]))


def key_bounds(keys: Tensor, page: int) -> Tensor:
    """Returns the largest and smallest numbers (n, G * 2 D) of n pages of keys (G, n * page, D)."""
    pages = keys.reshape(keys.shape[0], -1, page, keys.shape[2])
    both = torch.cat((pages.amax(dim=2), pages.amin(dim=2)), dim=-1)
    return both.transpose(0, 1).flatten(1)


@recipe(
    "quest",
    about="pages of 16 tokens for each head, by an upper bound of their best logit",
    source="Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference, "
    "arXiv 2406.10774",
    cost="2 F M / 16 + 2 F (I + L) + 2 H D K as published; here 2 F M / 16 + 2 F L + 2 H F (I + K)"
    ", as rows of all key heads are read for each query head",
)
def quest(base: Base) -> dict[str, Any]:
    return {
        "selector": {"name": "quest", "page": 16, "dense_layers": 0},
        **OWN_SCORE,
        "position": {"name": "esa", "distance": far_away(base)},
        "reading": "select",
    }

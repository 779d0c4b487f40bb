"""InfLLM: whole blocks, scored by each block's few keys that received most attention.

    r_h(m)   attention that token m received from head h while near      (`infllm_mass`)
    K_h,b    mean of the `representatives` unrotated keys of block b with the highest r_h
    s(b)     sum over h of mean over c of R(q_h,c, n_local - 1) . K_h,b, the same for all heads
    choice   the blocks with the highest s that fit the budget

A block is `block` tokens that have left L, counted from the first token of M. Tokens that do not
fill a block yet are selected as well, within the same budget.

Source: Xiao et al., "InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient
Context Memory", arXiv 2402.04617, and its published code. Unlike the original,
- its local window is n_local tokens for each query; here, as in Eq. (1), all of C attends to all of
  L, and r counts all of it;
- one retrieval serves a chunk of the preset's size (512 there), and windows are the preset's (there
  128 initial, 4096 local, 16 blocks);
- tokens that do not fill a block come on top of its 16 blocks; here they count in the budget;
- a block without r (prefilled with another method) is represented by the mean of all its keys.
n_local - 1 is the position encoding's `distance`, which the recipe sets.

Positions: far queries at n_local - 1, far keys at 0; near ones at true distances. InfLLM cuts its
window off at n_local tokens for each query; here a chunk's last queries attend to near tokens up
to l_C - 1 further away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.interfaces import LayerState, Positions
from esa_cli.attention.parts import Selector, check_at_least
from esa_cli.attention.positions import ROTATED, FixedDistance
from esa_cli.attention.selection import top_k
from esa_cli.attention.step import Step
from esa_cli.methods.blocks import AT_ONCE, BlockRows, tokens_of
from esa_cli.methods.infllm_mass import AttentionMass
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import OWN_SCORE, Base, recipe
from esa_cli.storage.growing_rows import GrowingRows


@dataclass
class InfLLMState(LayerState):
    """Attention that a layer's tokens received, and its blocks' representative keys by settings."""

    mass: AttentionMass | None = None
    keys: dict[tuple[int, int], BlockRows] = field(default_factory=dict)

    def crop(self, length: int) -> None:
        if self.mass is not None:
            self.mass.crop(length)
        for rows in self.keys.values():
            rows.crop(length)


@register(
    "selector",
    "infllm",
    about="whole blocks, by their most attended keys",
    source="Xiao et al., InfLLM, arXiv 2402.04617",
    cost="H D M / block; to observe, F (L + C) once more",
)
@dataclass(frozen=True)
class InfLLM(Selector):
    """The best whole blocks of M, and the tokens after them.

    A budget below `block` has room for the latter only.

    Args:
        block: tokens in a block. representatives: keys of a block that stand for it.
    """

    block: int = 128
    representatives: int = 4

    def __post_init__(self) -> None:
        check_at_least(1, block=self.block, representatives=self.representatives)

    def new_layer_state(self) -> InfLLMState:
        return InfLLMState()

    def observe(self, step: Step) -> None:
        """Adds the attention of the chunk's queries to each token of L and C."""
        state: InfLLMState = step.layer_state(self)
        if state.mass is None:
            rows = GrowingRows(step.queries.shape[0], torch.float32, step.queries.device)
            state.mass = AttentionMass(rows)
        state.mass.add(step)

    def select(self, step: Step, budget: int) -> Tensor:
        """(K,) int64 offsets into M."""
        device, middle = step.queries.device, step.middle
        if budget >= middle:
            return torch.arange(middle, device=device)
        left = min(middle % self.block, budget)
        rest = torch.arange(middle - left, middle, device=device)
        count = (budget - left) // self.block
        if not count or middle < self.block:
            return rest
        blocks = top_k(self._scores(step), count)
        return torch.cat((tokens_of(blocks, self.block, middle), rest))

    def _scores(self, step: Step) -> Tensor:
        """s (n,) of every whole block of M."""
        heads, _, dim = step.queries.shape
        mean = step.rotated(True).float().mean(dim=1)
        whole, parts = step.middle // self.block, []
        for _, rows in self._keys(step).blocks(0, whole, AT_ONCE):
            by_head = (rows.float().view(-1, heads, dim) * mean).sum(dim=2).T
            parts.append(by_head.sum(dim=0))
        return torch.cat(parts)

    def _keys(self, step: Step) -> GrowingRows:
        """K, rows (at least the whole blocks of M, H * D).

        A block that left L receives no more. After a crop it may be in L again: computed anew.
        """
        heads, _, dim = step.queries.shape
        state: InfLLMState = step.layer_state(self)
        rows = state.keys.setdefault((self.block, self.representatives), BlockRows())

        def made(start: int, count: int) -> Tensor:
            stop = start + count * self.block
            keys = step.store.span(start, stop)[0].reshape(-1, count, self.block, dim)
            r = None if state.mass is None else state.mass.of(start, stop)
            return self._represent(keys, r, heads)

        return rows.of(step, self.block, heads * dim, made, settled=step.local)

    def _represent(self, keys: Tensor, r: Tensor | None, heads: int) -> Tensor:
        """K (n, H * D) of n blocks of `block` tokens, keys (G, n, block, D), r (n * block, H)."""
        groups, count, size, dim = keys.shape
        share = heads // groups
        mean = keys.float().mean(dim=2).repeat_interleave(share, dim=0)
        if r is None:
            return mean.transpose(0, 1).flatten(1)
        r = r.view(count, size, groups, share).permute(2, 3, 0, 1)
        best = r.topk(min(self.representatives, size), dim=3).indices
        best = best[..., None].expand(-1, -1, -1, -1, dim)
        most = keys[:, None].expand(-1, share, -1, -1, -1).gather(3, best).float().mean(dim=3)
        known = r.amax(dim=(0, 1, 3))[:, None] > 0
        picked = torch.where(known, most.flatten(0, 1), mean)
        return picked.transpose(0, 1).flatten(1)


@recipe(
    "infllm",
    about="blocks of 128 tokens, by their most attended keys; all far tokens at one distance",
    source="Xiao et al., InfLLM: Training-Free Long-Context Extrapolation for LLMs with an "
    "Efficient Context Memory, arXiv 2402.04617",
    cost=f"H D M / 128 + {ATTENDED}",
)
def infllm(base: Base) -> dict[str, Any]:
    memory = {"block": 128, "representatives": 4}
    return {
        "selector": {"name": "infllm", **memory},
        **OWN_SCORE,
        "position": {"name": "infllm", "distance": max(base.window.local - 1, 0)},
        "reading": "select",
    }


@register(
    "position",
    "infllm",
    about="far tokens at one distance, the last inside L",
    source="Xiao et al., InfLLM, arXiv 2402.04617",
    cost=ROTATED,
)
@dataclass(frozen=True)
class InfLLMPositions(FixedDistance):
    """Far queries at l_L - 1 and far keys at 0, near ones in order.

    Args:
        distance: of far tokens when they are scored; InfLLM scores at n_local - 1.
    """

    distance: int = 4095

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return FixedDistance(max(local - 1, 0)).far(at, local, chunk, start)

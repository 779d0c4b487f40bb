"""InfLLM: whole blocks, scored by each block's few keys that received most attention.

    r_h(m)   attention that token m received from head h while near
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

The attention that every token received while it was near is summed over queries:

    r_h(m) = sum over queries c, while m is in L or C, of exp( scale * R(q_h,c) . R(k_m) - lse_h,c )

lse is the log-sum-exp of the whole attention, far tokens included, so r sums shares of one softmax.
Distances are the true ones, as position encodings have them for L and C.

r cannot be computed again, because the queries are not stored. So r of L before each of the last
chunks is kept, and restored when tokens are cropped to the start of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.algebra import soft_capped
from esa_cli.attention.parts import Selector, check_at_least
from esa_cli.attention.positions import FixedDistance
from esa_cli.attention.selection import top_k
from esa_cli.attention.step import LayerState, Positions, Step, tokens_per_block
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.per_head import AT_ONCE, BlockRows, tokens_of
from esa_cli.methods.registry import OWN_SCORE, Base, recipe, register
from esa_cli.storage.memory_store import GrowingRows

KEPT_CHUNKS = 8
"""Chunks that can be cropped exactly; a question is one or two."""
OBSERVED_AT_ONCE = 8192
"""Tokens whose r is added at once."""


def chunk_mass(step: Step) -> Tensor:
    """Attention of the chunk to each token of L and C, (H, L + C), for a step with its `lse`."""
    assert step.lse is not None, "observe needs a step with lse"
    heads, chunk, dim = step.queries.shape
    first, stop = step.start - step.local, step.start + chunk
    device, groups = step.queries.device, step.store.heads
    own = torch.arange(step.local, step.local + chunk, device=device)
    q = (step.rope.rotate(step.queries, own) * step.scale).float()
    q = q.reshape(groups, heads // groups * chunk, dim)
    out = torch.empty(heads, stop - first, device=device)
    for start, keys in step.store.key_blocks(first, stop, tokens_per_block(heads * chunk)):
        at = torch.arange(start - first, start - first + keys.shape[1], device=device)
        logits = soft_capped(q @ step.rope.rotate(keys, at).float().transpose(1, 2), step.cap)
        shares = torch.exp(logits.view(heads, chunk, -1) - step.lse[..., None])
        shares = shares.masked_fill_(at > own[:, None], 0.0)
        out[:, start - first : start - first + keys.shape[1]] = shares.sum(dim=1)
    return out


@dataclass(frozen=True)
class MassBefore:
    """r (n, H) of the n tokens before `start`, without the chunk that begins there."""

    start: int
    before: Tensor


@dataclass
class AttentionMass:
    """r of every token, rows (N, H) float32; zero where nothing was observed."""

    rows: GrowingRows
    before_chunks: list[MassBefore] = field(default_factory=list)
    answering: bool = False

    @torch.no_grad()
    def add(self, step: Step) -> None:
        """Adds the attention of the step's chunk; once, however many selectors observe it."""
        first, stop = step.start - step.local, step.start + step.queries.shape[1]
        if stop <= self.rows.length:
            return
        shares = chunk_mass(step).T
        missing = stop - self.rows.length
        if missing > 0:
            self.rows.append(shares.new_zeros(missing, self.rows.width))
        if not (self.answering and step.decoding):
            earlier = [mass for mass in self.before_chunks if mass.start < step.start]
            before = self.rows.span(first, step.start).clone()
            self.before_chunks = [*earlier, MassBefore(step.start, before)][-KEPT_CHUNKS:]
        self.answering = step.decoding
        for at, view in self.rows.blocks(first, stop, OBSERVED_AT_ONCE):
            view += shares[at - first : at - first + view.shape[0]]

    @torch.no_grad()
    def crop(self, length: int) -> None:
        """Keeps `length` tokens, and takes off the later ones' attention where it is known."""
        self.rows.truncate(length)
        self.before_chunks = [mass for mass in self.before_chunks if mass.start <= length]
        self.answering = False
        if self.before_chunks and self.before_chunks[-1].start == length:
            before = self.before_chunks[-1].before
            first = length - before.shape[0]
            for at, view in self.rows.blocks(first, length, OBSERVED_AT_ONCE):
                view.copy_(before[at - first : at - first + view.shape[0]])

    def of(self, start: int, stop: int) -> Tensor:
        """r (stop - start, H) of the tokens [start, stop)."""
        out = torch.zeros(stop - start, self.rows.width, device=self.rows.device)
        known = min(stop, self.rows.length)
        if known > start:
            out[: known - start] = self.rows.span(start, known)
        return out


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


@register("selector", "infllm", about="whole blocks, by their most attended keys")
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

        def representatives(start: int, count: int) -> Tensor:
            stop = start + count * self.block
            keys = step.store.span(start, stop)[0].reshape(-1, count, self.block, dim)
            r = None if state.mass is None else state.mass.of(start, stop)
            return self._represent(keys, r, heads)

        return rows.of(step, self.block, heads * dim, representatives, settled=step.local)

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


@register("position", "infllm", about="far tokens at one distance, the last inside L")
@dataclass(frozen=True)
class InfLLMPositions(FixedDistance):
    """Far queries at l_L - 1 and far keys at 0, near ones in order.

    Args:
        distance: of far tokens when they are scored; InfLLM scores at n_local - 1.
    """

    distance: int = 4095

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return FixedDistance(max(local - 1, 0)).far(at, local, chunk, start)

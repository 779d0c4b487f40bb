"""InfLLM selects whole blocks of tokens by the keys of each block with most attention received.

    r_h(m)   attention that token m received from head h while in L or C, at its true distance:
             sum over queries c of exp( scale * R(q_h,c) · R(k_m) - lse_h,c )
    K_h,b    mean of the `representatives` unrotated keys of block b with the highest r_h
    s(b)     sum over h of mean over c of R(q_h,c, n_local - 1) · K_h,b, the same for all heads
    choice   the blocks with the highest s that fit the budget, and the tokens after them

A block is `block` tokens that have left L, counted from the first token of M. n_local - 1 is the
position encoding's `distance`, which the recipe sets. Unlike in the published code, the preset
decides chunks and windows, and a block without r has the mean of all keys of the block. Source:
Xiao et al., arXiv 2402.04617."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.algebra import apply_soft_cap
from esa_cli.attention.parts import Selector, check_minimum
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.selection import top_k
from esa_cli.attention.step import LayerState, Positions, Step, choose_tokens_per_block
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.per_head import TOKENS_AT_ONCE, BlockRowCache, list_block_tokens
from esa_cli.methods.registry import OWN_SCORE, Base, recipe, register
from esa_cli.storage.memory_store import GrowingRowMatrix

KEPT_CHUNKS = 8
"""The number of last chunks that can be cropped exactly; a question has one or two chunks."""
TOKENS_ADDED_AT_ONCE = 8192


def sum_attention_weights(step: Step) -> Tensor:
    """Sums the attention weights of a chunk's queries for each token of L and C, as (H, L + C)."""
    assert step.lse is not None, "observe needs a step with lse"
    heads, chunk, dim = step.queries.shape
    first, stop = step.start - step.local, step.start + chunk
    device, groups = step.queries.device, step.store.heads
    own = torch.arange(step.local, step.local + chunk, device=device)
    q = (step.rope.rotate(step.queries, own) * step.scale).float()
    q = q.reshape(groups, heads // groups * chunk, dim)
    out = torch.empty(heads, stop - first, device=device)
    for start, keys in step.store.key_blocks(first, stop, choose_tokens_per_block(heads * chunk)):
        at = torch.arange(start - first, start - first + keys.shape[1], device=device)
        logits = apply_soft_cap(q @ step.rope.rotate(keys, at).float().transpose(1, 2), step.cap)
        shares = torch.exp(logits.view(heads, chunk, -1) - step.lse[..., None])
        shares = shares.masked_fill_(at > own[:, None], 0.0)
        out[:, start - first : start - first + keys.shape[1]] = shares.sum(dim=1)
    return out


@dataclass
class ReceivedAttention:
    """The attention r that every token received from each head, as numbers (N, H).

    r cannot be computed again, because queries are not stored. So `before_chunks` caches r (n, H)
    of the n tokens before each of the last chunks, and cropping tokens restores it."""

    rows: GrowingRowMatrix
    before_chunks: dict[int, Tensor] = field(default_factory=dict)
    answering: bool = False

    @torch.no_grad()
    def add_chunk_attention(self, step: Step) -> None:
        """Adds the attention of a step's chunk, once even if several selectors observe the step."""
        first, stop = step.start - step.local, step.start + step.queries.shape[1]
        if stop <= self.rows.length:
            return
        shares = sum_attention_weights(step).T
        self.rows.append_rows(shares.new_zeros(stop - self.rows.length, self.rows.width))
        if not (self.answering and step.decoding):
            kept = {start: r for start, r in self.before_chunks.items() if start < step.start}
            kept[step.start] = self.rows.get_row_range(first, step.start).clone()
            self.before_chunks = dict([*kept.items()][-KEPT_CHUNKS:])
        self.answering = step.decoding
        for at, view in self.rows.get_blocks(first, stop, TOKENS_ADDED_AT_ONCE):
            view += shares[at - first : at - first + view.shape[0]]

    @torch.no_grad()
    def crop(self, length: int) -> None:
        """Retains the first `length` tokens, and subtracts attention of later tokens if known."""
        self.rows.truncate_rows(length)
        self.before_chunks = {at: r for at, r in self.before_chunks.items() if at <= length}
        self.answering = False
        if (before := self.before_chunks.get(length)) is not None:
            first = length - before.shape[0]
            for at, view in self.rows.get_blocks(first, length, TOKENS_ADDED_AT_ONCE):
                view.copy_(before[at - first : at - first + view.shape[0]])

    def load_received_attention(self, start: int, stop: int) -> Tensor:
        """Returns the attention r (stop - start, H) that the tokens [start, stop) received."""
        out = torch.zeros(stop - start, self.rows.width, device=self.rows.device)
        known = min(stop, self.rows.length)
        if known > start:
            out[: known - start] = self.rows.get_row_range(start, known)
        return out


@dataclass
class InfLLMState(LayerState):
    """The attention that a layer's tokens received, and the representative keys of its blocks."""

    mass: ReceivedAttention | None = None
    keys: dict[tuple[int, int], BlockRowCache] = field(default_factory=dict)

    def crop(self, length: int) -> None:
        if self.mass is not None:
            self.mass.crop(length)
        for rows in self.keys.values():
            rows.crop(length)


@register("selector", "infllm", about="whole blocks, by their most attended keys")
@dataclass(frozen=True)
class InfLLMSelector(Selector):
    """Selects the best whole blocks of `block` tokens, scored by `representatives` keys of each
    block, and the tokens after the last whole block."""

    block: int = 128
    representatives: int = 4

    def __post_init__(self) -> None:
        check_minimum(1, block=self.block, representatives=self.representatives)

    def new_layer_state(self) -> InfLLMState:
        return InfLLMState()

    def observe(self, step: Step) -> None:
        state: InfLLMState = step.layer_state(self)
        if state.mass is None:
            rows = GrowingRowMatrix(step.queries.shape[0], torch.float32, step.queries.device)
            state.mass = ReceivedAttention(rows)
        state.mass.add_chunk_attention(step)

    def select(self, step: Step, budget: int) -> Tensor:
        device, middle = step.queries.device, step.middle
        if budget >= middle:
            return torch.arange(middle, device=device)
        left = min(middle % self.block, budget)
        rest = torch.arange(middle - left, middle, device=device)
        count = (budget - left) // self.block
        if not count or middle < self.block:
            return rest
        blocks = top_k(self._score_blocks(step), count)
        return torch.cat((list_block_tokens(blocks, self.block, middle), rest))

    def _score_blocks(self, step: Step) -> Tensor:
        """Returns the score s of every whole block of middle tokens, as a tensor (n,)."""
        heads, _, dim = step.queries.shape
        mean = step.rotated(True).float().mean(dim=1)
        state: InfLLMState = step.layer_state(self)
        keys = state.keys.setdefault((self.block, self.representatives), BlockRowCache())

        def average_keys(start: int, count: int) -> Tensor:
            stop = start + count * self.block
            keys = step.store.span(start, stop)[0].reshape(-1, count, self.block, dim)
            r = None if state.mass is None else state.mass.load_received_attention(start, stop)
            return self._average_representative_keys(keys, r, heads)

        # A block that left L receives no more. After a crop it may be in L again: computed anew.
        rows = keys.extend_rows(step, self.block, heads * dim, average_keys, lookahead=step.local)
        scores = []
        for _, block in rows.get_blocks(0, step.middle // self.block, TOKENS_AT_ONCE):
            by_head = (block.float().view(-1, heads, dim) * mean).sum(dim=2).T
            scores.append(by_head.sum(dim=0))
        return torch.cat(scores)

    def _average_representative_keys(self, keys: Tensor, r: Tensor | None, heads: int) -> Tensor:
        """Returns K (n, H * D) of n blocks with keys (G, n, block, D) and r (n * block, H)."""
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
def build_infllm_settings(base: Base) -> dict[str, Any]:
    selector = {"name": "infllm", "block": 128, "representatives": 4}
    position = {"name": "infllm", "distance": max(base.window.local - 1, 0)}
    return {"selector": selector, **OWN_SCORE, "position": position, "reading": "select"}


@register("position", "infllm", about="far tokens at one distance, the last inside L")
@dataclass(frozen=True)
class InfLLMPositions(FixedDistancePositions):
    """Places far queries at l_L - 1, far keys at 0, and near tokens in order; scores place far
    tokens at `distance`, which the recipe sets to n_local - 1."""

    distance: int = 4095

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return FixedDistancePositions(max(local - 1, 0)).far(at, local, chunk, start)

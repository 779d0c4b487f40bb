"""The method InfLLM (Xiao et al., arXiv 2402.04617), which selects whole blocks of middle tokens.

A block's representatives are, for each head, the unrotated keys that received most attention while
their tokens were local or current. A block's score is the sum over heads of the mean over queries
of q · K, where K is the mean of the representatives and q is rotated to the position encoding's
`distance`. InfLLM selects the blocks with the highest scores that fit the budget, and the middle
tokens after the last whole block. Unlike in InfLLM's published code, the preset decides chunks and
windows, and a block without received attention is represented by the mean of all its keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.algebra import apply_soft_cap, concat_key_heads
from esa_cli.attention.parts import Selector, require_at_least
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.selection import top_k
from esa_cli.attention.step import LayerState, Positions, Step, choose_tokens_per_block
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.per_head import TOKENS_AT_ONCE, KeyBlockCache, list_block_tokens
from esa_cli.methods.registry import OWN_SCORE, PresetSizes, recipe, register
from esa_cli.storage.memory_store import GrowingRowMatrix

KEPT_CHUNKS = 8
"""The number of last chunks that can be cropped exactly; a question has one or two chunks."""


def sum_attention_weights(step: Step) -> Tensor:
    """Returns the sums (H, L + C) of a chunk's attention weights for local and current tokens."""
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
    """The sums of the attention weights that N tokens received from H heads, as numbers (N, H).

    As queries are not stored, `before_chunks` has the sums before the last chunks, for crops."""

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
        for at, view in self.rows.iterate_row_blocks(first, stop, TOKENS_AT_ONCE):
            view += shares[at - first : at - first + view.shape[0]]

    @torch.no_grad()
    def crop(self, length: int) -> None:
        """Removes tokens and, if known, the attention that others received from them."""
        self.rows.truncate_rows(length)
        self.before_chunks = {at: r for at, r in self.before_chunks.items() if at <= length}
        self.answering = False
        if (before := self.before_chunks.get(length)) is not None:
            first = length - before.shape[0]
            for at, view in self.rows.iterate_row_blocks(first, length, TOKENS_AT_ONCE):
                view.copy_(before[at - first : at - first + view.shape[0]])

    def get_received_attention(self, first_position: int, end_position: int) -> Tensor:
        """Returns the sums (n, H) of the weights received by n tokens from `first_position` on."""
        out = torch.zeros(end_position - first_position, self.rows.width, device=self.rows.device)
        known = min(end_position, self.rows.length)
        if known > first_position:
            out[: known - first_position] = self.rows.get_row_range(first_position, known)
        return out


@dataclass
class InfLLMLayerState(LayerState):
    """The attention that a layer's tokens received, and the representative keys of blocks."""

    mass: ReceivedAttention | None = None
    keys: dict[tuple[int, int], KeyBlockCache] = field(default_factory=dict)

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
        require_at_least(1, block=self.block, representatives=self.representatives)

    def new_layer_state(self) -> InfLLMLayerState:
        return InfLLMLayerState()

    def observe(self, step: Step) -> None:
        state: InfLLMLayerState = step.layer_state(self)
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
        """Returns the scores (n,) of the n whole blocks of middle tokens."""
        heads, _, dim = step.queries.shape
        mean = step.rotated(True).float().mean(dim=1)
        state: InfLLMLayerState = step.layer_state(self)
        cache = state.keys.setdefault((self.block, self.representatives), KeyBlockCache())

        def average_block_keys(keys: Tensor, first: int) -> Tensor:
            mass, stop = state.mass, first + keys.shape[1]
            received = None if mass is None else mass.get_received_attention(first, stop)
            blocks = keys.reshape(len(keys), -1, self.block, dim)
            return self._average_representative_keys(blocks, received, heads)

        # A block that left L receives no more. After a crop it may be in L again: computed anew.
        options = (step, self.block, heads * dim, average_block_keys)
        rows = cache.extend_cache(*options, lookahead=step.local)
        blocks = rows.iterate_row_blocks(0, step.middle // self.block, TOKENS_AT_ONCE)
        each = ((block.float().view(-1, heads, dim) * mean).sum(dim=2).T for _, block in blocks)
        return torch.cat([by_head.sum(dim=0) for by_head in each])

    def _average_representative_keys(
        self, keys: Tensor, received_attention: Tensor | None, head_count: int
    ) -> Tensor:
        """Returns the means (n, H * D) of the most attended keys of n blocks (G, n, block, D)."""
        groups, count, size, dim = keys.shape
        share = head_count // groups
        mean = keys.float().mean(dim=2).repeat_interleave(share, dim=0)
        if (r := received_attention) is None:
            return concat_key_heads(mean)
        r = r.view(count, size, groups, share).permute(2, 3, 0, 1)
        best = r.topk(min(self.representatives, size), dim=3).indices
        best = best[..., None].expand(-1, -1, -1, -1, dim)
        most = keys[:, None].expand(-1, share, -1, -1, -1).gather(3, best).float().mean(dim=3)
        known = r.amax(dim=(0, 1, 3))[:, None] > 0
        return concat_key_heads(torch.where(known, most.flatten(0, 1), mean))


@recipe(
    "infllm",
    about="blocks of 128 tokens, by their most attended keys; all far tokens at one distance",
    source="Xiao et al., InfLLM: Training-Free Long-Context Extrapolation for LLMs with an "
    "Efficient Context Memory, arXiv 2402.04617",
    cost=f"H D M / 128 + {ATTENDED}",
)
def build_infllm_settings(preset: PresetSizes) -> dict[str, Any]:
    selector = {"name": "infllm", "block": 128, "representatives": 4}
    position = {"name": "infllm", "distance": max(preset.window.local - 1, 0)}
    return {"selector": selector, **OWN_SCORE, "position": position, "reading": "select"}


@register("position", "infllm", about="far tokens at one distance, the last inside L")
@dataclass(frozen=True)
class InfLLMPositions(FixedDistancePositions):
    """Places far tokens at the distance of the farthest local token, and near tokens in order."""

    distance: int = 4095

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return FixedDistancePositions(max(local - 1, 0)).far(at, local, chunk, start)

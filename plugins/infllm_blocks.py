"""InfLLM's block memory as a selector: whole blocks, found by a few representative keys each.

    r_h,m   attention that token m received from head h while m was near         (observe)
    K_h,b   mean of block b's `representatives` unrotated keys with the highest r_h
    s_b     sum over heads of mean over the chunk of R(q_h,c, far distance) . K_h,b
    choice  the floor(budget / block) blocks with the highest s_b

A worked example of a selector that watches attention; `esa_cli/methods/infllm.py` is the exact
method. Source: Xiao et al., "InfLLM", arXiv 2402.04617. What is simpler here:
- M is cut from its first token on, so its last block may be short; there it would still be local;
- one retrieval serves a chunk of the preset's size, not 512 tokens;
- distances come from the preset's position encoding (the original's is `infllm`);
- one head after the other is looked at;
- what a question's tokens gave to document tokens that were near it stays in r after the question
  is taken back.

r lies in the store's memo and is cut with the tokens that are taken back. It cannot be recomputed:
the queries are gone. A block for which no r is known is represented by the mean of all its keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.selection import top_k
from esa_cli.attention.step import Step
from esa_cli.methods.registry import register

RECEIVED = "infllm-blocks.received"
KEYS = "infllm-blocks.keys"


@register("selector", "infllm-blocks")
@dataclass(frozen=True)
class InfLLMBlocks:
    """The best blocks of M, all their tokens; fewer than `block` tokens of budget take none.

    Args:
        block: tokens per block. representatives: keys of a block that stand for it.
    """

    block: int = 128
    representatives: int = 4

    def __post_init__(self) -> None:
        if self.block < 1 or self.representatives < 1:
            raise ValueError("block and representatives must be at least 1")

    def observe(self, step: Step) -> None:
        """Adds what the chunk's queries (H, C, D) give to each token of L and C."""
        first, stop = step.start - step.local, step.start + step.queries.shape[1]
        given = _given(step, first, stop)
        received = step.store.memo.setdefault(
            RECEIVED, Received(given.new_zeros(given.shape[0], 0))
        )
        received.add(first, stop, given)

    def select(self, step: Step, budget: int) -> Tensor:
        """(K,) int64 offsets into M: the tokens of floor(budget / block) blocks."""
        device = step.queries.device
        if budget >= step.middle:
            return torch.arange(step.middle, device=device)
        mean = step.rotated(True).float().mean(dim=1)
        scores = torch.einsum("hd,bhd->b", mean, self._block_keys(step))
        chosen = top_k(scores, budget // self.block)
        tokens = chosen[:, None] * self.block + torch.arange(self.block, device=device)
        return tokens[tokens < step.middle]

    def _block_keys(self, step: Step) -> Tensor:
        """Representative keys (blocks, H, D) of M; those of full blocks are kept in the memo.

        The r of a full block is final: its tokens are before L and receive no more.
        """
        low, full = step.low, step.middle // self.block
        kept = step.store.memo.get(KEYS)
        known: Tensor | None = None
        if kept is not None and kept[0] == (low, self):
            known = kept[1][:full]
        done = 0 if known is None else known.shape[0]
        new = [
            self._represent(step, low + b * self.block, low + (b + 1) * self.block)
            for b in range(done, full)
        ]
        parts = ([] if known is None else [known]) + ([torch.stack(new)] if new else [])
        if new:
            step.store.memo[KEYS] = ((low, self), torch.cat(parts))
        if full * self.block < step.middle:
            parts.append(self._represent(step, low + full * self.block, step.high)[None])
        return torch.cat(parts)

    def _represent(self, step: Step, start: int, stop: int) -> Tensor:
        """The key (H, D) that stands for the tokens [start, stop) to each query head."""
        heads = step.queries.shape[0]
        keys = step.store.span(start, stop)[0].float()
        keys = keys.repeat_interleave(heads // keys.shape[0], dim=0)
        known: Received | None = step.store.memo.get(RECEIVED)
        if known is None or not known.given[:, start:stop].any():
            return keys.mean(dim=1)
        count = min(self.representatives, stop - start)
        best = known.given[:, start:stop].topk(count, dim=1).indices
        return keys.gather(1, best[..., None].expand(-1, -1, keys.shape[2])).mean(dim=1)


def _given(step: Step, first: int, stop: int) -> Tensor:
    """Attention (H, n) that each token of [first, stop) receives from the chunk, causally."""
    assert step.lse is not None, "observe comes after attention"
    heads = step.queries.shape[0]
    keys = step.store.span(first, stop)[0]
    places = torch.arange(stop - first, device=keys.device)
    queries = step.rope.rotate(step.queries, places[step.local :]).float()
    keys = step.rope.rotate(keys, places).float()
    hidden = places > places[step.local :, None]
    given = queries.new_empty(heads, stop - first)
    # One head at a time: all of them at once would be H x C x (L + C) numbers.
    for head in range(heads):
        logits = queries[head] @ keys[head * keys.shape[0] // heads].T * step.scale
        shares = torch.exp(logits - step.lse[head, :, None]).masked_fill_(hidden, 0.0)
        given[head] = shares.sum(dim=0)
    return given


@dataclass
class Received:
    """r (H, capacity), zero where nothing was received; cut when tokens are taken back."""

    given: Tensor

    def add(self, first: int, stop: int, given: Tensor) -> None:
        """Adds what the tokens [first, stop) received, (H, stop - first)."""
        old = self.given
        if old.shape[1] < stop:
            # Outside inference mode, so that it can be cut and filled outside, too.
            with torch.inference_mode(False):
                shape = (old.shape[0], max(stop, 2 * old.shape[1]))
                self.given = torch.zeros(shape, dtype=old.dtype, device=old.device)
            self.given[:, : old.shape[1]] = old
        self.given[:, first:stop] += given

    def truncate(self, length: int) -> None:
        self.given[:, length:] = 0

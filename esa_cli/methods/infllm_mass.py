"""Attention that every token received while it was near: the r of InfLLM.

    r_h(m) = sum over queries c, while m is in L or C, of exp( scale * R(q_h,c) . R(k_m) - lse_h,c )

lse is the log-sum-exp of the whole attention, far tokens included, so r sums shares of one softmax.
Distances are the true ones, as position encodings have them for L and C.

r cannot be computed again, because the queries are not stored. So r of L before each of the last
chunks is kept, and restored when tokens are cropped to the start of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esa_cli.attention.cap_and_sink import soft_capped
from esa_cli.attention.step import Step
from esa_cli.methods.per_head_scores import most_at_once
from esa_cli.storage.growing_rows import GrowingRows

KEPT_CHUNKS = 8
"""Chunks that can be cropped exactly; a question is one or two."""
AT_ONCE = 8192
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
    for start, keys in step.store.key_blocks(first, stop, most_at_once(heads * chunk)):
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
            kept = [one for one in self.before_chunks if one.start < step.start]
            before = self.rows.span(first, step.start).clone()
            self.before_chunks = [*kept, MassBefore(step.start, before)][-KEPT_CHUNKS:]
        self.answering = step.decoding
        for at, view in self.rows.blocks(first, stop, AT_ONCE):
            view += shares[at - first : at - first + view.shape[0]]

    @torch.no_grad()
    def crop(self, length: int) -> None:
        """Keeps `length` tokens, and takes off the later ones' attention where it is known."""
        self.rows.truncate(length)
        self.before_chunks = [one for one in self.before_chunks if one.start <= length]
        self.answering = False
        if self.before_chunks and self.before_chunks[-1].start == length:
            before = self.before_chunks[-1].before
            first = length - before.shape[0]
            for at, view in self.rows.blocks(first, length, AT_ONCE):
                view.copy_(before[at - first : at - first + view.shape[0]])

    def of(self, start: int, stop: int) -> Tensor:
        """r (stop - start, H) of the tokens [start, stop)."""
        out = torch.zeros(stop - start, self.rows.width, device=self.rows.device)
        known = min(stop, self.rows.length)
        if known > start:
            out[: known - start] = self.rows.span(start, known)
        return out

"""How much attention every token got while it was near: the r of InfLLM.

    r_h(m) = sum over queries c, while m is in L or C, of exp( scale * R(q_h,c) . R(k_m) - lse_h,c )

lse is the log-sum-exp of all that the query attended to, far tokens included, so r sums shares of
one softmax. Distances are the true ones, as position encodings have them for L and C.

r cannot be worked out again: the queries are gone. So what L had before each of the last chunks is
kept, and comes back when tokens are taken back up to the start of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esa_cli.attention.step import Step
from esa_cli.methods.per_head_scores import most_at_once
from esa_cli.storage.growing_rows import GrowingRows

MARKS = 8
"""Chunks that can be taken back exactly; a question is one or two."""
AT_ONCE = 8192


def given(step: Step) -> Tensor:
    """What the chunk gives to each token of L and C, (H, L + C), for a step with its `lse`."""
    assert step.lse is not None, "attention comes before observe"
    heads, chunk, dim = step.queries.shape
    first, stop = step.start - step.local, step.start + chunk
    device, groups = step.queries.device, step.store.heads
    own = torch.arange(step.local, step.local + chunk, device=device)
    q = (step.rope.rotate(step.queries, own) * step.scale).float()
    q = q.reshape(groups, heads // groups * chunk, dim)
    out = torch.empty(heads, stop - first, device=device)
    for start, keys in step.store.key_blocks(first, stop, most_at_once(heads * chunk)):
        at = torch.arange(start - first, start - first + keys.shape[1], device=device)
        logits = q @ step.rope.rotate(keys, at).float().transpose(1, 2)
        shares = torch.exp(logits.view(heads, chunk, -1) - step.lse[..., None])
        shares = shares.masked_fill_(at > own[:, None], 0.0)
        out[:, start - first : start - first + keys.shape[1]] = shares.sum(dim=1)
    return out


@dataclass(frozen=True)
class MassBefore:
    """r (n, H) of the n tokens before `start`, before the chunk that begins there was read."""

    start: int
    before: Tensor


@dataclass
class AttentionMass:
    """r of every token, rows (N, H) float32; zero where nothing was observed."""

    rows: GrowingRows
    marks: list[MassBefore] = field(default_factory=list)
    answering: bool = False

    @torch.no_grad()
    def add(self, step: Step) -> None:
        """Adds what the step's chunk gives; once, however many selectors look on."""
        first, stop = step.start - step.local, step.start + step.queries.shape[1]
        if stop <= self.rows.length:
            return
        shares = given(step).T
        missing = stop - self.rows.length
        if missing > 0:
            self.rows.append(shares.new_zeros(missing, self.rows.width))
        if not (self.answering and step.decoding):
            kept = [mark for mark in self.marks if mark.start < step.start]
            before = self.rows.span(first, step.start).clone()
            self.marks = [*kept, MassBefore(step.start, before)][-MARKS:]
        self.answering = step.decoding
        for at, view in self.rows.blocks(first, stop, AT_ONCE):
            view += shares[at - first : at - first + view.shape[0]]

    @torch.no_grad()
    def crop(self, length: int) -> None:
        """Keeps `length` tokens; what later ones gave them goes, where a mark is there for it."""
        self.rows.truncate(length)
        self.marks = [mark for mark in self.marks if mark.start <= length]
        self.answering = False
        if self.marks and self.marks[-1].start == length:
            before = self.marks[-1].before
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

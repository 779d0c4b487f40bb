"""Attention weights of the documents' tokens for one question and its answer.

Probabilities are computed again from each chunk's trace, exp(scale * q . k - lse), at the positions
of the encoding. A token's weight in a layer is the maximum over heads and over the tokens of the
question, or of the answer, of probability times the norm of its value (Kobayashi et al., "Attention
is Not Only a Weight", 2020), norms as multiples of their mean. Its weight is the mean over the
middle half of the layers; benchmarks/NOTES.md has the measurements behind this rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.cap_and_sink import soft_capped
from esa_cli.attention.interfaces import Positions
from esa_cli.attention.rope import Rope
from esa_cli.attention.trace import ChunkTrace

BLOCK_ELEMENTS = 4 << 20
"""Most logarithms in memory together (16 MB)."""
NEAR = -1
"""Index of the local tokens, where far ones have the index of their selection."""


class Share(NamedTuple):
    """Attention of some query heads to some of the documents' tokens in one chunk of one layer.

    `heads`: which of the H. `start`: absolute position of the first of the C queries. `at`: (n,)
    absolute positions of the tokens. `logs`: (h, C, n) float32 logarithms of probabilities.
    `lengths`: (g, n) norms of the tokens' values as multiples of their mean; h / g heads share a
    key head.
    """

    heads: range
    start: int
    at: Tensor
    logs: Tensor
    lengths: Tensor

    @property
    def mass(self) -> Tensor:
        """(h, C, n) probabilities."""
        return self.logs.exp()


class _RotatedKeys(NamedTuple):
    """Rotated keys (G, n, D) of the tokens at (n,), standing at `place` (n,), and the lengths
    (G, n) of their values."""

    at: Tensor
    place: Tensor
    rope: Rope
    keys: Tensor
    lengths: Tensor

    def same(self, at: Tensor, place: Tensor, rope: Rope) -> bool:
        return rope is self.rope and torch.equal(at, self.at) and torch.equal(place, self.place)


class AttentionWeights:
    """Weights of the documents' tokens; give it to `Session.ask` as `trace`.

    It has the last question's weights, without its survey pass. Read them before the cache
    changes.

    Args:
        layers: indices of those that run the method; the middle half of them counts. tokens: N, how
            many are cached before the question.
    """

    def __init__(self, layers: Sequence[int], tokens: int) -> None:
        outer = len(layers) // 4
        self.layers = layers[outer : len(layers) - outer]
        self.tokens = tokens
        self._last = (-1, -1)
        self.clear()

    def clear(self) -> None:
        """Drops the weights."""
        self._asked = torch.zeros(len(self.layers), self.tokens)
        self._answered = torch.zeros(len(self.layers), self.tokens)
        self._rotated_keys: dict[tuple[int, int], _RotatedKeys] = {}
        self._waiting: list[ChunkTrace] = []

    @property
    def question_weights(self) -> Tensor:
        """(N,) weights for the question's tokens; 0 where none attended to it."""
        self._catch_up()
        return self._asked.mean(dim=0)

    @property
    def weights(self) -> Tensor:
        """(N,) weights for the tokens of question and answer."""
        self._catch_up()
        return torch.maximum(self._asked, self._answered).mean(dim=0)

    def __call__(self, trace: ChunkTrace) -> None:
        if trace.start < self.tokens:
            return
        if not trace.decoding and (trace.layer, trace.start) <= self._last:
            # A forward call of many words: turns before the question, the question, or it again.
            self.clear()
        self._last = (trace.layer, trace.start)
        if trace.layer not in self.layers:
            return
        self._waiting.append(trace)
        if trace.decoding:
            self._catch_up()

    @torch.inference_mode()
    def _catch_up(self) -> None:
        """Processes the traces kept so far; of a survey pass they were dropped."""
        waiting, self._waiting = self._waiting, []
        for trace in waiting:
            for share in self.shares(trace):
                self.note(trace, share)

    def note(self, trace: ChunkTrace, share: Share) -> None:
        """Adds one share."""
        groups, tokens = share.lengths.shape
        top = share.logs.view(groups, -1, tokens).amax(dim=1).exp_()
        most = (top * share.lengths).amax(dim=0).cpu()
        into = self._answered if trace.decoding else self._asked
        row, at = into[self.layers.index(trace.layer)], share.at.cpu()
        row[at] = torch.maximum(row[at], most)

    def shares(self, trace: ChunkTrace) -> Iterator[Share]:
        """Attention to the documents' tokens: the far ones, for each head where each has its own,
        then the local ones."""
        every = range(trace.queries.shape[0])
        joint = isinstance(trace.far, Tensor)
        for head, far in enumerate(trace.far_rows):
            held = int((far < self.tokens).sum())
            if held:
                heads = every if joint else range(head, head + 1)
                yield from self._taken(trace, head, heads, far[:held], trace.far_positions[head])
        first = trace.start - trace.local
        if first < self.tokens:
            at = torch.arange(first, self.tokens, device=trace.queries.device)
            yield from self._taken(trace, NEAR, every, at, trace.near_positions)

    def _taken(
        self, trace: ChunkTrace, part: int, heads: range, at: Tensor, place: Positions
    ) -> Iterator[Share]:
        """Shares of the tokens at (n,), the first of those that `place` has keys for; some queries
        at a time."""
        device, which = trace.queries.device, slice(heads.start, heads.stop)
        query, key = place.query.to(device), place.key[: at.shape[0]].to(device)
        rotated = self._rotated(trace, part, at, key)
        keys, lengths = rotated.keys, rotated.lengths
        if len(heads) < trace.queries.shape[0]:
            group = heads.start * trace.store.heads // trace.queries.shape[0]
            keys, lengths = keys[group : group + 1], lengths[group : group + 1]
        queries = trace.scaled[which] * trace.scale
        most = max(1, BLOCK_ELEMENTS // (len(heads) * at.shape[0]))
        for low in range(0, queries.shape[1], most):
            rows = slice(low, low + most)
            logits = _products(trace.rope.rotate(queries[:, rows], query[rows]), keys)
            if part == NEAR:
                logits = self._limited(trace, queries[:, rows], query[rows], key, at, logits)
            logs = soft_capped(logits.float(), trace.cap).sub_(trace.lse[which, rows, None])
            yield Share(heads, trace.start + low, at, logs, lengths)

    def _limited(
        self, trace: ChunkTrace, q: Tensor, query: Tensor, key: Tensor, at: Tensor, logits: Tensor
    ) -> Tensor:
        """Products (H, C, n) in which no key is further away than the encoding's max_distance."""
        limit, rope = trace.max_distance, trace.rope
        if limit is None or int(query.max() - key.min()) <= limit:
            return logits
        still = rope.rotate(trace.store.gather(at)[0], torch.zeros_like(key))
        away = _products(rope.rotate(q, torch.full_like(query, limit)), still)
        return torch.where(query[:, None] - key[None] > limit, away, logits)

    def _rotated(self, trace: ChunkTrace, part: int, at: Tensor, place: Tensor) -> _RotatedKeys:
        """Kept while the answer's tokens see the same ones at the same places."""
        known, rope = self._rotated_keys.get((trace.layer, part)), trace.rope
        if known is None or not known.same(at, place, rope):
            near = (int(at[0]), int(at[-1]) + 1)
            keys, values = trace.store.span(*near) if part == NEAR else trace.store.gather(at)
            lengths = values.float().norm(dim=-1)
            lengths /= lengths.mean().clamp_min(1e-30)
            known = _RotatedKeys(at, place, rope, rope.rotate(keys, place), lengths)
            self._rotated_keys[trace.layer, part] = known
        return known


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q (h, C, D) . k (g, n, D) -> (h, C, n); h / g query heads share a key head."""
    heads, chunk, dim = q.shape
    return (q.reshape(k.shape[0], -1, dim) @ k.transpose(1, 2)).view(heads, chunk, -1)

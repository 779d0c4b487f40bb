"""How much each token of the documents weighed while a question was read and answered.

Attention returns its log-sum-exp but not its probabilities; they are computed again from each
chunk's trace, exp(scale * q . k - lse), with queries and keys where the position encoding had them.
In a layer a token weighs the most that any head and any word of the question, or of the answer,
took from it: probability times the length of the token's value, which is what gets into the output
(Kobayashi et al., "Attention is Not Only a Weight", 2020); lengths as multiples of their mean. Its
weight is the mean over the middle half of the layers.

The layers and the rule are those that put the right passage first: docs/evidence.md. Knows nothing
of text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.interfaces import Positions
from esa_cli.attention.rope import Rope
from esa_cli.attention.trace import ChunkTrace

BLOCK_ELEMENTS = 4 << 20
"""Most logarithms in memory together (16 MB)."""
NEAR = -1
"""Stands for the local tokens where far ones go by the head that chose them."""


class Share(NamedTuple):
    """What some query heads took from some of the documents' tokens in one chunk of one layer.

    `heads`: which of the H. `start`: absolute position of the first of the C queries. `at`: (n,)
    absolute positions of the tokens. `logs`: (h, C, n) float32 logarithms of probabilities.
    `lengths`: (g, n) lengths of the tokens' values as multiples of their mean; h / g heads share a
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


class _Turned(NamedTuple):
    """Rotated keys (G, n, D) of the tokens at (n,), standing at `place` (n,), and the lengths
    (G, n) of their values."""

    at: Tensor
    place: Tensor
    rope: Rope
    keys: Tensor
    lengths: Tensor

    def serves(self, at: Tensor, place: Tensor, rope: Rope) -> bool:
        return rope is self.rope and torch.equal(at, self.at) and torch.equal(place, self.place)


class AttentionWeights:
    """Weights of the documents' tokens; give it to `Session.ask` as `trace`.

    It keeps the last question: the next one begins anew, as does the second reading of the same.
    Read the weights before the cache is changed.

    Args:
        layers: of the model. tokens: N, how many are cached before the question.
    """

    def __init__(self, layers: int, tokens: int) -> None:
        self.layers = range(layers // 4, layers - layers // 4)
        self.tokens = tokens
        self._last = (-1, -1)
        self.clear()

    def clear(self) -> None:
        """Forgets what was seen."""
        self._asked = torch.zeros(len(self.layers), self.tokens)
        self._answered = torch.zeros(len(self.layers), self.tokens)
        self._turned: dict[tuple[int, int], _Turned] = {}
        self._waiting: list[ChunkTrace] = []

    @property
    def asked(self) -> Tensor:
        """(N,) what each cached token weighed for the question's words; 0 where none saw it."""
        self._catch_up()
        return self._asked.mean(dim=0)

    @property
    def weights(self) -> Tensor:
        """(N,) the same for the words of question and answer."""
        self._catch_up()
        return torch.maximum(self._asked, self._answered).mean(dim=0)

    def __call__(self, seen: ChunkTrace) -> None:
        if seen.start < self.tokens:
            return
        if not seen.decoding and (seen.layer, seen.start) <= self._last:
            # A forward call of many words: turns before the question, the question, or it again.
            self.clear()
        self._last = (seen.layer, seen.start)
        if seen.layer not in self.layers:
            return
        self._waiting.append(seen)
        if seen.decoding:
            self._catch_up()

    @torch.inference_mode()
    def _catch_up(self) -> None:
        """Works out what waits: a question that is read twice only the second time."""
        waiting, self._waiting = self._waiting, []
        for seen in waiting:
            for share in self.shares(seen):
                self.note(seen, share)

    def note(self, seen: ChunkTrace, share: Share) -> None:
        """Takes one share in."""
        groups, tokens = share.lengths.shape
        top = share.logs.view(groups, -1, tokens).amax(dim=1).exp_()
        most = (top * share.lengths).amax(dim=0).cpu()
        into = self._answered if seen.decoding else self._asked
        row, at = into[seen.layer - self.layers.start], share.at.cpu()
        row[at] = torch.maximum(row[at], most)

    def shares(self, seen: ChunkTrace) -> Iterator[Share]:
        """What the documents' tokens got: the far ones, for each head where each has its own, then
        the local ones."""
        every = range(seen.queries.shape[0])
        joint = isinstance(seen.far, Tensor)
        for head, far in enumerate(seen.far_rows):
            held = int((far < self.tokens).sum())
            if held:
                heads = every if joint else range(head, head + 1)
                yield from self._taken(seen, head, heads, far[:held], seen.far_positions[head])
        first = seen.start - seen.local
        if first < self.tokens:
            at = torch.arange(first, self.tokens, device=seen.queries.device)
            yield from self._taken(seen, NEAR, every, at, seen.near_positions)

    def _taken(
        self, seen: ChunkTrace, part: int, heads: range, at: Tensor, place: Positions
    ) -> Iterator[Share]:
        """Shares of the tokens at (n,), the first of those that `place` has keys for; some queries
        at a time."""
        device, which = seen.queries.device, slice(heads.start, heads.stop)
        query, key = place.query.to(device), place.key[: at.shape[0]].to(device)
        turned = self._rotated(seen, part, at, key)
        keys, lengths = turned.keys, turned.lengths
        if len(heads) < seen.queries.shape[0]:
            group = heads.start * seen.store.heads // seen.queries.shape[0]
            keys, lengths = keys[group : group + 1], lengths[group : group + 1]
        queries = seen.scaled[which] * seen.scale
        most = max(1, BLOCK_ELEMENTS // (len(heads) * at.shape[0]))
        for low in range(0, queries.shape[1], most):
            rows = slice(low, low + most)
            logits = _products(seen.rope.rotate(queries[:, rows], query[rows]), keys)
            if part == NEAR:
                logits = self._limited(seen, queries[:, rows], query[rows], key, at, logits)
            logs = logits.float().sub_(seen.lse[which, rows, None])
            yield Share(heads, seen.start + low, at, logs, lengths)

    def _limited(
        self, seen: ChunkTrace, q: Tensor, query: Tensor, key: Tensor, at: Tensor, logits: Tensor
    ) -> Tensor:
        """Products (H, C, n) in which no key is further away than the encoding's max_distance."""
        limit, rope = seen.max_distance, seen.rope
        if limit is None or int(query.max() - key.min()) <= limit:
            return logits
        still = rope.rotate(seen.store.gather(at)[0], torch.zeros_like(key))
        away = _products(rope.rotate(q, torch.full_like(query, limit)), still)
        return torch.where(query[:, None] - key[None] > limit, away, logits)

    def _rotated(self, seen: ChunkTrace, part: int, at: Tensor, place: Tensor) -> _Turned:
        """Kept while the answer's tokens see the same ones at the same places."""
        known, rope = self._turned.get((seen.layer, part)), seen.rope
        if known is None or not known.serves(at, place, rope):
            near = (int(at[0]), int(at[-1]) + 1)
            keys, values = seen.store.span(*near) if part == NEAR else seen.store.gather(at)
            lengths = values.float().norm(dim=-1)
            lengths /= lengths.mean().clamp_min(1e-30)
            known = _Turned(at, place, rope, rope.rotate(keys, place), lengths)
            self._turned[seen.layer, part] = known
        return known


def _products(q: Tensor, k: Tensor) -> Tensor:
    """q (h, C, D) . k (g, n, D) -> (h, C, n); h / g query heads share a key head."""
    heads, chunk, dim = q.shape
    return (q.reshape(k.shape[0], -1, dim) @ k.transpose(1, 2)).view(heads, chunk, -1)

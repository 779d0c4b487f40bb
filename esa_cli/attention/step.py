"""One selection step: the current tokens' queries against a layer's middle tokens.

A `Step` is all that scores and selectors see. Keys come in blocks, so a step over a million middle
tokens never builds a tensor of heads x chunk x million at once. Scores are worked out in float32,
whatever the model's dtype: rounded to bfloat16, a large sum over heads leaves some dozens of
different scores for thousands of tokens, and in float16 it overflows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.compression import flatten_keys, fold
from esa_cli.attention.interfaces import KVStore, Projection, Score
from esa_cli.attention.rope import Rope

BLOCK_ELEMENTS = 4 << 20
"""Most scores in one block, heads and queries included (16 MB in float32)."""

ASKED = "asked"
"""What layers share: the position at which the question begins, earlier turns included."""

OWN = "own"
"""What layers share: absolute positions [first, last) of the question's own words."""

PRIME = "prime"
"""What layers share: the position behind the prompt, where the answer's first words begin."""

REHEARSAL = "rehearsal"
"""What layers share: the question is being read for the first of two times."""


class Heard(Exception):
    """The first of two readings has what it was for: later layers would add nothing to it.

    A selector raises it, only then; it ends the host's forward call and the session catches it.
    """


@dataclass(frozen=True)
class Step:
    """What a score or selector may look at.

    Args:
        layer: index of the layer. start: absolute position of the first current token.
        queries: (H, C, D), unrotated.
        store: the layer's memory; the middle tokens M are its [low, high).
        local: tokens in L, which ends at `start`.
        distance: query position that stands for 'far' (keys at 0), from the position encoding.
        scale: the model's attention scale. score: the preset's score, for selectors that use it.
        projection: the fitted compressor of this layer, or None.
        decoding: the forward call holds this one token only: an answer is being written.
        shared: side data that all layers of one document share; emptied when tokens are taken back.
        lse: (H, C) log-sum-exp of the chunk's whole attention; only where a selector observes.
    """

    layer: int
    start: int
    queries: Tensor
    store: KVStore
    low: int
    high: int
    local: int
    distance: int
    scale: float
    rope: Rope
    score: Score
    projection: Projection | None = None
    decoding: bool = False
    shared: dict[str, Any] = field(default_factory=dict)
    lse: Tensor | None = None

    @property
    def middle(self) -> int:
        """M, the number of middle tokens."""
        return self.high - self.low

    @property
    def own(self) -> Tensor | None:
        """(C,) which current tokens are the question's own words, not the prompt's around them;
        None where nobody said (stock `generate`, chunks that are only read)."""
        bounds: tuple[int, int] | None = self.shared.get(OWN)
        return None if bounds is None else self._between(*bounds)

    @property
    def around(self) -> Tensor | None:
        """(C,) which are the prompt's words around the question, not the answer's first ones."""
        own = self.own
        behind = self.shared.get(PRIME, self.start + self.queries.shape[1])
        return None if own is None else self._between(0, behind) & ~own

    def _between(self, first: int, last: int) -> Tensor:
        stop = self.start + self.queries.shape[1]
        at = torch.arange(self.start, stop, device=self.queries.device)
        return (at >= first) & (at < last)

    def rotated(self, rotate: bool) -> Tensor:
        """Queries (H, C, D); with `rotate` at the far distance, so that q . k is the logit that
        attention at that distance will see, keys standing at position 0."""
        if not rotate:
            return self.queries
        at = self.queries.new_full((self.queries.shape[1],), self.distance, dtype=torch.long)
        return self.rope.rotate(self.queries, at) * self.rope.gain(self.queries)

    def _most(self, rows: int) -> int:
        return max(256, BLOCK_ELEMENTS // max(rows, 1))

    def head_logits(
        self, rotate: bool, heads: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (offset into M, scale * q_h . k_g(h)) in blocks (H, C, n).

        Args:
            heads: only of these query heads, in this order; None: of all.
        """
        q = self.rotated(rotate)
        rows = (q.shape[0] if heads is None else len(heads)) * q.shape[1]
        # Keys of the voting heads' groups only: in a book on disk the others stay in 8 bits.
        groups = None if heads is None else self._groups(heads)
        for at, keys in self.store.key_blocks(self.low, self.high, self._most(rows), groups):
            yield at - self.low, self._logits(q, keys, heads, groups)

    def head_logits_at(
        self, offsets: Tensor, rotate: bool, heads: Sequence[int] | None = None
    ) -> Tensor:
        """Logits (H, C, K) of the middle tokens at ascending offsets (K,); `heads` as above."""
        keys, _ = self.store.gather(offsets + self.low)
        return self._logits(self.rotated(rotate), keys, heads)

    def _groups(self, heads: Sequence[int]) -> list[int]:
        """The key/value heads that some query heads read, ascending."""
        each = self.queries.shape[0] // self.store.heads
        return sorted({head // each for head in heads})

    def _logits(
        self,
        q: Tensor,
        keys: Tensor,
        heads: Sequence[int] | None,
        groups: list[int] | None = None,
    ) -> Tensor:
        """(H, C, D) queries, unscaled, and keys (G, n, D), or those of `groups` -> (H, C, n)."""
        count, chunk, dim = q.shape
        q, keys = q.float(), keys.float()
        if heads is None:
            grouped = (q * self.scale).reshape(self.store.heads, -1, dim)
            return (grouped @ keys.transpose(1, 2)).view(count, chunk, -1)
        there = range(self.store.heads) if groups is None else groups
        own = [keys[there.index(head // (count // self.store.heads))] for head in heads]
        # Head by head: indexing by `own` would copy a group's keys for each of its heads.
        return torch.stack([q[h] * self.scale @ k.T for h, k in zip(heads, own, strict=True)])

    def sums(self, rotate: bool) -> Iterator[tuple[int, Tensor]]:
        """Yields (offset into M, f_s(m; c)) of Eq. 2 in blocks (C, n), reduced when fitted."""
        q = fold(self.rotated(rotate).float(), self.store.heads)
        most = self._most(q.shape[0])
        if self.projection is None:
            for at, keys in self.store.key_blocks(self.low, self.high, most):
                yield at - self.low, q @ flatten_keys(keys).float().T
            return
        made: dict[int, Tensor] = {}
        for at, features in self.store.feature_blocks(self.low, self.high, most):
            maps = self.projection.at(at)
            if id(maps) not in made:
                made[id(maps)] = maps.queries(q)
            yield at - self.low, made[id(maps)] @ features.float().T

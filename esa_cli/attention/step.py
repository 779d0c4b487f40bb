"""One selection step: a chunk's queries, a layer's middle tokens, and their dot products in blocks.

A `Step` is the argument of scores and selectors. Blocks of keys keep a step over a million middle
tokens from building an H x C x M tensor. Scores are computed in float32 whatever the model's dtype:
a sum over heads in bfloat16 has some dozens of values for thousands of tokens, and in float16 it
overflows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from esa_cli.attention.cap_and_sink import soft_capped
from esa_cli.attention.folding import flatten_keys, fold
from esa_cli.attention.interfaces import KVStore, LayerState, Projection
from esa_cli.attention.query_state import QueryState
from esa_cli.attention.rope import Rope
from esa_cli.attention.turn_text import TurnText

BLOCK_ELEMENTS = 4 << 20
"""Most scores in one block, over heads, queries and keys (16 MB in float32)."""


class Stateful(Protocol):
    """The part of `Selector` that `Step` calls."""

    def new_layer_state(self) -> LayerState | None: ...

    def new_turn_state(self) -> Any: ...


class Scoring(Protocol):
    """The part of `Score` that `Step` needs."""

    @property
    def last_layer(self) -> int | None: ...

    def scores(self, step: Step) -> Tensor: ...


@dataclass(frozen=True)
class Step:
    """A chunk's queries and a layer's middle tokens.

    Args:
        layer: index of the layer. layers: indices of the model's layers that run the method,
            ascending; empty: not known.
        start: absolute position of the first current token.
        queries: (H, C, D), unrotated.
        store: the layer's keys and values; the middle tokens M are its [low, high).
        local: tokens in L, which ends at `start`.
        distance: query position (keys at 0) of far tokens, from the position encoding.
        scale: the model's factor of q . k. cap: its soft cap of logits; 0: none.
        score: the preset's.
        projection: the fitted compressor of this layer, or None.
        decoding: the chunk is one token of an answer.
        query: the state of the turn. states: the layer states, by class of selector.
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
    score: Scoring
    layers: Sequence[int] = ()
    cap: float = 0.0
    projection: Projection | None = None
    decoding: bool = False
    query: QueryState = field(default_factory=QueryState)
    states: dict[type, LayerState] = field(default_factory=dict)
    lse: Tensor | None = None

    @property
    def last_scoring_layer(self) -> int | None:
        """The last layer with scores that are not 0; None: the model's last."""
        return self.score.last_layer

    @property
    def is_first(self) -> bool:
        """Whether no layer before this one runs the method."""
        return self.layer <= (self.layers[0] if self.layers else 0)

    @property
    def is_last(self) -> bool:
        """Whether no layer after this one runs the method; True where that is not known."""
        return not self.layers or self.layer >= self.layers[-1]

    @property
    def middle(self) -> int:
        """M, the number of middle tokens."""
        return self.high - self.low

    def scores(self) -> Tensor:
        """(M,) of the preset's score."""
        return self.score.scores(self)

    def layer_state(self, selector: Stateful) -> Any:
        """This selector's state of the layer; new the first time."""
        kind = type(selector)
        if kind not in self.states:
            state = selector.new_layer_state()
            assert state is not None, f"{kind.__name__} has no new_layer_state"
            self.states[kind] = state
        return self.states[kind]

    def turn_state(self, selector: Stateful) -> Any:
        """This selector's state of the turn; new the first time."""
        if self.query.selector is None:
            self.query.selector = selector.new_turn_state()
        return self.query.selector

    @property
    def text(self) -> TurnText | None:
        """The words of the documents and of the question; None where they are not known (stock
        `generate`, prefill)."""
        return self.query.text

    @property
    def own(self) -> Tensor | None:
        """(C,) bool: current tokens inside the question span; None where it is not known (stock
        `generate`, prefill)."""
        return None if self.query.question is None else self._between(*self.query.question)

    @property
    def around(self) -> Tensor | None:
        """(C,) bool: prompt tokens outside the question span, without the answer prefix."""
        own = self.own
        stop = self.start + self.queries.shape[1]
        end = stop if self.query.answer_start is None else self.query.answer_start
        return None if own is None else self._between(0, end) & ~own

    def _between(self, first: int, last: int) -> Tensor:
        stop = self.start + self.queries.shape[1]
        at = torch.arange(self.start, stop, device=self.queries.device)
        return (at >= first) & (at < last)

    def rotated(self, rotate: bool) -> Tensor:
        """Queries (H, C, D); with `rotate` at the far distance, so that q . k with keys at position
        0 is the logit of attention at that distance."""
        return self.rope.far_queries(self.queries, self.distance) if rotate else self.queries

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
        # Keys of these heads' groups only: on disk the others are not converted from 8 bits.
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
            logits = (grouped @ keys.transpose(1, 2)).view(count, chunk, -1)
            return soft_capped(logits, self.cap)
        there = range(self.store.heads) if groups is None else groups
        own = [keys[there.index(head // (count // self.store.heads))] for head in heads]
        # Head by head: indexing by `own` would copy a group's keys for each of its heads.
        logits = torch.stack([q[h] * self.scale @ k.T for h, k in zip(heads, own, strict=True)])
        return soft_capped(logits, self.cap)

    def sums(self, rotate: bool) -> Iterator[tuple[int, Tensor]]:
        """Yields (offset into M, f_s(m; c)) of Eq. (3), or (6) of reduced keys, in
        blocks (C, n)."""
        q = fold(self.rotated(rotate).float(), self.store.heads)
        most = self._most(self.queries.shape[1])
        if self.projection is None:
            for at, keys in self.store.key_blocks(self.low, self.high, most):
                yield at - self.low, q @ flatten_keys(keys).float().T
            return
        maps: Projection | None = None
        for at, features in self.store.feature_blocks(self.low, self.high, most):
            if (block_maps := self.projection.at(at)) is not maps:  # another document's
                maps, reduced = block_maps, block_maps.queries(q)
            yield at - self.low, reduced @ features.float().T

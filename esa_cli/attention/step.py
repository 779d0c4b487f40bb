"""One selection step: the current tokens' queries against a layer's middle tokens.

A `Step` is all that scores and selectors see. Keys come in blocks, so a step over a million middle
tokens never builds a tensor of heads x chunk x million at once. Scores are worked out in float32,
whatever the model's dtype: rounded to bfloat16, a large sum over heads leaves some dozens of
different scores for thousands of tokens, and in float16 it overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from esa_cli.attention.folding import flatten_keys, fold
from esa_cli.attention.interfaces import KVStore, LayerState, Projection
from esa_cli.attention.query_state import QueryState
from esa_cli.attention.rope import Rope

BLOCK_ELEMENTS = 4 << 20
"""Most scores in one block, heads and queries included (16 MB in float32)."""


class Stateful(Protocol):
    """What `Step` needs of a selector; see `Selector`."""

    def new_layer_state(self) -> LayerState | None: ...

    def new_turn_state(self) -> Any: ...


@dataclass(frozen=True)
class Step:
    """What a score or selector may look at.

    Args:
        layer: index of the layer. start: absolute position of the first current token.
        queries: (H, C, D), unrotated.
        store: the layer's memory; the middle tokens M are its [low, high).
        local: tokens in L, which ends at `start`.
        distance: query position that stands for 'far' (keys at 0), from the position encoding.
        scale: the model's attention scale. scorer: gives the preset's scores, see `scores`.
        last_scoring_layer: the last layer with scores that are not 0; None: the model's last.
        projection: the fitted compressor of this layer, or None.
        decoding: the forward call holds this one token only: an answer is being written.
        query: the state of the turn. states: of the layer, by class of selector.
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
    scorer: Callable[[Step], Tensor]
    last_scoring_layer: int | None = None
    projection: Projection | None = None
    decoding: bool = False
    query: QueryState = field(default_factory=QueryState)
    states: dict[type, LayerState] = field(default_factory=dict)
    lse: Tensor | None = None

    @property
    def middle(self) -> int:
        """M, the number of middle tokens."""
        return self.high - self.low

    def scores(self) -> Tensor:
        """(M,) of the preset's score, for selectors that use it.

        Raises:
            PluginError: the score fails, or gives something else.
        """
        return self.scorer(self)

    def with_projection(self, projection: Projection | None) -> Step:
        """The same step, scored on reduced keys."""
        return replace(self, projection=projection)

    def with_lse(self, lse: Tensor) -> Step:
        """The same step after attention, for selectors that observe."""
        return replace(self, lse=lse)

    def layer_state(self, selector: Stateful) -> Any:
        """What this selector keeps of the layer's tokens; empty the first time."""
        kind = type(selector)
        if kind not in self.states:
            state = selector.new_layer_state()
            assert state is not None, f"{kind.__name__} has no new_layer_state"
            self.states[kind] = state
        return self.states[kind]

    def turn_state(self, selector: Stateful) -> Any:
        """What this selector keeps across layers in this turn; empty the first time."""
        if self.query.selector is None:
            self.query.selector = selector.new_turn_state()
        return self.query.selector

    @property
    def own(self) -> Tensor | None:
        """(C,) which current tokens are the question's own words, not the prompt's around them;
        None where nobody said (stock `generate`, chunks that are only read)."""
        return None if self.query.question is None else self._between(*self.query.question)

    @property
    def around(self) -> Tensor | None:
        """(C,) which are the prompt's words around the question, not the answer's first ones."""
        own = self.own
        stop = self.start + self.queries.shape[1]
        behind = stop if self.query.answer_start is None else self.query.answer_start
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
        """Yields (offset into M, f_s(m; c)) of Eq. (3), or (6) of reduced keys, in
        blocks (C, n)."""
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

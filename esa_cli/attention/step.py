"""The data that selectors, scores, compressors and position encodings get and return.

Scores are computed in blocks of keys, and always in float32, since bfloat16 has too few digits to
rank thousands of scores, and sums over heads overflow float16. `esa_cli.attention` explains the
letters in shapes, which have no batch axis."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from esa_cli.attention.algebra import apply_soft_cap, concat_key_heads, fold
from esa_cli.attention.rope import Rope
from esa_cli.attention.window import QueryState, QuestionAndText

BLOCK_ELEMENTS = 4 << 20
"""The largest number of scores in a block of heads, queries and keys (16 MB in float32)."""

Selection = Tensor | list[Tensor]
"""Offsets (K,) of selected middle tokens, or a list with such a tensor for each query head."""


def choose_tokens_per_block(logits_per_token: int) -> int:
    """Returns for how many tokens logits are computed at once, so that a block fits into memory."""
    return max(256, BLOCK_ELEMENTS // max(logits_per_token, 1))


class Positions(NamedTuple):
    """Rotary positions of queries and keys; only the differences between positions matter."""

    query: Tensor  # (C,) integers or floats, in tokens
    key: Tensor  # (n,), as `query`


class LayerState(ABC):
    """Base class of the state that a selector keeps of one layer's tokens from step to step."""

    @abstractmethod
    def crop(self, length: int) -> None:
        """Drops the data about tokens from position `length` on, which the KV cache has removed."""


class Projection(ABC):
    """Base class of one layer's projection of folded queries and keys to fewer dimensions."""

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """Projects folded queries (C, F) to fewer dimensions (C, R)."""

    @abstractmethod
    def keys(self, k: Tensor) -> Tensor:
        """Projects folded keys (n, F) to fewer dimensions (n, R)."""

    def select_for_token(self, position: int) -> Projection:
        """Returns the projection of the document that a cached token is of."""
        return self


class KVStore(Protocol):
    """The unrotated keys and values of one layer's N cached tokens, in memory or on disk."""

    heads: int
    dim: int
    shared: bool  # whether keys and values are the same numbers, which are then stored once

    @property
    def is_on_device(self) -> bool:
        """Whether all cached keys and values are on the device that computes attention."""

    @property
    def nbytes(self) -> int:
        """Number of bytes of all keys, values and reduced keys."""

    @property
    def reduced_key_count(self) -> int:
        """Number of cached tokens that have a key of reduced dimension, too."""

    def __len__(self) -> int: ...

    def append(self, k: Tensor, v: Tensor) -> None:
        """Appends unrotated keys and values (G, C, D) of C tokens; if `shared`, only the keys."""

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Returns the keys and values of the tokens [start, stop), each (G, stop - start, D)."""

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the keys and values of K tokens at ascending positions `at`, each (G, K, D)."""

    def key_blocks(
        self, start: int, stop: int, max_tokens: int = ..., groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields blocks of the keys of the tokens [start, stop), as pairs of the first token's
        position and the keys (G, n, D). `groups` lists the key heads; None stands for all."""

    def append_reduced_keys(self, reduced_keys: Tensor) -> None:
        """Appends reduced keys (n, R) for the first n tokens that have no reduced key yet."""

    def get_reduced_blocks(
        self, start: int, stop: int, max_tokens: int = ...
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields blocks of reduced keys: the first token's position, and the keys (n, R)."""

    def crop(self, negative_count: int) -> None:
        """Removes the last tokens; a `negative_count` of -3 removes three tokens."""


@dataclass(frozen=True)
class Step:
    """What a score or selector sees in one layer: a chunk's queries and the tokens to select from,
    the middle tokens M at positions [low, high)."""

    layer: int
    start: int  # absolute position of the first current token
    queries: Tensor  # (H, C, D), unrotated
    store: KVStore
    low: int
    high: int
    local: int  # number of local tokens L, which end before position `start`
    distance: int  # the position encoding's query position for far tokens, with keys at 0
    scale: float  # the model's factor of q . k
    rope: Rope
    score: Any  # the method's `Score`
    layers: Sequence[int] = ()  # ascending, those that run the method; empty if they are unknown
    cap: float = 0.0  # the model's soft cap of logits; 0 for none
    projection: Projection | None = None  # the layer's fitted compressor
    decoding: bool = False  # whether the chunk is one token of an answer
    query: QueryState = field(default_factory=QueryState)
    states: dict[Any, LayerState] = field(default_factory=dict)  # by layer and selector class
    lse: Tensor | None = None  # (H, C) log-sum-exp of the whole attention, in `observe` only

    @property
    def last_scoring_layer(self) -> int | None:
        """Index of the last layer with nonzero scores; None stands for the model's last layer."""
        last: int | None = self.score.last_layer
        return last

    @property
    def middle(self) -> int:
        """The number M of middle tokens, which are between the initial and the local tokens."""
        return self.high - self.low

    def scores(self) -> Tensor:
        """Returns the scores (M,) of the middle tokens, computed by the method's `Score`."""
        scores: Tensor = self.score.scores(self)
        return scores

    def layer_state(self, selector: Any) -> Any:
        """Returns the state that a selector has for the step's layer, made at the first call."""
        key = self.layer, type(selector)
        if key not in self.states:
            self.states[key] = selector.new_layer_state()
            assert self.states[key] is not None, f"{key[1].__name__} has no new_layer_state"
        return self.states[key]

    def turn_state(self, selector: Any) -> Any:
        """Returns the state that a selector has for a question, made at the first call."""
        if self.query.selector is None:
            self.query.selector = selector.new_turn_state()
        return self.query.selector

    @property
    def text(self) -> QuestionAndText | None:
        """The text of documents and question; None in prefill and in stock `generate`."""
        return self.query.text

    @property
    def own(self) -> Tensor | None:
        """Mask (C,) of the current tokens that are the question's own words; None if unknown."""
        question = self.query.question
        return None if question is None else self._make_position_mask(*question)

    @property
    def around(self) -> Tensor | None:
        """Mask (C,) of the current tokens around the question in the prompt; None if unknown."""
        own, end = self.own, self.query.answer_start
        if own is None:
            return None
        return ~own if end is None else self._make_position_mask(0, end) & ~own

    def _make_position_mask(self, first_position: int, end_position: int) -> Tensor:
        """Returns a mask (C,) of the current tokens from `first_position` to `end_position`."""
        at = torch.arange(self.queries.shape[1], device=self.queries.device) + self.start
        return (at >= first_position) & (at < end_position)

    def rotated(self, rotate: bool) -> Tensor:
        """Returns the queries (H, C, D), by `rotate` at the far distance from unrotated keys."""
        q = self.queries
        return self.rope.rotate_to_far_distance(q, self.distance) if rotate else q

    def head_logits(
        self, rotate: bool, heads: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields blocks of the middle tokens' attention logits, as pairs of the first token's
        offset into M and the logits (H, C, n). `heads` lists the query heads; None means all."""
        q, groups = self.rotated(rotate), None
        if heads is not None:
            # Keys of these heads' groups only: on disk the others are not converted from 8 bits.
            share = q.shape[0] // self.store.heads
            groups = sorted({head // share for head in heads})
        block = choose_tokens_per_block((q.shape[0] if heads is None else len(heads)) * q.shape[1])
        for at, keys in self.store.key_blocks(self.low, self.high, block, groups):
            yield at - self.low, self._compute_logits(q, keys, heads, groups)

    def head_logits_at(
        self, offsets: Tensor, rotate: bool, heads: Sequence[int] | None = None
    ) -> Tensor:
        """Returns the logits (H, C, K) of the middle tokens at offsets (K,) for `heads` or all."""
        keys, _ = self.store.gather(offsets + self.low)
        return self._compute_logits(self.rotated(rotate), keys, heads)

    def _compute_logits(
        self, q: Tensor, keys: Tensor, heads: Sequence[int] | None, groups: list[int] | None = None
    ) -> Tensor:
        """Computes logits (H, C, n) of queries (H, C, D) for keys (G, n, D) of `groups` or all."""
        count, chunk, dim = q.shape
        q, keys = q.float() * self.scale, keys.float()
        if heads is None:
            logits = q.reshape(self.store.heads, -1, dim) @ keys.transpose(1, 2)
            return apply_soft_cap(logits.view(count, chunk, -1), self.cap)
        known, share = groups or range(self.store.heads), count // self.store.heads
        # Head by head: indexing by a tensor would copy a group's keys for each of its heads.
        logits = torch.stack([q[head] @ keys[known.index(head // share)].T for head in heads])
        return apply_soft_cap(logits, self.cap)

    def sums(self, rotate: bool) -> Iterator[tuple[int, Tensor]]:
        """Yields blocks of logits summed over heads, as pairs of the first token's offset into M
        and the sums (C, n), by equation (6) if the layer has reduced keys, else by equation (3)."""
        q = fold(self.rotated(rotate).float(), self.store.heads)
        block = choose_tokens_per_block(self.queries.shape[1])
        if self.projection is None:
            for at, keys in self.store.key_blocks(self.low, self.high, block):
                yield at - self.low, q @ concat_key_heads(keys).float().T
            return
        last: Projection | None = None
        for at, features in self.store.get_reduced_blocks(self.low, self.high, block):
            if (projection := self.projection.select_for_token(at)) is not last:
                last, reduced = projection, projection.queries(q)
            yield at - self.low, reduced @ features.float().T


@dataclass(frozen=True, kw_only=True)
class ChunkTrace(Step):
    """A record of the tokens to which a chunk attends in one layer, with their positions. While an
    answer is `decoding`, a chunk has several tokens if their far tokens are the same."""

    far: Selection  # absolute positions (n,) of I and the selected tokens, for all heads or each
    near_positions: Positions  # of local and current tokens
    far_positions: Sequence[Positions]  # of the tokens in each tensor of `far`
    scaled: Tensor  # the queries times the factors of the position encoding and the model
    max_distance: int | None  # of near tokens
    lse: Tensor

    @property
    def stop(self) -> int:
        """Absolute position after the chunk's last token."""
        return self.start + self.queries.shape[1]

    def list_far_positions(self) -> Sequence[Tensor]:
        """Returns absolute positions of far tokens, in one tensor for all heads or one for each."""
        return [self.far] if isinstance(self.far, Tensor) else self.far

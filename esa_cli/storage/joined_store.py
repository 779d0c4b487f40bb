"""Prefilled documents, and one layer's `KVStore` over the rows of several and a growing tail.

Keys are unrotated, so rows of several documents can follow each other as if they had been prefilled
in one sequence. The documents' rows are only read; the question and its answer are appended to the
tail.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.step import KVStore, LayerState, Projection
from esa_cli.storage.memory_store import BLOCK, RESERVE, MemoryStore, divided, pieces


class StoreSlice(NamedTuple):
    """Tokens [low, high) of a store."""

    store: KVStore
    low: int
    high: int


def refuse_change(store: Any, *arguments: Any) -> None:
    """`append`, `append_features` and `crop` of a store that is only read."""
    raise TypeError("stored rows are read-only; JoinedStore appends after them")


class StoreChain:
    """The rows of slices of stores, one after another, which are only read; see `KVStore`.

    Args:
        like: a store of the same heads and dimension as all parts.
    """

    def __init__(self, parts: Sequence[StoreSlice], like: KVStore) -> None:
        self.heads, self.dim, self.shared = like.heads, like.dim, like.shared
        self._parts, self._starts = list[StoreSlice](), [0]
        for part in parts:
            self._add(part)

    def _add(self, part: StoreSlice) -> None:
        self._parts.append(part)
        self._starts.append(self._starts[-1] + part.high - part.low)

    def _slices(self) -> list[StoreSlice]:
        return self._parts

    def _edges(self) -> list[int]:
        """Where each slice begins, and where the last one ends."""
        return self._starts

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        return sum(part.store.nbytes for part in self._slices())

    @property
    def resident(self) -> bool:
        return all(part.store.resident for part in self._parts)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, KVStore, int, int]]:
        """Yields (absolute start, store, low, high) of every store's part of [start, stop)."""
        slices, edges = self._slices(), self._edges()
        for i, low, high in pieces(edges, start, stop):
            store, first, _ = slices[i]
            yield edges[i] + low, store, first + low, first + high

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        return self._together(
            [store.span(low, high) for _, store, low, high in self._pieces(start, stop)]
        )

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        slices, edges, pairs = self._slices(), self._edges(), list[tuple[Tensor, Tensor]]()
        for i, rows in divided(edges, at):
            store, first, _ = slices[i]
            pairs.append(store.gather(at[rows] - (edges[i] - first)))
        return self._together(pairs)

    def _together(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if not pairs:
            return self._slices()[-1].store.span(0, 0)
        if len(pairs) == 1:
            return pairs[0]
        return torch.cat([k for k, _ in pairs], 1), torch.cat([v for _, v in pairs], 1)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        for begin, store, low, high in self._pieces(start, stop):
            for at, keys in store.key_blocks(low, high, most, groups):
                yield at - low + begin, keys

    @property
    def reduced(self) -> int:
        for start, part in zip(self._edges(), self._slices(), strict=False):
            if part.store.reduced < part.high:
                return start + max(0, part.store.reduced - part.low)
        return len(self)

    def feature_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        """Never across parts."""
        for begin, store, low, high in self._pieces(start, stop):
            for at, features in store.feature_blocks(low, high, most):
                yield at - low + begin, features

    append = append_features = crop = refuse_change


class JoinedStore(StoreChain):
    """The rows of all parts in order, then those of the tail.

    Args:
        tail: an empty store for the tokens that follow them.
    """

    def __init__(self, parts: Sequence[StoreSlice], tail: MemoryStore) -> None:
        self.tail = tail
        super().__init__(parts, tail)

    def _slices(self) -> list[StoreSlice]:
        return [*self._parts, StoreSlice(self.tail, 0, len(self.tail))]

    def _edges(self) -> list[int]:
        return [*self._starts, len(self)]

    @property
    def stored(self) -> int:
        """Tokens of all parts; the tail begins here."""
        return self._starts[-1]

    def __len__(self) -> int:
        return self.stored + len(self.tail)

    def append(self, k: Tensor, v: Tensor) -> None:
        self.tail.append(k, v)

    def append_features(self, features: Tensor) -> None:
        assert self.reduced >= self.stored, "the parts must have reduced keys, too"
        self.tail.append_features(features)

    def replace_first(self, store: KVStore) -> None:
        """Puts a store with the tail's first tokens in their place."""
        self._add(StoreSlice(store, 0, len(store)))
        self.tail.drop_first(len(store))

    def crop(self, tokens: int) -> None:
        """Raises ValueError if the tail has fewer than -tokens tokens."""
        if -tokens > len(self.tail):
            raise ValueError(f"tokens must be at least {-len(self.tail)}, got {tokens}")
        self.tail.crop(tokens)


@dataclass(frozen=True)
class PerDocumentMaps(Projection):
    """The projections of several documents, each for its own rows. Questions are asked after the
    last document, by its projections.

    Args:
        starts: the first row of each document, ascending from 0. maps: their projections.
    """

    starts: Sequence[int]
    maps: Sequence[Projection]

    def at(self, row: int) -> Projection:
        """The maps of the document that a row belongs to."""
        return self.maps[bisect_right(self.starts, row) - 1]

    def queries(self, q: Tensor) -> Tensor:
        return self.maps[-1].queries(q)

    def keys(self, k: Tensor) -> Tensor:
        return self.maps[-1].keys(k)


@dataclass(frozen=True)
class PrefilledDocument:
    """One document as a model prefilled it.

    Args:
        ids: of its tokens, the prompt's head first. stores: one for each layer that keeps rows,
            with one for every token. projections: the fitted compressor of each layer, or None.
        head: number of tokens of the prompt's head.
        read_by: the method that prefilled it; None if only the same one can find it, as in a
            library.
        states: what selectors keep of each layer's tokens, by class of selector.
        recurrent: the state of each layer that keeps one in place of rows, after the last token.
    """

    ids: Sequence[int]
    stores: Sequence[KVStore]
    projections: Sequence[Projection | None]
    head: int = 0
    read_by: Method | None = None
    states: Sequence[dict[type, LayerState]] = ()
    recurrent: Sequence[dict[str, Tensor]] = ()

    def layer_states(self, layer: int) -> dict[type, LayerState]:
        """Of one layer; each opening adds to them, so that nothing is computed twice."""
        return self.states[layer] if self.states else {}


def concatenate(
    documents: Sequence[PrefilledDocument],
) -> tuple[list[int], list[KVStore], list[Projection | None]]:
    """Ids, stores and projections of the documents in order; the first keeps its prompt's head."""
    ids, starts = list(documents[0].ids), [0]
    for document in documents[1:]:
        starts.append(len(ids))
        ids += document.ids[document.head :]
    stores: list[KVStore] = []
    projections: list[Projection | None] = []
    for layer, first in enumerate(documents[0].stores):
        parts = [
            StoreSlice(document.stores[layer], document.head if i else 0, len(document.ids))
            for i, document in enumerate(documents)
        ]
        keys, _ = first.span(0, 1)
        tail = MemoryStore(first.heads, first.dim, keys.dtype, keys.device, first.shared)
        tail.expect(RESERVE)
        stores.append(JoinedStore(parts, tail))
        maps = [document.projections[layer] for document in documents]
        fitted = [one for one in maps if one is not None]
        if len(fitted) < len(maps):
            projections.append(None)
        else:
            projections.append(fitted[0] if len(fitted) == 1 else PerDocumentMaps(starts, fitted))
    return ids, stores, projections


def text_rows(documents: Sequence[PrefilledDocument]) -> list[range]:
    """For each document of `concatenate`, the rows of its text, without the prompt's head."""
    out, start = [], 0
    for i, document in enumerate(documents):
        stop = start + len(document.ids) - (document.head if i else 0)
        out.append(range(start + (0 if i else document.head), stop))
        start = stop
    return out

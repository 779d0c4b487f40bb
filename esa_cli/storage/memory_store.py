"""KV cache of one layer in memory, documents that were prefilled, and the cache of several joined.

Token-major: a token's keys and values of all G heads are one contiguous row, so that fetching a
selected token is one read. Nothing is ever evicted. Keys are unrotated, so rows of several
documents can follow each other as if they had been prefilled in one sequence; the question and its
answer are appended to a tail. Where a GPU has less memory than the cache takes, rows may be in host
memory: reduced keys stay on the GPU, and selected rows are copied to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.step import KVStore, LayerState, Projection

CPU = torch.device("cpu")
BLOCK = 8192
"""Tokens of a block in a scan of keys: 6 MB with 3 heads of 64 floats, which fits a cache."""
FIRST_SEGMENT, LAST_SEGMENT, GROWTH = 1024, 16384, 1.25
"""Rows of the first segment on the CPU, and of the longest; growth of the segment on a GPU."""
RESERVE = 2048
"""Rows after a document's on a GPU, for questions and answers; as many again when they are full."""


def has_own_memory(device: torch.device) -> bool:
    """Whether a device has other memory than the CPU."""
    return device.type == "cuda"


in_one_segment = has_own_memory
"""Whether rows on a device are one segment: finding the segment of a row would synchronise."""


def as_index(places: Sequence[int]) -> slice | list[int]:
    """Returns indices along a dimension; a slice, which copies nothing, if they are consecutive."""
    first, stop = places[0], places[0] + len(places)
    return slice(first, stop) if list(places) == list(range(first, stop)) else list(places)


def divide_range(starts: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields (part, low, high) of every part of [start, stop); low and high count in the part.
    `starts` says where each part begins, and where the last one ends."""
    while start < stop:
        part = bisect_right(starts, start) - 1
        high = min(stop, starts[part + 1])
        yield part, start - starts[part], high - starts[part]
        start = high


def divide_positions(starts: Sequence[int], at: Tensor) -> Iterator[tuple[int, slice]]:
    """Yields (part, slice of `at`) for each part, see `divide_range`, that has some of the
    ascending positions `at` (K,)."""
    edges = torch.tensor(starts).to(at.device, non_blocking=True)
    for part, (low, high) in enumerate(pairwise(torch.searchsorted(at, edges).tolist())):
        if low < high:
            yield part, slice(low, high)


class GrowingRows:
    """A growing (N, width) matrix. On the CPU it is a list of segments that are never copied, so a
    document never needs twice its memory. On a GPU it is one segment of as many rows as are
    expected, copied into a longer one when it is full."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.width, self.dtype, self.device = width, dtype, device
        self.length = self._expected = 0
        self._whole = in_one_segment(device)
        self._segments: list[Tensor] = []
        self._starts: list[int] = []

    @property
    def capacity(self) -> int:
        return self._starts[-1] + self._segments[-1].shape[0] if self._segments else 0

    @property
    def nbytes(self) -> int:
        """Bytes allocated; on the CPU, which gives memory when it is written to, of rows in use."""
        rows = self.capacity if self._whole else self.length
        return rows * self.width * self.dtype.itemsize

    def expect(self, length: int) -> None:
        """Announces the number of rows. Nothing is allocated before rows are appended."""
        self._expected = length

    def _grow(self, need: int) -> None:
        if self._whole and self.capacity < need:
            rows = self._expected or FIRST_SEGMENT
            if self.capacity:
                rows = self.capacity + RESERVE if self._expected else int(GROWTH * self.capacity)
            segment = self._new_segment(max(need, rows))
            for at, view in self._views(0, self.length):
                segment[at : at + view.shape[0]] = view
            self._segments, self._starts = [segment], [0]
        while self.capacity < need:
            segment = self._new_segment(min(LAST_SEGMENT, max(FIRST_SEGMENT, self.capacity)))
            # In one statement without calls, between whose halves no interruption (Ctrl-C) comes.
            before, starts = self._segments, [*self._starts, self.capacity]
            self._segments, self._starts = [*before, segment], starts

    def _new_segment(self, rows: int) -> Tensor:
        # Outside inference mode, so that rows appended there can be extended outside of it.
        with torch.inference_mode(False):
            return torch.empty(rows, self.width, dtype=self.dtype, device=self.device)

    def _views(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, view) of every segment's part of [start, stop)."""
        for part, low, high in divide_range([*self._starts, self.capacity], start, stop):
            yield self._starts[part] + low, self._segments[part][low:high]

    @torch.no_grad()
    def append(self, rows: Tensor) -> None:
        count = rows.shape[0]
        self._grow(self.length + count)
        for at, view in self._views(self.length, self.length + count):
            view.copy_(rows[at - self.length : at - self.length + view.shape[0]])
        self.length += count  # last: an interruption leaves no unwritten rows

    def span(self, start: int, stop: int) -> Tensor:
        """Returns rows [start, stop), (stop - start, width); a view if they are in one segment."""
        views = [view for _, view in self._views(start, stop)]
        if len(views) == 1:
            return views[0]
        return torch.cat([torch.empty(0, self.width, dtype=self.dtype, device=self.device), *views])

    def blocks(self, start: int, stop: int, most: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, view) of [start, stop) in views of at most `most` rows."""
        for at, view in self._views(start, stop):
            for low in range(0, view.shape[0], most):
                yield at + low, view[low : low + most]

    @torch.no_grad()
    def gather(self, at: Tensor) -> Tensor:
        """Returns rows at ascending absolute positions (K,) as (K, width)."""
        if len(self._segments) == 1 and at.numel():
            return self._segments[0].index_select(0, at)
        out = torch.empty(at.shape[0], self.width, dtype=self.dtype, device=self.device)
        for part, rows in divide_positions([*self._starts, self.capacity], at):
            out[rows] = self._segments[part].index_select(0, at[rows] - self._starts[part])
        return out

    def copy_after(self, start: int) -> GrowingRows:
        rest = GrowingRows(self.width, self.dtype, self.device)
        rest.expect(self._expected)
        rest.append(self.span(start, self.length))
        return rest

    def truncate(self, length: int) -> None:
        """Keeps the first `length` rows; segments are kept for the next ones."""
        self.length = min(self.length, max(length, 0))


def split_rows(rows: Tensor, heads: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Returns rows (n, 2 * G * D), or (n, G * D) where the keys are the values, as keys and values,
    each (G, n, D)."""
    parts = 1 if shared else 2
    both = rows.view(rows.shape[0], parts, heads, rows.shape[1] // (parts * heads))
    return both[:, 0].transpose(0, 1), both[:, -1].transpose(0, 1)


class MemoryStore:
    """Keys and values of N tokens of one layer with G `heads` of `dim` D, and their reduced keys.
    `shared`: the keys are the values, too, and stored once (MLA). `on_host`: keys and values are in
    host memory, and not on the device that computes."""

    def __init__(
        self, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
        shared: bool = False, on_host: bool = False,
    ) -> None:  # fmt: skip
        self.heads, self.dim, self.dtype, self.device = heads, dim, dtype, device
        self.shared, self.resident = shared, not on_host
        width = (1 if shared else 2) * heads * dim
        self._rows = GrowingRows(width, dtype, CPU if on_host else device)
        self._features: GrowingRows | None = None
        self._expected = 0

    def expect(self, tokens: int) -> None:
        """Announces the number of tokens, before the first."""
        self._expected = tokens
        self._rows.expect(tokens)

    def __len__(self) -> int:
        return self._rows.length

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + (self._features.nbytes if self._features else 0)

    def append(self, k: Tensor, v: Tensor) -> None:
        both = (k,) if self.shared else (k, v)
        rows = torch.stack([part.transpose(0, 1) for part in both], dim=1)
        self._rows.append(rows.reshape(k.shape[1], self._rows.width))

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows = self._rows.span(start, stop).to(self.device)
        return split_rows(rows, self.heads, self.shared)

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows.gather(at.to(self._rows.device)).to(self.device)
        return split_rows(rows, self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        for at, rows in self._rows.blocks(start, stop, most):
            keys = split_rows(rows, self.heads, self.shared)[0].to(self.device)
            yield at, keys if groups is None else keys[as_index(groups)]

    @property
    def reduced(self) -> int:
        return self._features.length if self._features else 0

    def append_features(self, features: Tensor) -> None:
        if self._features is None:
            self._features = GrowingRows(features.shape[1], features.dtype, features.device)
            self._features.expect(self._expected)
        self._features.append(features)

    def feature_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        assert self._features is not None, "the store must have reduced keys"
        yield from self._features.blocks(start, stop, most)

    def crop(self, tokens: int) -> None:
        length = len(self) + tokens
        if self._features is not None:
            self._features.truncate(length)
        self._rows.truncate(length)  # last: `len` shows whether the crop was interrupted

    def first(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Returns the first tokens' rows, see `split_rows`, and their reduced keys (count, R)."""
        features = self._features.span(0, count) if self._features else None
        return self._rows.span(0, count), features

    def drop_first(self, count: int) -> None:
        """Removes the first `count` tokens and frees their memory."""
        self._rows = self._rows.copy_after(count)
        if self._features is not None:
            self._features = self._features.copy_after(count)


class MakeStore(Protocol):
    """Makes the store of a layer with G key/value heads of D dimensions."""

    def __call__(
        self, layer: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
        shared: bool = False,
    ) -> KVStore:  # fmt: skip
        ...


class StorePlaces:
    """Makes stores, each on its layer's device, or in host memory if the layer's device has other
    memory (`elsewhere`)."""

    def __init__(self, elsewhere: Callable[[torch.device], bool] = has_own_memory) -> None:
        self.elsewhere = elsewhere

    def stores(self, on_host: Container[int]) -> MakeStore:
        """Returns a function that puts these layers' rows into host memory."""

        def make_store(
            layer: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
            shared: bool = False,
        ) -> KVStore:  # fmt: skip
            hosted = layer in on_host and self.elsewhere(device)
            return MemoryStore(heads, dim, dtype, device, shared, hosted)

        return make_store


class StoreSlice(NamedTuple):
    """Tokens [low, high) of a store."""

    store: KVStore
    low: int
    high: int


def refuse_change(store: Any, *arguments: Any) -> None:
    """Refuses `append`, `append_features` and `crop` of a read-only store."""
    raise TypeError("stored rows are read-only; JoinedStore appends after them")


class StoreChain:
    """The rows of slices of stores, one after another, read-only. `like` is a store of the same
    heads and dimension as all parts."""

    def __init__(self, parts: Sequence[StoreSlice], like: KVStore) -> None:
        self.heads, self.dim, self.shared = like.heads, like.dim, like.shared
        self._parts, self._starts = list[StoreSlice](), [0]
        for part in parts:
            self._append_slice(part)

    def _append_slice(self, part: StoreSlice) -> None:
        self._parts.append(part)
        self._starts.append(self._starts[-1] + part.high - part.low)

    def _all_slices(self) -> list[StoreSlice]:
        return self._parts

    def _slice_edges(self) -> list[int]:
        """Where each slice begins, and where the last one ends."""
        return self._starts

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        return sum(part.store.nbytes for part in self._all_slices())

    @property
    def resident(self) -> bool:
        return all(part.store.resident for part in self._parts)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, KVStore, int, int]]:
        """Yields (absolute start, store, low, high) of every store's part of [start, stop)."""
        slices, edges = self._all_slices(), self._slice_edges()
        for i, low, high in divide_range(edges, start, stop):
            store, first, _ = slices[i]
            yield edges[i] + low, store, first + low, first + high

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        pieces = self._pieces(start, stop)
        return self._concatenate([store.span(low, high) for _, store, low, high in pieces])

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        slices, edges, pairs = (
            self._all_slices(),
            self._slice_edges(),
            list[tuple[Tensor, Tensor]](),
        )
        for i, rows in divide_positions(edges, at):
            store, first, _ = slices[i]
            pairs.append(store.gather(at[rows] - (edges[i] - first)))
        return self._concatenate(pairs)

    def _concatenate(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if not pairs:
            return self._all_slices()[-1].store.span(0, 0)
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
        for start, part in zip(self._slice_edges(), self._all_slices(), strict=False):
            if part.store.reduced < part.high:
                return start + max(0, part.store.reduced - part.low)
        return len(self)

    def feature_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        for begin, store, low, high in self._pieces(start, stop):
            for at, features in store.feature_blocks(low, high, most):
                yield at - low + begin, features

    append = append_features = crop = refuse_change


class JoinedStore(StoreChain):
    """The rows of all parts in order, then those of the tail, which begins empty."""

    def __init__(self, parts: Sequence[StoreSlice], tail: MemoryStore) -> None:
        self.tail = tail
        super().__init__(parts, tail)

    def _all_slices(self) -> list[StoreSlice]:
        return [*self._parts, StoreSlice(self.tail, 0, len(self.tail))]

    def _slice_edges(self) -> list[int]:
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
        self._append_slice(StoreSlice(store, 0, len(store)))
        self.tail.drop_first(len(store))

    def crop(self, tokens: int) -> None:
        if -tokens > len(self.tail):
            raise ValueError(f"tokens must be at least {-len(self.tail)}, got {tokens}")
        self.tail.crop(tokens)


@dataclass(frozen=True)
class PerDocumentMaps(Projection):
    """The projections of several documents, whose rows begin at `starts`, ascending from 0. The
    last document's projections serve questions, which follow it."""

    starts: Sequence[int]
    maps: Sequence[Projection]

    def at(self, row: int) -> Projection:
        """Returns the projections of the document that a row belongs to."""
        return self.maps[bisect_right(self.starts, row) - 1]

    def queries(self, q: Tensor) -> Tensor:
        return self.maps[-1].queries(q)

    def keys(self, k: Tensor) -> Tensor:
        return self.maps[-1].keys(k)


@dataclass(frozen=True)
class PrefilledDocument:
    """One document as a model prefilled it.

    Args:
        ids: of its tokens, `head` tokens of the prompt first. stores: one for each layer that keeps
            rows. projections: the fitted compressor of each layer, or None.
        read_by: the method that prefilled it; None in a library, where no other can find it.
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
        """Returns the states of a layer, which each opening adds to: nothing is computed twice."""
        return self.states[layer] if self.states else {}


def concatenate(
    documents: Sequence[PrefilledDocument],
) -> tuple[list[int], list[KVStore], list[Projection | None]]:
    """Returns ids, stores and projections of the documents in order; the first keeps its prompt's
    head."""
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
        fitted = [projection for projection in maps if projection is not None]
        if len(fitted) < len(maps):
            projections.append(None)
        else:
            projections.append(fitted[0] if len(fitted) == 1 else PerDocumentMaps(starts, fitted))
    return ids, stores, projections


def text_rows(documents: Sequence[PrefilledDocument]) -> list[range]:
    """Returns, for each document of `concatenate`, the rows of its text, without the prompt's
    head."""
    out, start = [], 0
    for i, document in enumerate(documents):
        stop = start + len(document.ids) - (document.head if i else 0)
        out.append(range(start + (0 if i else document.head), stop))
        start = stop
    return out

"""The KV cache of one layer in memory, prefilled documents, and the KV cache of several documents.

A token's keys and values of all G key/value heads are one contiguous row, so that a selected token
is fetched by one memory access. No token is ever evicted. Keys are stored unrotated, so the rows of
several documents can follow each other as if they had been prefilled in one sequence. The question
and its answer are appended to a tail. If the KV cache does not fit on a GPU, its rows may be in
host memory; reduced keys stay on the GPU, and selected rows are copied to the GPU."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.step import KVStore, LayerState, Projection

CPU = torch.device("cpu")
BLOCK = 8192
"""Number of tokens in a block of a scan: 6 MB of keys with 3 heads of 64 floats."""
FIRST_SEGMENT, LAST_SEGMENT, GROWTH = 1024, 16384, 1.25
"""Rows of the first and of the longest segment on the CPU; growth factor of a segment on a GPU."""
RESERVE = 2048
"""Number of rows that a GPU reserves after a document for questions and answers."""


def has_own_memory(device: torch.device) -> bool:
    """Whether a torch device, such as a GPU, has memory separate from the CPU's."""
    return device.type == "cuda"


def make_slice_or_list(indices: Sequence[int]) -> slice | list[int]:
    """Returns consecutive indices as a slice, which copies nothing, and other indices as a list."""
    first, stop = indices[0], indices[0] + len(indices)
    return slice(first, stop) if list(indices) == list(range(first, stop)) else list(indices)


def divide_range(
    part_starts: Sequence[int], start: int, stop: int
) -> Iterator[tuple[int, int, int]]:
    """Divides the range [start, stop) of rows at the borders of parts. Yields each part's index and
    the range of those rows that the part has, counted from the part's first row.
    `part_starts` has the first row of each part and, at its end, the number of all rows."""
    while start < stop:
        part = bisect_right(part_starts, start) - 1
        high = min(stop, part_starts[part + 1])
        yield part, start - part_starts[part], high - part_starts[part]
        start = high


def divide_positions(part_starts: Sequence[int], positions: Tensor) -> Iterator[tuple[int, slice]]:
    """Divides ascending positions (K,) at the borders of parts. Yields the index of each part that
    has any of the positions, and the slice of these positions. `part_starts` has the first position
    of each part and, at its end, the number of all positions."""
    edges = torch.tensor(part_starts).to(positions.device, non_blocking=True)
    for part, (low, high) in enumerate(pairwise(torch.searchsorted(positions, edges).tolist())):
        if low < high:
            yield part, slice(low, high)


class GrowingRows:
    """A matrix (N, width) to which rows are appended. On the CPU the matrix is a list of segments
    that are never copied, so a document never needs twice its memory. On a GPU the matrix is one
    segment of as many rows as are expected, which is copied into a longer one when it is full."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.width, self.dtype, self.device = width, dtype, device
        self.length = self._expected = 0
        self._whole = has_own_memory(device)  # finding a row's segment would synchronise
        self._segments: list[Tensor] = []
        self._starts: list[int] = []

    @property
    def capacity(self) -> int:
        return self._starts[-1] + self._segments[-1].shape[0] if self._segments else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the matrix in memory: of allocated rows on a GPU, of used rows on the CPU."""
        rows = self.capacity if self._whole else self.length
        return rows * self.width * self.dtype.itemsize

    def expect(self, length: int) -> None:
        """Announces the matrix's final number of rows, by which later appends allocate memory."""
        self._expected = length

    def _allocate_rows(self, row_count: int) -> None:
        if self._whole and self.capacity < row_count:
            rows = self._expected or FIRST_SEGMENT
            if self.capacity:
                rows = self.capacity + RESERVE if self._expected else int(GROWTH * self.capacity)
            segment = self._allocate_segment(max(row_count, rows))
            for at, view in self._iterate_views(0, self.length):
                segment[at : at + view.shape[0]] = view
            self._segments, self._starts = [segment], [0]
        while self.capacity < row_count:
            segment = self._allocate_segment(min(LAST_SEGMENT, max(FIRST_SEGMENT, self.capacity)))
            # In one statement without calls, between whose halves no interruption (Ctrl-C) comes.
            before, starts = self._segments, [*self._starts, self.capacity]
            self._segments, self._starts = [*before, segment], starts

    def _allocate_segment(self, row_count: int) -> Tensor:
        # Outside inference mode, so that rows appended there can be extended outside of it.
        with torch.inference_mode(False):
            return torch.empty(row_count, self.width, dtype=self.dtype, device=self.device)

    def _iterate_views(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (number of its first row, view) of the rows [start, stop), for each segment."""
        for part, low, high in divide_range([*self._starts, self.capacity], start, stop):
            yield self._starts[part] + low, self._segments[part][low:high]

    @torch.no_grad()
    def append(self, rows: Tensor) -> None:
        count = rows.shape[0]
        self._allocate_rows(self.length + count)
        for at, view in self._iterate_views(self.length, self.length + count):
            view.copy_(rows[at - self.length : at - self.length + view.shape[0]])
        self.length += count  # last: an interruption leaves no unwritten rows

    def span(self, start: int, stop: int) -> Tensor:
        """Returns the rows [start, stop), without copying if one segment has all of them."""
        views = [view for _, view in self._iterate_views(start, stop)]
        if len(views) == 1:
            return views[0]
        return torch.cat([torch.empty(0, self.width, dtype=self.dtype, device=self.device), *views])

    def blocks(self, start: int, stop: int, max_rows: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (number of the first row, view) of each block of the rows [start, stop), of at
        most `max_rows` rows."""
        for at, view in self._iterate_views(start, stop):
            for low in range(0, view.shape[0], max_rows):
                yield at + low, view[low : low + max_rows]

    @torch.no_grad()
    def gather(self, at: Tensor) -> Tensor:
        """Returns the rows (K, width) with the ascending numbers `at` (K,)."""
        if len(self._segments) == 1 and at.numel():
            return self._segments[0].index_select(0, at)
        out = torch.empty(at.shape[0], self.width, dtype=self.dtype, device=self.device)
        for part, rows in divide_positions([*self._starts, self.capacity], at):
            out[rows] = self._segments[part].index_select(0, at[rows] - self._starts[part])
        return out

    def copy_rows_from(self, start: int) -> GrowingRows:
        """Returns a new matrix with the rows from `start` on."""
        rest = GrowingRows(self.width, self.dtype, self.device)
        rest.expect(self._expected)
        rest.append(self.span(start, self.length))
        return rest

    def truncate(self, length: int) -> None:
        """Keeps the first `length` rows and removes the others, without freeing memory."""
        self.length = min(self.length, max(length, 0))


def split_keys_and_values(rows: Tensor, heads: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Splits rows (n, 2 * G * D) into keys and values, each (G, n, D). With `shared`, the rows are
    (n, G * D) and the keys are also the values."""
    parts = 1 if shared else 2
    both = rows.view(rows.shape[0], parts, heads, rows.shape[1] // (parts * heads))
    return both[:, 0].transpose(0, 1), both[:, -1].transpose(0, 1)


class MemoryStore:
    """The keys, values and reduced keys of N tokens in one layer, in memory. The layer has `heads`
    key/value heads of dimension `dim`. `shared` says that the keys are also the values (MLA), and
    `on_host` that keys and values are in host memory rather than on the computing device."""

    def __init__(
        self, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
        shared: bool = False, on_host: bool = False,
    ) -> None:  # fmt: skip
        self.heads, self.dim, self.dtype, self.device = heads, dim, dtype, device
        self.shared, self.is_on_device = shared, not on_host
        width = (1 if shared else 2) * heads * dim
        self._rows = GrowingRows(width, dtype, CPU if on_host else device)
        self._features: GrowingRows | None = None
        self._expected = 0

    def expect(self, tokens: int) -> None:
        """Announces the final number of tokens, before the first token is appended."""
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
        return split_keys_and_values(rows, self.heads, self.shared)

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows.gather(at.to(self._rows.device)).to(self.device)
        return split_keys_and_values(rows, self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        for at, rows in self._rows.blocks(start, stop, most):
            keys = split_keys_and_values(rows, self.heads, self.shared)[0].to(self.device)
            yield at, keys if groups is None else keys[make_slice_or_list(groups)]

    @property
    def reduced_key_count(self) -> int:
        return self._features.length if self._features else 0

    def append_reduced_keys(self, features: Tensor) -> None:
        if self._features is None:
            self._features = GrowingRows(features.shape[1], features.dtype, features.device)
            self._features.expect(self._expected)
        self._features.append(features)

    def reduced_key_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        assert self._features is not None, "the store must have reduced keys"
        yield from self._features.blocks(start, stop, most)

    def crop(self, tokens: int) -> None:
        length = len(self) + tokens
        if self._features is not None:
            self._features.truncate(length)
        self._rows.truncate(length)  # last: `len` shows whether the crop was interrupted

    def read_first_tokens(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Returns the keys and values, as rows, and reduced keys of the first `count` tokens."""
        features = self._features.span(0, count) if self._features else None
        return self._rows.span(0, count), features

    def drop_first_tokens(self, count: int) -> None:
        """Removes the first `count` tokens and frees their memory."""
        self._rows = self._rows.copy_rows_from(count)
        if self._features is not None:
            self._features = self._features.copy_rows_from(count)


class StoreSlice(NamedTuple):
    """The tokens [low, high) of a store of keys and values."""

    store: KVStore
    low: int
    high: int


def refuse_change_of_read_only_store(store: Any, *arguments: Any) -> None:
    """Raises TypeError, in place of the methods that append tokens to a store or remove tokens."""
    raise TypeError("a stored KV cache cannot be changed; append the tokens to a JoinedStore")


class StoreChain:
    """A read-only store that concatenates slices of other stores. `like` is any store with the same
    number of heads and the same head dimension."""

    def __init__(self, parts: Sequence[StoreSlice], like: KVStore) -> None:
        self.heads, self.dim, self.shared = like.heads, like.dim, like.shared
        self._parts, self._starts = list[StoreSlice](), [0]
        for part in parts:
            self._append_slice(part)

    def _append_slice(self, part: StoreSlice) -> None:
        self._parts.append(part)
        self._starts.append(self._starts[-1] + part.high - part.low)

    def _list_slices(self) -> list[StoreSlice]:
        return self._parts

    def _compute_slice_edges(self) -> list[int]:
        """Returns the number of each slice's first token in the chain and, at the end, the number
        of all tokens, which occurs twice if the chain has no tail."""
        return [*self._starts, len(self)]

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        return sum(part.store.nbytes for part in self._list_slices())

    @property
    def is_on_device(self) -> bool:
        return all(part.store.is_on_device for part in self._parts)

    def _divide_by_store(self, start: int, stop: int) -> Iterator[tuple[int, KVStore, int, int]]:
        """Yields (first token in the chain, store, low, high) for each slice of [start, stop)."""
        slices, edges = self._list_slices(), self._compute_slice_edges()
        for i, low, high in divide_range(edges, start, stop):
            store, first, _ = slices[i]
            yield edges[i] + low, store, first + low, first + high

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        pieces = self._divide_by_store(start, stop)
        return self._concatenate_pairs([store.span(low, high) for _, store, low, high in pieces])

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        slices, edges = self._list_slices(), self._compute_slice_edges()
        pairs = list[tuple[Tensor, Tensor]]()
        for i, rows in divide_positions(edges, at):
            store, first, _ = slices[i]
            pairs.append(store.gather(at[rows] - (edges[i] - first)))
        return self._concatenate_pairs(pairs)

    def _concatenate_pairs(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if not pairs:
            return self._list_slices()[-1].store.span(0, 0)
        if len(pairs) == 1:
            return pairs[0]
        return torch.cat([k for k, _ in pairs], 1), torch.cat([v for _, v in pairs], 1)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        for begin, store, low, high in self._divide_by_store(start, stop):
            for at, keys in store.key_blocks(low, high, most, groups):
                yield at - low + begin, keys

    @property
    def reduced_key_count(self) -> int:
        for start, part in zip(self._compute_slice_edges(), self._list_slices(), strict=False):
            if part.store.reduced_key_count < part.high:
                return start + max(0, part.store.reduced_key_count - part.low)
        return len(self)

    def reduced_key_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        for begin, store, low, high in self._divide_by_store(start, stop):
            for at, features in store.reduced_key_blocks(low, high, most):
                yield at - low + begin, features

    append = append_reduced_keys = crop = refuse_change_of_read_only_store


class JoinedStore(StoreChain):
    """A store that concatenates slices of other stores, and has a tail to append new tokens to."""

    def __init__(self, parts: Sequence[StoreSlice], tail: MemoryStore) -> None:
        self.tail = tail
        super().__init__(parts, tail)

    def _list_slices(self) -> list[StoreSlice]:
        return [*self._parts, StoreSlice(self.tail, 0, len(self.tail))]

    @property
    def tail_start(self) -> int:
        """Number of tokens in the slices, which precede the tail's tokens."""
        return self._starts[-1]

    def __len__(self) -> int:
        return self.tail_start + len(self.tail)

    def append(self, k: Tensor, v: Tensor) -> None:
        self.tail.append(k, v)

    def append_reduced_keys(self, features: Tensor) -> None:
        assert self.reduced_key_count >= self.tail_start, "all parts must have reduced keys"
        self.tail.append_reduced_keys(features)

    def replace_first_tail_tokens(self, store: KVStore) -> None:
        """Replaces the first tokens of the tail by a read-only store of the same tokens."""
        self._append_slice(StoreSlice(store, 0, len(store)))
        self.tail.drop_first_tokens(len(store))

    def crop(self, tokens: int) -> None:
        if -tokens > len(self.tail):
            raise ValueError(
                f"at most {len(self.tail)} appended tokens can be removed, got {-tokens}"
            )
        self.tail.crop(tokens)


@dataclass(frozen=True)
class PrefilledDocument:
    """A document that the model has read (prefilled), with the KV cache of its tokens.

    Args:
        ids: token ids, beginning with the `head` tokens of the prompt before the document.
        stores: a store for each layer with a KV cache.
        projections: the fitted projection of each layer, or None.
        read_by: the method that prefilled the document, or None if a library stored the document.
        states: for each layer, the state that each class of selector keeps; may be empty.
        recurrent: for each recurrent layer, its state after the last token."""

    ids: Sequence[int]
    stores: Sequence[KVStore]
    projections: Sequence[Projection | None]
    head: int = 0
    read_by: Method | None = None
    states: Sequence[dict[type, LayerState]] = ()
    recurrent: Sequence[dict[str, Tensor]] = ()


def concatenate_documents(
    documents: Sequence[PrefilledDocument],
) -> tuple[list[int], list[KVStore], list[Projection | None]]:
    """Concatenates documents for one question, and returns token ids, stores and projections. Only
    for the first document, the tokens of the prompt before the text are included."""
    ids = list(documents[0].ids)
    for document in documents[1:]:
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
        fitted = [document.projections[layer] for document in documents]
        # Questions follow the last document, and are reduced by its projection.
        projections.append(None if any(one is None for one in fitted) else fitted[-1])
    return ids, stores, projections


def locate_document_texts(documents: Sequence[PrefilledDocument]) -> list[range]:
    """Returns the positions of each document's text in the concatenated KV cache, without the
    tokens of the prompt."""
    out, start = [], 0
    for i, document in enumerate(documents):
        stop = start + len(document.ids) - (document.head if i else 0)
        out.append(range(start + (0 if i else document.head), stop))
        start = stop
    return out

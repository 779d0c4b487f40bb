"""Keeps the KV caches of documents in memory, and concatenates the KV caches of several documents.

A token's keys and values of all heads are one contiguous row, so that a selected token is fetched
by one memory access. No token is ever evicted from a KV cache. Keys are stored before rotary
position encoding, so the KV caches of several documents can be concatenated as if the documents had
been prefilled in one sequence. The tokens of a question and its answer are appended to the
concatenated KV cache. If a KV cache does not fit on a GPU, its keys and values are kept in host
memory, and those of selected tokens are copied to the GPU. Reduced keys stay on the GPU."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.method import Method
from esa_cli.attention.step import KVStore, LayerState, Projection

CPU = torch.device("cpu")
BLOCK = 8192
"""Tokens of which keys are read at once in a scan: 6 MB of keys with 3 heads of 64 floats."""
FIRST_SEGMENT, LAST_SEGMENT, GROWTH = 1024, 16384, 1.25
"""Rows of the first and of the longest segment on the CPU; growth factor of a segment on a GPU."""
RESERVE = 2048
"""Number of rows that a GPU reserves after a document for questions and answers."""
Blocks = Iterator[tuple[int, Tensor]]
"""The number of the first row or token of each block, and the block."""


def has_separate_memory(device: torch.device) -> bool:
    """Whether a torch device, such as a GPU, has memory separate from the CPU's."""
    return device.type == "cuda"


def make_slice_or_list(indices: Sequence[int]) -> slice | list[int]:
    """Returns consecutive indices as a slice, by which indexing copies nothing, or else a list."""
    first, stop = indices[0], indices[0] + len(indices)
    return slice(first, stop) if list(indices) == list(range(first, stop)) else list(indices)


def divide_range(
    part_starts: Sequence[int], first_row: int, end_row: int
) -> Iterator[tuple[int, int, int]]:
    """Yields (part index, first row in the part, end row in the part) for each part that a range of
    rows overlaps. `part_starts` lists each part's first row, and then the number of all rows."""
    while first_row < end_row:
        part = bisect_right(part_starts, first_row) - 1
        end_in_part = min(end_row, part_starts[part + 1])
        yield part, first_row - part_starts[part], end_in_part - part_starts[part]
        first_row = end_in_part


def divide_positions(part_starts: Sequence[int], positions: Tensor) -> Iterator[tuple[int, slice]]:
    """Divides ascending positions of tokens by the part of a KV cache that stores the token, and
    yields (part index, slice of `positions`) for each part that stores any of the tokens.
    `part_starts` lists each part's first position and then how many tokens the KV cache has."""
    edges = torch.tensor(part_starts).to(positions.device, non_blocking=True)
    for part, (low, high) in enumerate(pairwise(torch.searchsorted(positions, edges).tolist())):
        if low < high:
            yield part, slice(low, high)


class GrowingRowMatrix:
    """A matrix of `width` columns to which rows are appended. On the CPU, the rows are stored in
    several tensors (segments), which are never copied, so a document never needs twice its memory.
    On a GPU, one tensor has all rows, at first `expected` rows, and is copied when it is full."""

    def __init__(
        self, width: int, dtype: torch.dtype, device: torch.device, expected: int = 0
    ) -> None:
        self.width, self.dtype, self.device = width, dtype, device
        self.length, self._expected = 0, expected
        self._whole = has_separate_memory(device)  # finding a row's segment would synchronise
        self._segments: list[Tensor] = []
        self._starts: list[int] = []

    @property
    def row_capacity(self) -> int:
        return self._starts[-1] + self._segments[-1].shape[0] if self._segments else 0

    @property
    def nbytes(self) -> int:
        """Number of bytes of the allocated rows on a GPU, or of the used rows on the CPU."""
        rows = self.row_capacity if self._whole else self.length
        return rows * self.width * self.dtype.itemsize

    def _ensure_row_capacity(self, row_count: int) -> None:
        if self._whole and self.row_capacity < row_count:
            rows, old_count = self._expected or FIRST_SEGMENT, self.row_capacity
            if old_count:
                rows = old_count + RESERVE if self._expected else int(GROWTH * old_count)
            segment = self._make_segment(max(row_count, rows))
            for at, view in self._iterate_segment_views(0, self.length):
                segment[at : at + view.shape[0]] = view
            self._segments, self._starts = [segment], [0]
        while self.row_capacity < row_count:
            segment = self._make_segment(min(LAST_SEGMENT, max(FIRST_SEGMENT, self.row_capacity)))
            # In one statement without calls, between whose halves no interruption (Ctrl-C) comes.
            before, starts = self._segments, [*self._starts, self.row_capacity]
            self._segments, self._starts = [*before, segment], starts

    def _make_segment(self, row_count: int) -> Tensor:
        # Outside inference mode, so that rows appended there can be extended outside of it.
        with torch.inference_mode(False):
            return torch.empty(row_count, self.width, dtype=self.dtype, device=self.device)

    def _iterate_segment_views(self, first_row: int, end_row: int) -> Blocks:
        """Yields (number of the first row, view of the rows) for each segment of a row range."""
        for part, low, high in divide_range([*self._starts, self.row_capacity], first_row, end_row):
            yield self._starts[part] + low, self._segments[part][low:high]

    @torch.no_grad()
    def append_rows(self, rows: Tensor) -> None:
        count = rows.shape[0]
        self._ensure_row_capacity(self.length + count)
        for at, view in self._iterate_segment_views(self.length, self.length + count):
            view.copy_(rows[at - self.length : at - self.length + view.shape[0]])
        self.length += count  # last: an interruption leaves no unwritten rows

    def get_row_range(self, first_row: int, end_row: int) -> Tensor:
        """Returns a range of rows, as a view if one segment has the whole range, else as a copy."""
        views = [view for _, view in self._iterate_segment_views(first_row, end_row)]
        if len(views) == 1:
            return views[0]
        return torch.cat([torch.empty(0, self.width, dtype=self.dtype, device=self.device), *views])

    def iterate_row_blocks(self, first_row: int, end_row: int, max_rows: int) -> Blocks:
        """Yields (number of the first row, view of up to `max_rows` rows) for a range of rows."""
        for at, view in self._iterate_segment_views(first_row, end_row):
            for low in range(0, view.shape[0], max_rows):
                yield at + low, view[low : low + max_rows]

    @torch.no_grad()
    def gather_rows(self, row_numbers: Tensor) -> Tensor:
        """Returns copies of the rows with the given ascending numbers."""
        if len(self._segments) == 1 and row_numbers.numel():
            return self._segments[0].index_select(0, row_numbers)
        out = torch.empty(row_numbers.shape[0], self.width, dtype=self.dtype, device=self.device)
        for part, rows in divide_positions([*self._starts, self.row_capacity], row_numbers):
            out[rows] = self._segments[part].index_select(0, row_numbers[rows] - self._starts[part])
        return out

    def copy_rows_from(self, first_row: int) -> GrowingRowMatrix:
        rest = GrowingRowMatrix(self.width, self.dtype, self.device, self._expected)
        rest.append_rows(self.get_row_range(first_row, self.length))
        return rest

    def truncate_rows(self, row_count: int) -> None:
        """Keeps the first `row_count` rows and removes the others, without freeing memory."""
        self.length = min(self.length, max(row_count, 0))


def split_keys_and_values(rows: Tensor, heads: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Splits rows, each of which has a token's keys and then its values, into keys and values of
    the shape (heads, tokens, head dimension). If `shared` is true, the keys are also the values."""
    parts = 1 if shared else 2
    both = rows.view(rows.shape[0], parts, heads, rows.shape[1] // (parts * heads))
    return both[:, 0].transpose(0, 1), both[:, -1].transpose(0, 1)


class MemoryKVStore:
    """The keys, values and reduced keys of one layer's tokens in memory. `shared` keys are also the
    values (MLA); `on_host`, both are in host memory. A GPU gets room for `expected` tokens."""

    def __init__(
        self, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
        shared: bool = False, on_host: bool = False, expected: int = 0,
    ) -> None:  # fmt: skip
        self.heads, self.dim, self.dtype, self.device = heads, dim, dtype, device
        self.shared, self.is_on_device = shared, not on_host
        width = (1 if shared else 2) * heads * dim
        self._rows = GrowingRowMatrix(width, dtype, CPU if on_host else device, expected)
        self._features: GrowingRowMatrix | None = None
        self._expected = expected

    def __len__(self) -> int:
        return self._rows.length

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + (self._features.nbytes if self._features else 0)

    def append(self, k: Tensor, v: Tensor) -> None:
        both = (k,) if self.shared else (k, v)
        rows = torch.stack([part.transpose(0, 1) for part in both], dim=1)
        self._rows.append_rows(rows.reshape(k.shape[1], self._rows.width))

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows = self._rows.get_row_range(start, stop).to(self.device)
        return split_keys_and_values(rows, self.heads, self.shared)

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows.gather_rows(at.to(self._rows.device)).to(self.device)
        return split_keys_and_values(rows, self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, max_tokens: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Blocks:
        for at, rows in self._rows.iterate_row_blocks(start, stop, max_tokens):
            keys = split_keys_and_values(rows, self.heads, self.shared)[0].to(self.device)
            yield at, keys if groups is None else keys[make_slice_or_list(groups)]

    @property
    def reduced_key_count(self) -> int:
        return self._features.length if self._features else 0

    def append_reduced_keys(self, reduced_keys: Tensor) -> None:
        if self._features is None:
            width, dtype = reduced_keys.shape[1], reduced_keys.dtype
            self._features = GrowingRowMatrix(width, dtype, reduced_keys.device, self._expected)
        self._features.append_rows(reduced_keys)

    def get_reduced_blocks(self, start: int, stop: int, max_tokens: int = BLOCK) -> Blocks:
        assert self._features is not None, "the store must have reduced keys"
        yield from self._features.iterate_row_blocks(start, stop, max_tokens)

    def crop(self, negative_count: int) -> None:
        length = len(self) + negative_count
        if self._features is not None:
            self._features.truncate_rows(length)
        self._rows.truncate_rows(length)  # last: `len` shows whether the crop was interrupted

    def read_first_tokens(self, token_count: int) -> tuple[Tensor, Tensor | None]:
        """Returns the first tokens' keys and values, one row per token, and reduced keys."""
        features = self._features.get_row_range(0, token_count) if self._features else None
        return self._rows.get_row_range(0, token_count), features

    def drop_first_tokens(self, token_count: int) -> None:
        """Removes the first `token_count` tokens from the KV cache and frees the tokens' memory."""
        self._rows = self._rows.copy_rows_from(token_count)
        if self._features is not None:
            self._features = self._features.copy_rows_from(token_count)


class KVStoreSlice(NamedTuple):
    """The keys and values of the tokens `low` to `high` - 1 in the KV cache of one layer."""

    store: KVStore
    low: int
    high: int


def refuse_change_of_read_only_store(store: Any, *arguments: Any) -> None:
    """Raises TypeError: a KV cache on disk has this function as its methods that change tokens."""
    raise TypeError("a stored KV cache cannot be changed; append to an AppendableKVStoreChain")


class KVStoreChain:
    """A read-only concatenation of parts of several KV caches of one layer. `shape_store` says the
    number of heads and the head dimension, even if there are no parts."""

    def __init__(self, parts: Sequence[KVStoreSlice], shape_store: KVStore) -> None:
        self.heads, self.dim, self.shared = shape_store.heads, shape_store.dim, shape_store.shared
        self._parts, self._starts = list[KVStoreSlice](), [0]
        for part in parts:
            self._append_store_slice(part)

    def _append_store_slice(self, store_slice: KVStoreSlice) -> None:
        self._parts.append(store_slice)
        self._starts.append(self._starts[-1] + store_slice.high - store_slice.low)

    def _list_slices(self) -> list[KVStoreSlice]:
        return self._parts

    def _compute_slice_starts(self) -> list[int]:
        """Returns each slice's first position in the chain, followed by the chain's length."""
        return [*self._starts, len(self)]

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        return sum(part.store.nbytes for part in self._list_slices())

    @property
    def is_on_device(self) -> bool:
        return all(part.store.is_on_device for part in self._parts)

    def _divide_range_by_store(
        self, start: int, stop: int
    ) -> Iterator[tuple[int, KVStore, int, int]]:
        """Yields (first position in the chain, store, first token in the store, end token in the
        store) for each store that a range of positions in the chain overlaps."""
        slices, edges = self._list_slices(), self._compute_slice_starts()
        for i, low, high in divide_range(edges, start, stop):
            store, first, _ = slices[i]
            yield edges[i] + low, store, first + low, first + high

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        pieces = self._divide_range_by_store(start, stop)
        return self._join_kv_pairs([store.span(low, high) for _, store, low, high in pieces])

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        slices, edges = self._list_slices(), self._compute_slice_starts()
        pairs = list[tuple[Tensor, Tensor]]()
        for i, rows in divide_positions(edges, at):
            store, first, _ = slices[i]
            pairs.append(store.gather(at[rows] - (edges[i] - first)))
        return self._join_kv_pairs(pairs)

    def _join_kv_pairs(self, kv_pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if not kv_pairs:
            return self._list_slices()[-1].store.span(0, 0)
        if len(kv_pairs) == 1:
            return kv_pairs[0]
        return torch.cat([k for k, _ in kv_pairs], 1), torch.cat([v for _, v in kv_pairs], 1)

    def key_blocks(
        self, start: int, stop: int, max_tokens: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Blocks:
        for begin, store, low, high in self._divide_range_by_store(start, stop):
            for at, keys in store.key_blocks(low, high, max_tokens, groups):
                yield at - low + begin, keys

    @property
    def reduced_key_count(self) -> int:
        for start, part in zip(self._compute_slice_starts(), self._list_slices(), strict=False):
            if part.store.reduced_key_count < part.high:
                return start + max(0, part.store.reduced_key_count - part.low)
        return len(self)

    def get_reduced_blocks(self, start: int, stop: int, max_tokens: int = BLOCK) -> Blocks:
        for begin, store, low, high in self._divide_range_by_store(start, stop):
            for at, features in store.get_reduced_blocks(low, high, max_tokens):
                yield at - low + begin, features

    append = append_reduced_keys = crop = refuse_change_of_read_only_store


class AppendableKVStoreChain(KVStoreChain):
    """A concatenation of parts of KV caches, with a store in memory to append new tokens to."""

    def __init__(self, parts: Sequence[KVStoreSlice], tail: MemoryKVStore) -> None:
        self.tail = tail
        super().__init__(parts, tail)

    def _list_slices(self) -> list[KVStoreSlice]:
        return [*self._parts, KVStoreSlice(self.tail, 0, len(self.tail))]

    def __len__(self) -> int:
        return self._starts[-1] + len(self.tail)

    def append(self, k: Tensor, v: Tensor) -> None:
        self.tail.append(k, v)

    def append_reduced_keys(self, reduced_keys: Tensor) -> None:
        assert self.reduced_key_count >= self._starts[-1], "all parts must have reduced keys"
        self.tail.append_reduced_keys(reduced_keys)

    def replace_first_appended_tokens(self, read_only_store: KVStore) -> None:
        """Replaces the first appended tokens, in memory, by a read-only store of these tokens."""
        self._append_store_slice(KVStoreSlice(read_only_store, 0, len(read_only_store)))
        self.tail.drop_first_tokens(len(read_only_store))

    def crop(self, negative_count: int) -> None:
        removed_count, appended_count = -negative_count, len(self.tail)
        if removed_count > appended_count:
            message = f"at most {appended_count} appended tokens can be removed"
            raise ValueError(f"{message}, got {removed_count}")
        self.tail.crop(negative_count)


@dataclass(frozen=True)
class PrefilledDocument:
    """A document that the model has read (prefilled), with the KV cache of its tokens."""

    ids: Sequence[int]  # token ids, beginning with the `head` tokens of the prompt before it
    stores: Sequence[KVStore]  # of each layer with a KV cache
    projections: Sequence[Projection | None]  # fitted to each layer
    head: int = 0
    read_by: Method | None = None  # the method of the prefill; None if a library stored it
    states: Sequence[dict[type, LayerState]] = ()  # of each layer, by class of selector
    recurrent: Sequence[dict[str, Tensor]] = ()  # of each recurrent layer, after the last token


class ConcatenatedProjections(Projection):
    """The projections of concatenated documents, whose first tokens are at the positions `starts`;
    the last document's, which a question follows, reduces the question's keys."""

    def __init__(self, starts: Sequence[int], projections: Sequence[Projection]) -> None:
        self.starts, self.projections = starts, projections

    def select_for_token(self, position: int) -> Projection:
        return self.projections[bisect_right(self.starts, position) - 1]

    def queries(self, q: Tensor) -> Tensor:
        return self.projections[-1].queries(q)

    def keys(self, k: Tensor) -> Tensor:
        return self.projections[-1].keys(k)


def concatenate_documents(
    documents: Sequence[PrefilledDocument],
) -> tuple[list[int], list[KVStore], list[Projection | None]]:
    """Concatenates the KV caches of several documents for one question, and returns the token ids,
    and each layer's store and projection. Only the first document keeps its prompt's tokens."""
    ids, starts = list(documents[0].ids), [0]
    for document in documents[1:]:
        starts.append(len(ids))
        ids += document.ids[document.head :]
    stores: list[KVStore] = []
    projections: list[Projection | None] = []
    for layer, first in enumerate(documents[0].stores):
        parts = [
            KVStoreSlice(document.stores[layer], document.head if i else 0, len(document.ids))
            for i, document in enumerate(documents)
        ]
        keys, _ = first.span(0, 1)
        shape = first.heads, first.dim, keys.dtype, keys.device, first.shared
        tail = MemoryKVStore(*shape, expected=RESERVE)
        stores.append(AppendableKVStoreChain(parts, tail))
        maps = [document.projections[layer] for document in documents]
        fitted = [projection for projection in maps if projection is not None]
        if len(fitted) < len(maps):
            projections.append(None)
        else:
            same = all(projection is fitted[0] for projection in fitted)
            projections.append(fitted[0] if same else ConcatenatedProjections(starts, fitted))
    return ids, stores, projections


def locate_document_texts(documents: Sequence[PrefilledDocument]) -> list[range]:
    """Returns the range of positions of each document's text in the concatenated KV cache."""
    sizes = (len(document.ids) - document.head for document in documents)
    edges = accumulate(sizes, initial=documents[0].head if documents else 0)
    return [range(start, stop) for start, stop in pairwise(edges)]

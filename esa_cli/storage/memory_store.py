"""One layer's `KVStore` in memory: every token's unrotated key and value, and its reduced key.

Token-major: a token's keys and values of all G heads are one contiguous row, so that fetching a
selected token is one read. Nothing is ever evicted. Where a GPU has less memory than the cache
takes, rows may be in host memory: reduced keys stay on the GPU, and selected rows are copied to it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from esa_cli.attention.step import KVStore

CPU = torch.device("cpu")
BLOCK = 8192
"""Tokens of a block in a scan of keys: 6 MB with 3 heads of 64 floats, which fits a cache."""
FIRST_SEGMENT = 1024
LAST_SEGMENT = 16384
GROWTH = 1.25
"""Length of a copied segment, in that of the full one, where the length is not known beforehand."""
RESERVE = 2048
"""Rows after a document's on a GPU, for questions and answers; as many again when they are full,
of which plans know nothing."""


def has_own_memory(device: torch.device) -> bool:
    """Whether a device has other memory than the CPU."""
    return device.type == "cuda"


in_one_segment = has_own_memory
"""Whether rows on a device are one segment: finding the segment of a row would synchronise."""


def as_index(places: Sequence[int]) -> slice | list[int]:
    """Indices along a dimension, at least one; a slice, which copies nothing, if consecutive."""
    first, stop = places[0], places[0] + len(places)
    return slice(first, stop) if list(places) == list(range(first, stop)) else list(places)


def pieces(starts: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yields (part, low, high) of every part of [start, stop); low and high count in the part.

    Args:
        starts: where each part begins, and where the last one ends.
    """
    while start < stop:
        part = bisect_right(starts, start) - 1
        high = min(stop, starts[part + 1])
        yield part, start - starts[part], high - starts[part]
        start = high


def divided(starts: Sequence[int], at: Tensor) -> Iterator[tuple[int, slice]]:
    """Yields (part, slice of `at`) for each part, see `pieces`, with some of the ascending
    positions (K,)."""
    edges = torch.tensor(starts).to(at.device, non_blocking=True)
    for part, (low, high) in enumerate(pairwise(torch.searchsorted(at, edges).tolist())):
        if low < high:
            yield part, slice(low, high)


class GrowingRows:
    """A growing (N, width) matrix, stored as a list of contiguous segments.

    On the CPU no segment is ever copied (1,024 rows, then doubling up to 16,384), so a 300k-token
    document never needs twice its memory. On a GPU there is one segment: of as many rows as are
    expected, and copied into a longer one when it is full.
    """

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
        """Says how many rows there will be. Nothing is allocated before they are appended."""
        self._expected = length

    def _grow(self, need: int) -> None:
        """Makes room for `need` rows."""
        if self._whole and self.capacity < need:
            rows = self._expected or FIRST_SEGMENT
            if self.capacity:
                rows = self.capacity + RESERVE if self._expected else int(GROWTH * self.capacity)
            segment = self._new_segment(max(need, rows))
            for at, view in self._pieces(0, self.length):
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

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, view) of every segment's part of [start, stop)."""
        for part, low, high in pieces([*self._starts, self.capacity], start, stop):
            yield self._starts[part] + low, self._segments[part][low:high]

    @torch.no_grad()
    def append(self, rows: Tensor) -> None:
        """Appends rows (C, width), without gradients."""
        count = rows.shape[0]
        self._grow(self.length + count)
        for at, view in self._pieces(self.length, self.length + count):
            view.copy_(rows[at - self.length : at - self.length + view.shape[0]])
        self.length += count  # last: an interruption leaves no unwritten rows

    def span(self, start: int, stop: int) -> Tensor:
        """Rows [start, stop) as (stop - start, width); a view when they lie in one segment."""
        views = [view for _, view in self._pieces(start, stop)]
        if len(views) == 1:
            return views[0]
        return torch.cat([torch.empty(0, self.width, dtype=self.dtype, device=self.device), *views])

    def blocks(self, start: int, stop: int, most: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, view) of [start, stop) in views of at most `most` rows."""
        for at, view in self._pieces(start, stop):
            for low in range(0, view.shape[0], most):
                yield at + low, view[low : low + most]

    @torch.no_grad()
    def gather(self, at: Tensor) -> Tensor:
        """Rows at ascending absolute positions (K,) -> (K, width)."""
        if len(self._segments) == 1 and at.numel():
            return self._segments[0].index_select(0, at)
        out = torch.empty(at.shape[0], self.width, dtype=self.dtype, device=self.device)
        for part, rows in divided([*self._starts, self.capacity], at):
            out[rows] = self._segments[part].index_select(0, at[rows] - self._starts[part])
        return out

    def after(self, start: int) -> GrowingRows:
        """A copy of the rows from `start` on."""
        rest = GrowingRows(self.width, self.dtype, self.device)
        rest.expect(self._expected)
        rest.append(self.span(start, self.length))
        return rest

    def truncate(self, length: int) -> None:
        """Keeps the first `length` rows; segments are kept for the next ones."""
        self.length = min(self.length, max(length, 0))


def split_rows(rows: Tensor, heads: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Rows (n, 2 * G * D), or (n, G * D) where the keys are the values, as keys and values, each
    (G, n, D)."""
    parts = 1 if shared else 2
    both = rows.view(rows.shape[0], parts, heads, rows.shape[1] // (parts * heads))
    return both[:, 0].transpose(0, 1), both[:, -1].transpose(0, 1)


class MemoryStore:
    """Keys and values of N tokens of one layer, and their reduced keys; see `KVStore`.

    Args:
        heads: G, key/value heads. dim: D, the head dimension. device: that computes.
        shared: the keys are the values, too, and stored once (MLA).
        on_host: keys and values are in host memory.
    """

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
        """Says how many tokens there will be, before the first."""
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
        """The first tokens' rows, see `split_rows`, and their reduced keys (count, R) if any."""
        features = self._features.span(0, count) if self._features else None
        return self._rows.span(0, count), features

    def drop_first(self, count: int) -> None:
        """Removes the first `count` tokens and frees their memory."""
        self._rows = self._rows.after(count)
        if self._features is not None:
            self._features = self._features.after(count)


class MakeStore(Protocol):
    """Makes the store of a layer with G key/value heads of D dimensions."""

    def __call__(
        self, layer: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
        shared: bool = False,
    ) -> KVStore:  # fmt: skip
        ...


class StorePlaces:
    """Makes stores, each on its layer's device or in host memory.

    Args:
        elsewhere: whether a device has other memory than the host; where not, rows stay there.
    """

    def __init__(self, elsewhere: Callable[[torch.device], bool] = has_own_memory) -> None:
        self.elsewhere = elsewhere

    def stores(self, on_host: Container[int]) -> MakeStore:
        """What puts these layers' rows into host memory."""
        return partial(self._make, on_host)

    def _make(
        self, on_host: Container[int], layer: int, heads: int, dim: int, dtype: torch.dtype,
        device: torch.device, shared: bool = False,
    ) -> KVStore:  # fmt: skip
        hosted = layer in on_host and self.elsewhere(device)
        return MemoryStore(heads, dim, dtype, device, shared, hosted)

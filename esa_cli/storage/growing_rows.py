"""A matrix that grows by rows, and how much memory is allocated for it, by which plans count.

On the CPU it is a list of segments, none of which is ever copied (1,024 rows, then doubling up to
16,384), so a 300k-token document never needs twice its memory, and the system gives no memory for
what was not written to. On a GPU it is one segment, as finding the segment of a row there would
synchronise in every layer: of as many rows as are expected, with a reserve for questions and
answers, and copied into a longer one when it is full.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

FIRST_SEGMENT = 1024
LAST_SEGMENT = 16384
GROWTH = 1.25
"""Length of a copied segment, in that of the full one, where the length is not known beforehand."""
RESERVE = 2048
"""Rows after a document's on a GPU, for questions and answers; as many again when they are full,
of which plans know nothing."""


def in_one_segment(device: torch.device) -> bool:
    """Whether rows on this device are one segment."""
    return device.type == "cuda"


def one_segment(rows: int, expected: int = 0, before: int = 0) -> int:
    """Length of the one segment for so many rows.

    Args:
        expected: rows there will be; 0: not known. before: length of the segment that is full.
    """
    if not before:
        return max(rows, expected or FIRST_SEGMENT)
    return max(rows, before + RESERVE if expected else int(GROWTH * before))


def with_reserve(tokens: int) -> int:
    """Rows allocated on a GPU for a document of so many tokens and what is asked about it."""
    return one_segment(tokens, tokens + RESERVE)


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


class GrowingRows:
    """A growing (N, width) matrix, stored as a list of contiguous segments."""

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
        """Bytes allocated; on the CPU those of the rows in use."""
        row = self.width * self.dtype.itemsize
        return (self.capacity if self._whole else self.length) * row

    def expect(self, length: int) -> None:
        """Says how many rows there will be. Nothing is allocated before they are appended."""
        self._expected = length

    def _grow(self, need: int) -> None:
        """Makes room for `need` rows."""
        if self._whole and self.capacity < need:
            segment = self._new_segment(one_segment(need, self._expected, self.capacity))
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
        pieces = [view for _, view in self._pieces(start, stop)]
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return torch.empty(0, self.width, dtype=self.dtype, device=self.device)
        return torch.cat(pieces)

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
        if not at.numel():
            return out
        edges = torch.tensor([*self._starts[1:], self.capacity])
        cuts = torch.searchsorted(at, edges.to(at.device, non_blocking=True)).tolist()
        low = 0
        for start, segment, high in zip(self._starts, self._segments, cuts, strict=True):
            if high > low:
                torch.index_select(segment, 0, at[low:high] - start, out=out[low:high])
            low = high
        assert low == at.shape[0], "positions must be ascending and below the length"
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

"""A layer's memory whose beginning lies on disk: a `KVStore` over mapped segments and a tail.

Keys are not rotated, so a row does not know where it stands. What is appended (a question, its
answer, or what is being read) goes to a tail in memory. Knows nothing about which files make a
document.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from esa_cli.storage.growing_rows import GrowingRows, as_index
from esa_cli.storage.library.row_layout import Layout
from esa_cli.storage.library.segment import Segment
from esa_cli.storage.memory_store import BLOCK

CPU = torch.device("cpu")


class DiskStore:
    """One layer's keys and values: stored parts, and a tail that grows.

    Args:
        layer: its number. parts: in order, all of one G, D and type.
        heads: G. dim: D. dtype: of keys and values. device: where the tail lies, and what is read.
    """

    def __init__(
        self,
        layer: int,
        parts: Sequence[Segment],
        heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        self.layer, self.heads, self.dim, self.dtype = layer, heads, dim, dtype
        self.device = torch.device(device)
        self.memo: dict[str, Any] = {}
        """A selector's own side data for this layer; see `crop`."""
        self.parts: list[Segment] = []
        self._starts: list[int] = []
        self._tail = GrowingRows(2 * heads * dim, dtype, device)
        self._features: GrowingRows | None = None
        self.stored = 0
        """Tokens on disk."""
        for part in parts:
            self._add(part)

    def _add(self, part: Segment) -> None:
        layout = part.layout
        shape = layout.heads, layout.dim, getattr(torch, layout.dtype)
        if shape != (self.heads, self.dim, self.dtype):
            raise ValueError("the stored parts are of different models")
        if self.parts and bool(layout.reduced[self.layer]) != self._reduced_on_disk:
            raise ValueError("some stored parts have reduced keys and some have none")
        self.parts.append(part)
        self._starts.append(self.stored)
        self.stored += part.tokens

    @property
    def _reduced_on_disk(self) -> bool:
        return bool(self.parts) and bool(self.parts[0].layout.reduced[self.layer])

    def __len__(self) -> int:
        return self.stored + self._tail.length

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and reduced keys, on disk and in memory."""
        layer = self.layer
        stored = sum(part.tokens * part.layout.token_bytes(layer) for part in self.parts)
        return stored + self._tail.nbytes + (self._features.nbytes if self._features else 0)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        both = rows.view(rows.shape[0], 2, self.heads, self.dim)
        return both[:, 0].transpose(0, 1), both[:, 1].transpose(0, 1)

    def append(self, k: Tensor, v: Tensor) -> None:
        """Adds C tokens to the tail: k and v (G, C, D), unrotated."""
        rows = torch.stack((k.transpose(0, 1), v.transpose(0, 1)), dim=1)
        self._tail.append(rows.reshape(k.shape[1], self._tail.width))

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, Segment, int, int]]:
        """Yields (absolute start, part, low, high) of every stored part's rows in [start, stop);
        low and high count in the part."""
        stop = min(stop, self.stored)
        while start < stop:
            i = bisect_right(self._starts, start) - 1
            part = self.parts[i]
            high = min(stop - self._starts[i], part.tokens)
            yield start, part, start - self._starts[i], high
            start = self._starts[i] + high

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop), each (G, stop - start, D)."""
        rows = [
            part.rows(self.layer, low, high).to(self.device)
            for _, part, low, high in self._pieces(start, stop)
        ]
        if stop > self.stored or not rows:
            rows.append(self._tail.span(max(start - self.stored, 0), max(stop - self.stored, 0)))
        return self._split(rows[0] if len(rows) == 1 else torch.cat(rows))

    @torch.no_grad()
    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens at ascending positions (K,), each (G, K, D)."""
        places = at.to(CPU)
        edges = torch.tensor([*self._starts, self.stored])
        cuts = torch.searchsorted(places, edges).tolist()
        width, stored = self._tail.width, cuts[-1]
        out = torch.empty(stored, width, dtype=self.dtype)
        for i, part in enumerate(self.parts):
            low, high = cuts[i], cuts[i + 1]
            if high > low:
                rows = places[low:high] - self._starts[i]
                part.gather(self.layer, rows, out[low:high])
        out = out.to(self.device)
        if stored < at.shape[0]:
            tail = self._tail.gather(at[stored:] - self.stored)
            out = torch.cat((out, tail)) if stored else tail
        return self._split(out)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, keys (G, n, D)) over [start, stop), n <= most, each block within
        one stored part or the tail; of 8 bits only the heads of `groups` are made numbers."""
        wanted = range(self.heads) if groups is None else groups
        for at, part, low, high in self._pieces(start, stop):
            for row in range(low, high, most):
                end = min(row + most, high)
                keys = part.rows(self.layer, row, end, wanted).to(self.device)
                yield at + row - low, keys.view(end - row, -1, self.dim).transpose(0, 1)
        first = max(start - self.stored, 0)
        for at, rows in self._tail.blocks(first, stop - self.stored, most):
            keys = self._split(rows)[0]
            yield at + self.stored, keys if groups is None else keys[as_index(groups)]

    @property
    def _first(self) -> int:
        """The first token whose reduced key is in memory, if it is anywhere."""
        return self.stored if self._reduced_on_disk else 0

    @property
    def reduced(self) -> int:
        """How many tokens have a reduced key."""
        return self._first + (self._features.length if self._features else 0)

    def append_features(self, features: Tensor) -> None:
        """Adds reduced keys (n, R), in memory, for the next n tokens that have none."""
        if self._features is None:
            self._features = GrowingRows(features.shape[1], features.dtype, features.device)
        self._features.append(features)

    def feature_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, reduced keys (n, R)) over [start, stop), n <= most, each block
        within one stored part or the tail."""
        assert stop <= self.reduced, "tokens without reduced keys"
        for at, part, low, high in self._pieces(start, min(stop, self._first)):
            features = part.reduced(self.layer)[low:high].to(self.device)
            for row in range(0, high - low, most):
                yield at + row, features[row : row + most]
        if self._features is not None:
            first = max(start - self._first, 0)
            for at, rows in self._features.blocks(first, stop - self._first, most):
                yield at + self._first, rows

    def crop(self, tokens: int) -> None:
        """Takes back the last -tokens tokens; `tokens` is negative, like the host's `crop`.

        Memo values that have `truncate(length)` are cut too; others are dropped.

        Raises:
            ValueError: some of them are on disk.
        """
        length = len(self) + tokens
        if length < self.stored:
            raise ValueError(f"{self.stored - length} of these tokens are on disk and stay")
        self._tail.truncate(length - self.stored)
        if self._features is not None:
            self._features.truncate(length - self._first)
        for key, value in list(self.memo.items()):
            if hasattr(value, "truncate"):
                value.truncate(length)
            else:
                del self.memo[key]

    def ready(self, reduced: bool) -> int:
        """How many tokens of the tail are complete; with `reduced`, have a reduced key too."""
        return min(self._tail.length, self.reduced - self.stored) if reduced else self._tail.length

    def taken(self, count: int, reduced: bool) -> tuple[Tensor, Tensor | None]:
        """The tail's first rows (count, 2 * G * D), and reduced keys (count, R) where wanted."""
        features = None
        if reduced and self._features is not None:
            first = self.stored - self._first
            features = self._features.span(first, first + count)
        return self._tail.span(0, count), features

    def settled(self, part: Segment) -> None:
        """Puts a stored part in the place of the tail's first rows."""
        self._tail = _rest(self._tail, part.tokens)
        with_reduced = bool(part.layout.reduced[self.layer])
        if self._features is not None and with_reduced:
            self._features = _rest(self._features, part.tokens)
        self._add(part)


def layers_over(
    parts: Sequence[Segment], layout: Layout, devices: Sequence[torch.device] = ()
) -> list[DiskStore]:
    """A new memory for each layer, with an empty tail, over the same parts.

    Args:
        devices: each layer's; (): the processor for all.
    """
    dtype: torch.dtype = getattr(torch, layout.dtype)
    places = zip(range(layout.layers), devices or [CPU] * layout.layers, strict=True)
    return [DiskStore(i, parts, layout.heads, layout.dim, dtype, place) for i, place in places]


def _rest(rows: GrowingRows, start: int) -> GrowingRows:
    rest = GrowingRows(rows.width, rows.dtype, rows.device)
    rest.append(rows.span(start, rows.length))
    return rest

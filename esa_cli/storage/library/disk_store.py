"""One layer's keys and values in segments on disk: the `KVStore` that is read and not written.

`JoinedStore` keeps what is appended after it in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from esa_cli.storage.growing_rows import pieces
from esa_cli.storage.library.formats.row_layout import Layout
from esa_cli.storage.library.formats.segment import Segment
from esa_cli.storage.memory_store import BLOCK, CPU, LastSpan, split_rows


class DiskStore:
    """One layer's rows in mapped segments.

    Args:
        layer: its number. parts: in order, all of one G, D and type.
        heads: G. dim: D. dtype: of keys and values. device: where what is read is put.
        shared: the keys are the values, too.
    """

    resident = False

    def __init__(
        self,
        layer: int,
        parts: Sequence[Segment],
        heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
        shared: bool = False,
    ) -> None:
        self.layer, self.heads, self.dim, self.dtype = layer, heads, dim, dtype
        self.device, self.shared = torch.device(device), shared
        self._width = (1 if shared else 2) * heads * dim
        self.parts: list[Segment] = []
        self._starts = [0]
        self._last = LastSpan()
        for part in parts:
            self.add(part)

    def add(self, part: Segment) -> None:
        """Adds a segment at the end."""
        layout = part.layout.of(self.layer)
        shape = layout.heads, layout.dim, getattr(torch, layout.dtype), layout.shared
        wanted = self.heads, self.dim, self.dtype, self.shared
        if shape != wanted:
            raise ValueError(f"segments must be of heads, dim, dtype, shared {wanted}, got {shape}")
        if self.parts and bool(part.layout.reduced[self.layer]) != bool(self.reduced):
            raise ValueError("either all segments or none must have reduced keys")
        self.parts.append(part)
        self._starts.append(len(self) + part.tokens)
        self._last.drop()

    def __len__(self) -> int:
        return self._starts[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows and reduced keys."""
        return sum(part.tokens * part.layout.token_bytes(self.layer) for part in self.parts)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int, Segment, int, int]]:
        """Yields (absolute start, part, low, high) of every part's rows in [start, stop);
        low and high count in the part."""
        for i, low, high in pieces(self._starts, start, stop):
            yield self._starts[i] + low, self.parts[i], low, high

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop), each (G, stop - start, D)."""
        if self.device.type == CPU.type:
            rows = self._rows(start, stop)
        else:
            rows = self._last.read(start, stop, len(self), self._rows)
        return split_rows(rows, self.heads, self.shared)

    def _rows(self, start: int, stop: int) -> Tensor:
        rows = [
            part.rows(self.layer, low, high).to(self.device)
            for _, part, low, high in self._pieces(start, stop)
        ]
        if not rows:
            return torch.empty(0, self._width, dtype=self.dtype, device=self.device)
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def records(self, start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, bytes (n, row_bytes) of n rows) over [start, stop), each block
        within one segment."""
        for at, part, low, high in self._pieces(start, stop):
            yield at, part.records(self.layer, low, high)

    @torch.no_grad()
    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens at ascending positions (K,), each (G, K, D)."""
        at = at.to(CPU)
        cuts = torch.searchsorted(at, torch.tensor(self._starts)).tolist()
        out = torch.empty(at.shape[0], self._width, dtype=self.dtype)
        for i, part in enumerate(self.parts):
            low, high = cuts[i], cuts[i + 1]
            if high > low:
                part.gather(self.layer, at[low:high] - self._starts[i], out[low:high])
        return split_rows(out.to(self.device), self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, keys (G, n, D)) over [start, stop), n <= most, each block within
        one segment; of int8 rows only the heads of `groups` are decoded."""
        wanted = range(self.heads) if groups is None else groups
        for at, part, low, high in self._pieces(start, stop):
            for row in range(low, high, most):
                end = min(row + most, high)
                keys = part.rows(self.layer, row, end, wanted).to(self.device)
                yield at + row - low, keys.view(end - row, -1, self.dim).transpose(0, 1)

    @property
    def reduced(self) -> int:
        """The number of tokens that have a reduced key: all or none."""
        has_any = self.parts and self.parts[0].layout.reduced[self.layer]
        return len(self) if has_any else 0

    def feature_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, reduced keys (n, R)) over [start, stop), n <= most, each block
        within one segment."""
        assert stop <= self.reduced, "tokens must have reduced keys"
        for at, part, low, high in self._pieces(start, stop):
            features = part.reduced(self.layer)[low:high].to(self.device)
            for row in range(0, high - low, most):
                yield at + row, features[row : row + most]

    def _read_only(self, *given: Any, **named: Any) -> None:
        raise TypeError("a DiskStore is read-only; JoinedStore appends after it")

    append = append_features = crop = _read_only

    def release(self) -> None:
        """Frees the last tokens' rows on the device."""
        self._last.drop()


def disk_stores(
    parts: Sequence[Segment], layout: Layout, devices: Sequence[torch.device] = ()
) -> list[DiskStore]:
    """A store for each layer over the same segments.

    Args:
        devices: each layer's; (): the CPU for all.
    """
    dtype: torch.dtype = getattr(torch, layout.dtype)
    pairs = zip(range(layout.layers), devices or [CPU] * layout.layers, strict=True)
    found = []
    for i, device in pairs:
        own = layout.of(i)
        found.append(DiskStore(i, parts, own.heads, own.dim, dtype, device, own.shared))
    return found

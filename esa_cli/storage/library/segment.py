"""Segment files: the KV cache of up to 4,096 tokens, memory-mapped, rows checked before first use.

A segment file is a checksummed header, padded to whole pages, and one section for each layer:

    rows        n records, one for each token: keys, then values of all heads (`encode`)
    reduced     n reduced keys (R numbers), if the layer has any
    checksums   n of 64 bits, one for each record

Each begins at a multiple of 64 bytes, each section at a multiple of 4,096. Rows are stored as they
are, or as int8: the D numbers of each head of a token, or a block of them, share one float32 scale,
their largest absolute value / 127 (float16 would save 3 % and lose small keys). The scales follow
the numbers in the same record, so that a token is one read.

A record's checksum is mixed with segment, layer and row, so that a valid row in a wrong place is
noticed. The header has two more for each layer: of all records together, for scans, and of what
follows them. If a file is cut while it is mapped, the system ends the process (SIGBUS).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
import xxhash
from torch import Tensor

from esa_cli.storage.joined_store import StoreChain, StoreSlice, refuse_change
from esa_cli.storage.library.library_files import (
    damage_error,
    new_file,
    pack_file,
    reading_error,
    unpack_file,
)
from esa_cli.storage.library.manifest import Layout
from esa_cli.storage.memory_store import BLOCK, CPU, as_index, split_rows

_ODD = numpy.uint64(0x9E3779B97F4A7C15)
SCAN = 4
"""If at least 1/4 of a section's rows are wanted, the whole section is checked at once."""


def encode(rows: Tensor, layout: Layout) -> Tensor:
    """Rows (n, width) -> records (n, row_bytes) of bytes."""
    if layout.kind == "native":
        return rows.contiguous().view(torch.uint8)
    blocks = rows.float().view(rows.shape[0], -1, layout.block)
    scales = blocks.abs().amax(dim=2) / 127
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (blocks / steps[:, :, None]).round().clamp(-127, 127).to(torch.int8)
    flat = numbers.view(rows.shape[0], layout.width).view(torch.uint8)
    return torch.cat((flat, scales.view(torch.uint8)), dim=1)


def decode(records: Tensor, layout: Layout, heads: Sequence[int] | None = None) -> Tensor:
    """Records (n, row_bytes) -> rows (n, width), or only those of `heads` of the 2 * G.

    Native records are not copied if the heads are consecutive.
    """
    dtype: torch.dtype = getattr(torch, layout.dtype)
    shape = records.shape[0], layout.vectors, layout.dim
    taken = as_index(range(layout.vectors) if heads is None else heads)
    if layout.kind == "native":
        return records.view(dtype).view(shape)[:, taken].flatten(1)
    numbers = records[:, : layout.width].view(torch.int8)
    scales = records[:, layout.width :].clone(memory_format=torch.contiguous_format)
    # One pass over the numbers; a conversion to floats first would be a second.
    blocks = *shape[:2], layout.dim // layout.block, layout.block
    steps = scales.view(torch.float32).view(*blocks[:3], 1)
    return (numbers.view(blocks)[:, taken] * steps[:, taken]).flatten(1).to(dtype)


def _checksums(view: memoryview, size: int, name: str, layer: int, rows: Any) -> Any:
    """Checksums (n,) of the records (of `size` bytes each) of some rows, each mixed with 64 bits
    that no other segment, layer or row has."""
    digest = xxhash.xxh3_64_intdigest
    sums = [digest(view[row * size : (row + 1) * size]) for row in rows.tolist()]
    base = hashlib.blake2b(f"{name}/{layer}".encode(), digest_size=8).digest()
    salts = (rows.astype(numpy.uint64) + numpy.frombuffer(base, "<u8")) * _ODD
    return numpy.array(sums, dtype=numpy.uint64) ^ salts


def write_segment(
    path: Path, owner: str, layout: Layout, tokens: int,
    layers: Iterable[tuple[Tensor, Tensor | None]],
) -> None:  # fmt: skip
    """Writes a segment file atomically. Raises OSError.

    Args:
        owner: see `new_file`. layers: rows (n, width) and reduced keys (n, R) of all tokens.
    """
    name, record_sums, tail_sums = path.stem, list[str](), list[str]()
    with new_file(path, owner) as file:
        file.write(bytes(layout.header_bytes))
        sections = zip(layers, layout.sections(tokens), strict=True)
        for layer, ((rows, reduced), section) in enumerate(sections):
            array: Any = encode(rows.cpu(), layout.of(layer)).numpy()
            records = memoryview(array).cast("B")
            if len(records) != section.rows_stop - section.start:
                raise ValueError(f"rows must be {tokens} of the layout, got {tuple(rows.shape)}")
            size = layout.of(layer).row_bytes
            sums = _checksums(records, size, name, layer, numpy.arange(tokens))
            features = torch.empty(0) if reduced is None else reduced.cpu().contiguous()
            keys = features.view(torch.uint8).numpy().tobytes()
            tail = keys.ljust(section.sums - section.reduced, b"\0") + sums.astype("<u8").tobytes()
            tail = bytes(section.reduced - section.rows_stop) + tail
            tail = tail.ljust(section.stop - section.rows_stop, b"\0")
            record_sums.append(xxhash.xxh3_128_hexdigest(records))
            tail_sums.append(xxhash.xxh3_128_hexdigest(tail))
            file.write(records)
            file.write(tail)
        facts = {
            "name": name, "layout": layout.as_json(), "tokens": tokens,
            "records": record_sums, "tails": tail_sums,
        }  # fmt: skip
        file.seek(0)
        file.write(_pack_header(json.dumps(facts, sort_keys=True).encode(), layout.header_bytes))


def _pack_header(text: bytes, size: int) -> bytes:
    line_bytes = len(pack_file("segment", bytes(size))[0]) - size
    header, _ = pack_file("segment", text.ljust(size - line_bytes))
    assert len(header) == size, "the header must fill its pages"
    return header


class Segment:
    """A mapped segment file. Header and length are checked at once, the rest before its first use.

    Args:
        tokens: the expected number. key: the document's, for messages. name: the segment's, if the
            file has another.

    Raises:
        LibraryError: the file is missing, damaged, of another format, or another segment's.
    """

    def __init__(self, path: Path, layout: Layout, tokens: int, key: str, name: str = "") -> None:
        self.path, self.layout, self.tokens, self.key = path, layout, tokens, key
        self.name, self._sections = name or path.stem, layout.sections(tokens)
        expected = {"name": self.name, "layout": layout.as_json(), "tokens": tokens}
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                header = unpack_file(file.read(layout.header_bytes), "segment", path, key)
        except OSError as error:
            raise reading_error(path, error, key) from error
        facts = json.loads(header)
        if {field: facts[field] for field in expected} != expected or size != self._sections[
            -1
        ].stop:
            raise damage_error(path, "it holds another segment, or a part of one", key)
        self._record_sums, self._tail_sums = facts["records"], facts["tails"]
        # torch's own mapping keeps no file open: a hundred documents would be thousands. Outside
        # inference mode, because a segment opened while a model runs is read later, too.
        with torch.inference_mode(False):
            self._bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        array: Any = self._bytes.numpy()
        self._array, self._view = array, memoryview(array)
        self._good_rows = numpy.zeros((layout.layers, tokens), dtype=bool)
        self._good_tails = [False] * layout.layers

    def _check_tail(self, layer: int) -> None:
        if not self._good_tails[layer]:
            section = self._sections[layer]
            tail = self._view[section.rows_stop : section.stop]
            if xxhash.xxh3_128_hexdigest(tail) != self._tail_sums[layer]:
                damage = f"keys or checksums of layer {layer} changed"
                raise damage_error(self.path, damage, self.key)
            self._good_tails[layer] = True

    def _check_rows(self, layer: int, rows: Any) -> None:
        """Checks those of the rows, an index array, that have not been checked yet."""
        self._check_tail(layer)
        good, section = self._good_rows[layer], self._sections[layer]
        records = self._view[section.start : section.rows_stop]
        new = rows[~good[rows]]
        # All at once, if many are wanted; if any changed, their own checksums say which.
        if SCAN * new.size >= self.tokens:
            good |= xxhash.xxh3_128_hexdigest(records) == self._record_sums[layer]
            new = rows[~good[rows]]
        if new.size:
            sums = _checksums(records, self.layout.of(layer).row_bytes, self.name, layer, new)
            stored = self._array[section.sums : section.sums + self.tokens * 8].view("<u8")[new]
            if not numpy.array_equal(sums, stored):
                row = int(new[numpy.nonzero(sums != stored)[0][0]])
                raise damage_error(self.path, f"row {row} of layer {layer} changed", self.key)
            good[new] = True

    def check(self) -> None:
        """Reads and checks everything again. Raises LibraryError if anything is damaged."""
        self._good_tails = [False] * self.layout.layers
        self._good_rows[:] = False
        for layer in range(self.layout.layers):
            self._check_rows(layer, numpy.arange(self.tokens))

    def _records(self, layer: int) -> Tensor:
        section = self._sections[layer]
        return self._bytes[section.start : section.rows_stop].view(self.tokens, -1)

    def records(self, layer: int, start: int, stop: int) -> Tensor:
        """Returns the bytes of the rows [start, stop) of a layer, (stop - start, row_bytes)."""
        self._check_rows(layer, numpy.arange(start, stop))
        return self._records(layer)[start:stop]

    def gather(self, layer: int, rows: Tensor) -> Tensor:
        """Returns a copy of some rows (K,) of a layer, (K, width)."""
        self._check_rows(layer, rows.numpy())
        layout, records = self.layout.of(layer), self._records(layer)
        if layout.kind == "native":  # as numbers: several times as fast as bytes
            return records.view(getattr(torch, layout.dtype)).index_select(0, rows)
        return decode(records.index_select(0, rows), layout)

    def reduced(self, layer: int) -> Tensor:
        """Returns a view of the reduced keys of a layer, (n, R)."""
        self._check_tail(layer)
        section, width = self._sections[layer], self.layout.reduced[layer]
        dtype: torch.dtype = getattr(torch, self.layout.reduced_dtype)
        stop = section.reduced + self.tokens * width * dtype.itemsize
        return self._bytes[section.reduced : stop].view(dtype).view(self.tokens, width)


class SegmentLayer:
    """One layer's rows in a segment, as a read-only `KVStore`.

    Args:
        device: of the tensors that are returned.
    """

    resident = False

    def __init__(self, segment: Segment, layer: int, device: torch.device = CPU) -> None:
        self.segment, self.layer, self.device = segment, layer, device
        self.layout = segment.layout.of(layer)
        self.heads, self.dim, self.shared = self.layout.heads, self.layout.dim, self.layout.shared

    def __len__(self) -> int:
        return self.segment.tokens

    @property
    def nbytes(self) -> int:
        return len(self) * self.segment.layout.token_bytes(self.layer)

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows = decode(self.segment.records(self.layer, start, stop), self.layout)
        return split_rows(rows.to(self.device), self.heads, self.shared)

    @torch.no_grad()
    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.segment.gather(self.layer, at.to(CPU)).to(self.device)
        return split_rows(rows, self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields keys as `KVStore` says; of int8 rows only the heads of `groups` are decoded."""
        records = self.segment.records(self.layer, start, stop)
        for low in range(0, stop - start, most):
            block = records[low : low + most]
            keys = decode(block, self.layout, groups or range(self.heads)).to(self.device)
            yield start + low, keys.view(block.shape[0], -1, self.dim).transpose(0, 1)

    @property
    def reduced(self) -> int:
        return len(self) if self.segment.layout.reduced[self.layer] else 0

    def feature_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        assert stop <= self.reduced, "tokens must have reduced keys"
        features = self.segment.reduced(self.layer)[start:stop].to(self.device)
        for low in range(0, stop - start, most):
            yield start + low, features[low : low + most]

    append = append_features = crop = refuse_change


class DiskStore(StoreChain):
    """One layer's rows in all segments of a document."""

    def __init__(self, parts: Sequence[SegmentLayer]) -> None:
        super().__init__([StoreSlice(part, 0, len(part)) for part in parts], parts[0])
        self.parts = parts

    def records(self) -> Iterator[tuple[int, Tensor]]:
        """Yields (first token, bytes (n, row_bytes) of its rows) of each segment."""
        start = 0
        for part in self.parts:
            yield start, part.segment.records(part.layer, 0, len(part))
            start += len(part)

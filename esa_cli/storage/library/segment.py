"""Segment files: the memory-mapped KV cache of up to 4,096 tokens of a stored document.

A segment file has a checksummed header, padded to whole pages, and one section for each layer:

    rows        n records, one for each token: keys, then values of all heads (`encode_rows`)
    reduced     n reduced keys (R numbers), if the layer has reduced keys
    checksums   n checksums of 64 bits, one for each record

Each array begins at a multiple of 64 bytes, and each section at a multiple of 4,096 bytes. Rows are
stored unchanged or quantised to int8. In int8, the D numbers of a head, or a block of these
numbers, share one float32 scale: the largest absolute value / 127 (float16 would save 3 % and lose
small keys). The scales follow the numbers in the same record, so that fetching a token is one read.

A record's checksum is mixed with the names of segment and layer and the row's number, so that a
valid row in a wrong place is noticed. The header has two more checksums for each layer: one of all
records together, and one of the rest of the section.
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

from esa_cli.errors import LibraryError
from esa_cli.storage.library import disk
from esa_cli.storage.library.manifest import Layout
from esa_cli.storage.memory_store import (
    BLOCK,
    CPU,
    StoreChain,
    StoreSlice,
    as_slice_or_list,
    refuse_change,
    split_rows,
)

_ODD = numpy.uint64(0x9E3779B97F4A7C15)
SCAN = 4
"""A whole section is checked at once if at least 1 / `SCAN` of its rows are needed."""


def encode_rows(rows: Tensor, layout: Layout) -> Tensor:
    """Encodes rows (n, width) as records of bytes (n, row_bytes), as the layout says."""
    if layout.kind == "native":
        return rows.contiguous().view(torch.uint8)
    blocks = rows.float().view(rows.shape[0], -1, layout.block)
    scales = blocks.abs().amax(dim=2) / 127
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (blocks / steps[:, :, None]).round().clamp(-127, 127).to(torch.int8)
    flat = numbers.view(rows.shape[0], layout.width).view(torch.uint8)
    return torch.cat((flat, scales.view(torch.uint8)), dim=1)


def decode_records(records: Tensor, layout: Layout, heads: Sequence[int] | None = None) -> Tensor:
    """Decodes records (n, row_bytes) to rows (n, width), or only the vectors at indices `heads`.
    Rows stored unchanged are not copied if the indices are consecutive."""
    dtype: torch.dtype = getattr(torch, layout.dtype)
    shape = records.shape[0], layout.vector_count, layout.dim
    taken = as_slice_or_list(range(layout.vector_count) if heads is None else heads)
    if layout.kind == "native":
        return records.view(dtype).view(shape)[:, taken].flatten(1)
    numbers = records[:, : layout.width].view(torch.int8)
    scales = records[:, layout.width :].clone(memory_format=torch.contiguous_format)
    # One pass over the numbers; a conversion to floats first would be a second.
    blocks = *shape[:2], layout.dim // layout.block, layout.block
    steps = scales.view(torch.float32).view(*blocks[:3], 1)
    return (numbers.view(blocks)[:, taken] * steps[:, taken]).flatten(1).to(dtype)


def _record_checksums(
    view: memoryview, record_bytes: int, segment: str, layer: int, rows: Any
) -> Any:
    """Returns the checksums (n,) of the given rows' records of `record_bytes` bytes each."""
    digest = xxhash.xxh3_64_intdigest
    sums = [digest(view[row * record_bytes : (row + 1) * record_bytes]) for row in rows.tolist()]
    base = hashlib.blake2b(f"{segment}/{layer}".encode(), digest_size=8).digest()
    salts = (rows.astype(numpy.uint64) + numpy.frombuffer(base, "<u8")) * _ODD
    return numpy.array(sums, dtype=numpy.uint64) ^ salts


def write_segment(
    path: Path, owner: str, layout: Layout, tokens: int,
    layers: Iterable[tuple[Tensor, Tensor | None]],
) -> None:  # fmt: skip
    """Writes a segment file atomically. `layers` has, for each layer, the rows (n, width) and the
    reduced keys (n, R) of all tokens. Raises OSError."""
    name, record_sums, tail_sums = path.stem, list[str](), list[str]()
    with disk.new_file(path, owner) as file:
        file.write(bytes(layout.header_bytes))
        sections = zip(layers, layout.sections(tokens), strict=True)
        for layer, ((rows, reduced), section) in enumerate(sections):
            array: Any = encode_rows(rows.cpu(), layout.of_layer(layer)).numpy()
            records = memoryview(array).cast("B")
            if len(records) != section.rows_stop - section.start:
                raise ValueError(f"the rows do not fit the layout, got {tuple(rows.shape)}")
            size = layout.of_layer(layer).row_bytes
            sums = _record_checksums(records, size, name, layer, numpy.arange(tokens))
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
        text, size = json.dumps(facts, sort_keys=True).encode(), layout.header_bytes
        line_bytes = len(disk.pack_file("segment", bytes(size))[0]) - size
        header, _ = disk.pack_file("segment", text.ljust(size - line_bytes))
        assert len(header) == size, "the header must fill its pages"
        file.seek(0)
        file.write(header)


class Segment:
    """A memory-mapped segment file. Opening checks the header and the file's length; rows are
    checked before their first use. Raises LibraryError: the file is missing, damaged, of another
    format, or belongs to another segment.

    Args:
        tokens: the expected number of tokens. key: the document's key, for error messages.
        name: the segment's name, if it differs from the file's name."""

    def __init__(self, path: Path, layout: Layout, tokens: int, key: str, name: str = "") -> None:
        self.path, self.layout, self.tokens, self.key = path, layout, tokens, key
        self.name, self.sections = name or path.stem, layout.sections(tokens)
        expected = {"name": self.name, "layout": layout.as_json(), "tokens": tokens}
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                header = disk.unpack_file(file.read(layout.header_bytes), "segment", path, key)
        except OSError as error:
            raise disk.reading_error(path, error, key) from error
        facts = json.loads(header)
        found = {name: facts[name] for name in expected}
        if found != expected or size != self.sections[-1].stop:
            raise disk.damage_error(path, "it is another segment, or is cut off", key)
        self.record_sums, self.tail_sums = facts["records"], facts["tails"]
        # torch's own mapping keeps no file open: a hundred documents would be thousands. Outside
        # inference mode, because a segment opened while a model runs is read later, too.
        with torch.inference_mode(False):
            self.bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)

    def check_all_bytes(self) -> None:
        """Reads and checks every byte of the segment. Raises LibraryError."""
        for layer in range(self.layout.layers):
            SegmentLayer(self, layer).checked_records(0, self.tokens)


class SegmentLayer:
    """The rows of one layer in a segment, as a read-only store that returns tensors on `device`."""

    resident = False

    def __init__(self, segment: Segment, layer: int, device: torch.device = CPU) -> None:
        self.segment, self.layer, self.device = segment, layer, device
        self.layout, section = segment.layout.of_layer(layer), segment.sections[layer]
        self.heads, self.dim, self.shared = self.layout.heads, self.layout.dim, self.layout.shared
        self._records = segment.bytes[section.start : section.rows_stop].view(len(self), -1)
        self._tail = segment.bytes[section.rows_stop : section.stop]
        self._reduced_start = section.reduced - section.rows_stop
        sums: Any = self._tail[section.sums - section.rows_stop :][: 8 * len(self)].numpy()
        self._sums = sums.view("<u8")
        self._good_rows, self._good_tail = numpy.zeros(len(self), dtype=bool), False

    def __len__(self) -> int:
        return self.segment.tokens

    @property
    def nbytes(self) -> int:
        return len(self) * self.segment.layout.token_bytes(self.layer)

    def _damage_error(self, changed_part: str) -> LibraryError:
        segment = self.segment
        reason = f"{changed_part} of layer {self.layer} changed"
        return disk.damage_error(segment.path, reason, segment.key)

    def _check_tail(self) -> None:
        if not self._good_tail:
            digest = xxhash.xxh3_128_hexdigest(memoryview(self._tail.numpy()))  # type: ignore[arg-type]
            if digest != self.segment.tail_sums[self.layer]:
                raise self._damage_error("reduced keys or checksums")
            self._good_tail = True

    def _check_rows(self, rows: Any) -> None:
        """Checks the rows in an index array that have not been checked yet. Raises LibraryError."""
        self._check_tail()
        segment, good = self.segment, self._good_rows
        array: Any = self._records.numpy()
        records = memoryview(array).cast("B")
        new = rows[~good[rows]]
        # Many rows are checked at once; if any row changed, the rows' own checksums say which.
        if SCAN * new.size >= len(self):
            good |= xxhash.xxh3_128_hexdigest(records) == segment.record_sums[self.layer]
            new = rows[~good[rows]]
        if new.size:
            sums = _record_checksums(records, self.layout.row_bytes, segment.name, self.layer, new)
            wrong = new[sums != self._sums[new]]
            if wrong.size:
                raise self._damage_error(f"row {wrong[0]}")
            good[new] = True

    def checked_records(self, start: int, stop: int) -> Tensor:
        """Returns the rows [start, stop) as they are stored, in bytes (n, row_bytes)."""
        self._check_rows(numpy.arange(start, stop))
        return self._records[start:stop]

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows = decode_records(self.checked_records(start, stop), self.layout)
        return split_rows(rows.to(self.device), self.heads, self.shared)

    @torch.no_grad()
    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        at, records = at.to(CPU), self._records
        self._check_rows(at.numpy())
        if self.layout.kind == "native":  # as numbers: several times as fast as bytes
            rows = records.view(getattr(torch, self.layout.dtype)).index_select(0, at)
        else:
            rows = decode_records(records.index_select(0, at), self.layout)
        return split_rows(rows.to(self.device), self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        records = self.checked_records(start, stop)
        for low in range(0, stop - start, most):
            block = records[low : low + most]
            keys = decode_records(block, self.layout, groups or range(self.heads)).to(self.device)
            yield start + low, keys.view(block.shape[0], -1, self.dim).transpose(0, 1)

    @property
    def reduced(self) -> int:
        return len(self) if self.segment.layout.reduced[self.layer] else 0

    def reduced_key_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        assert stop <= self.reduced, "all tokens must have reduced keys"
        self._check_tail()
        layout = self.segment.layout
        dtype: torch.dtype = getattr(torch, layout.reduced_dtype)
        size = len(self) * layout.reduced[self.layer] * dtype.itemsize
        features = self._tail[self._reduced_start :][:size].view(dtype).view(len(self), -1)
        for low in range(start, stop, most):
            yield low, features[low : min(low + most, stop)].to(self.device)

    append = append_reduced_keys = crop = refuse_change


class DiskStore(StoreChain):
    """A read-only store with the rows of one layer in all segments of a stored document."""

    def __init__(self, parts: Sequence[SegmentLayer]) -> None:
        super().__init__([StoreSlice(part, 0, len(part)) for part in parts], parts[0])
        self.parts = parts

    def records(self) -> Iterator[tuple[int, Tensor]]:
        """Yields (first token, bytes of the rows (n, row_bytes)) for each segment."""
        for start, part in zip(self._starts, self.parts, strict=False):
            yield start, part.checked_records(0, len(part))

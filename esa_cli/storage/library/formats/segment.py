"""One segment file: written once, then memory-mapped, each row checked before its first use.

Rows are stored as they are, or as int8: the D numbers of each head of a token, or a block of them,
share one float32 scale, their largest absolute value / 127 (float16 would save 3 % and lose small
keys). The scales follow the numbers in the same record, so that a token is one read.

Every record has a checksum, so that scattered rows are checked without reading the rest. It is
mixed with segment, layer and row, so that a valid row in a wrong place is found too. All records of
a section together have one more, for scans, which are faster than a checksum for each row; so has
what follows them (reduced keys, checksums, padding). Both are in the header, which has its own
digest. If a file is cut while it is mapped, the system ends the process (SIGBUS).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
import xxhash
from torch import Tensor

from esa_cli.errors import LibraryError
from esa_cli.storage.growing_rows import as_index
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.checksummed_file import damage_error
from esa_cli.storage.library.formats.row_layout import Layout, Section


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
        rows = records.view(dtype).view(shape)
        return rows[:, taken].flatten(1)
    numbers = records[:, : layout.width].view(torch.int8)
    scales = records[:, layout.width :].clone(memory_format=torch.contiguous_format)
    # One pass over the numbers; a conversion to floats first would be a second.
    blocks = *shape[:2], layout.dim // layout.block, layout.block
    steps = scales.view(torch.float32).view(*blocks[:3], 1)
    return (numbers.view(blocks)[:, taken] * steps[:, taken]).flatten(1).to(dtype)


_ODD = numpy.uint64(0x9E3779B97F4A7C15)
SCAN = 4
"""If at least 1/4 of a section's rows are wanted, the whole section is checked at once."""
Layer = tuple[Tensor, Tensor | None]
"""Rows (n, width) and reduced keys (n, R) of one layer."""


def _row_salts(name: str, layer: int, rows: Any) -> Any:
    """64 bits for each row, mixed into its checksum, that no other segment, layer or row has."""
    base = hashlib.blake2b(f"{name}/{layer}".encode(), digest_size=8).digest()
    return (rows.astype(numpy.uint64) + numpy.frombuffer(base, "<u8")) * _ODD


def _sums(view: memoryview, start: int, size: int, rows: list[int]) -> Any:
    """Checksums of records of `size` bytes that begin at `start`."""
    one = xxhash.xxh3_64_intdigest
    found = [one(view[start + row * size : start + (row + 1) * size]) for row in rows]
    return numpy.array(found, dtype=numpy.uint64)


def _header(name: str, layout: Layout, tokens: int, records: list[str], tails: list[str]) -> bytes:
    facts = {
        "name": name,
        "layout": layout.as_json(),
        "tokens": tokens,
        "records": records,
        "tails": tails,
    }
    text = json.dumps(facts, sort_keys=True).encode()
    line = len(checksummed_file.encode("segment", b"")[0]) - 1
    for digits in range(1, 9):  # the first line contains the padded text's length
        padded = text.ljust(layout.header_bytes - line - digits)
        data, _ = checksummed_file.encode("segment", padded)
        if len(data) == layout.header_bytes:
            return data
    raise AssertionError("the header must fill its pages")


def write_segment(
    path: Path, owner: str, layout: Layout, tokens: int, layers: Iterable[Layer]
) -> None:
    """Writes a segment file atomically. Raises OSError.

    Args:
        owner: see `new_file`. layers: rows and reduced keys of all tokens; rows may be records
            already, (tokens, row_bytes) bytes.
    """
    name = path.stem
    whole: list[str] = []
    tails: list[str] = []
    sections = layout.sections(tokens)
    with checksummed_file.new_file(path, owner) as file:
        file.write(bytes(layout.header_bytes))
        for layer, ((rows, reduced), section) in enumerate(zip(layers, sections, strict=True)):
            encoded, own = rows.dtype == torch.uint8, layout.of(layer)
            if encoded:
                _check_shape(rows, (tokens, own.row_bytes), "uint8")
            else:
                _check_shape(rows, (tokens, own.width), layout.dtype)
            if layout.reduced[layer]:
                _check_shape(reduced, (tokens, layout.reduced[layer]), layout.reduced_dtype)
            made = rows.contiguous() if encoded else encode(rows.cpu(), own)
            data: Any = made.numpy()
            records = memoryview(data).cast("B")
            sums = _sums(records, 0, own.row_bytes, [*range(tokens)])
            sums ^= _row_salts(name, layer, numpy.arange(tokens))
            tail = _tail(section, reduced, sums, layout)
            whole.append(xxhash.xxh3_128_hexdigest(records))
            tails.append(xxhash.xxh3_128_hexdigest(tail))
            file.write(records)
            file.write(tail)
        file.seek(0)
        file.write(_header(name, layout, tokens, whole, tails))


def _check_shape(given: Tensor | None, shape: tuple[int, int], dtype: str) -> None:
    """Refuses rows that the layout would read back as other rows."""
    if given is None or given.shape != shape or given.dtype != getattr(torch, dtype):
        found = "None" if given is None else f"{tuple(given.shape)} of {given.dtype}"
        raise ValueError(f"rows or reduced keys must be {shape} of {dtype}, got {found}")


def _tail(section: Section, reduced: Tensor | None, sums: Any, layout: Layout) -> bytearray:
    tail = bytearray(section.stop - section.rows_stop)
    if reduced is not None:
        data = reduced.cpu().contiguous().view(torch.uint8).numpy().tobytes()
        at = section.reduced - section.rows_stop
        tail[at : at + len(data)] = data
    at = section.sums - section.rows_stop
    tail[at : at + sums.nbytes] = sums.astype("<u8").tobytes()
    return tail


class Segment:
    """A mapped segment file. Header and length are checked at once, the rest when it is used.

    Args:
        tokens: the expected number. key: the document's, for messages. name: the segment's, where
            the file has another one.

    Raises:
        LibraryError: it is missing, damaged, of another version, or another segment's.
    """

    def __init__(self, path: Path, layout: Layout, tokens: int, key: str, name: str = "") -> None:
        self.name = name or path.stem
        self.path, self.layout, self.tokens, self.key = path, layout, tokens, key
        self._sections = layout.sections(tokens)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                facts = self._check_header(file.read(layout.header_bytes), size)
                self._whole, self._tails = facts["records"], facts["tails"]
        except FileNotFoundError as error:
            raise LibraryError(f"{path} is missing", checksummed_file.reingest_hint(key)) from error
        except OSError as error:
            raise checksummed_file.unreadable_error(path, error) from error
        # torch's own mapping keeps no file open: a hundred documents would be thousands. Outside
        # inference mode, because a segment opened while a model runs is read later, too.
        with torch.inference_mode(False):
            self._bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        array: Any = self._bytes.numpy()
        self._array, self._view = array, memoryview(array)
        self._good_rows = numpy.zeros((layout.layers, tokens), dtype=bool)
        self._good_tails = [False] * layout.layers

    def _check_header(self, head: bytes, size: int) -> dict[str, list[str]]:
        facts: dict[str, list[str]] = json.loads(
            checksummed_file.decode(head, "segment", self.path, self.key)
        )
        wanted = {"name": self.name, "layout": self.layout.as_json(), "tokens": self.tokens}
        if {key: facts[key] for key in wanted} != wanted:
            raise damage_error(self.path, "it holds another segment than its name says", self.key)
        if size != self._sections[-1].stop:
            wrong = f"it has {size:,} bytes instead of {self._sections[-1].stop:,}"
            raise damage_error(self.path, wrong, self.key)
        return facts

    def _check_tail(self, layer: int) -> None:
        if self._good_tails[layer]:
            return
        section = self._sections[layer]
        found = xxhash.xxh3_128_hexdigest(self._view[section.rows_stop : section.stop])
        if found != self._tails[layer]:
            raise damage_error(self.path, f"keys or checksums of layer {layer} changed", self.key)
        self._good_tails[layer] = True

    def _check_rows(self, layer: int, rows: Any) -> None:
        """Checks those of the rows, an index array, that have not been checked yet."""
        self._check_tail(layer)
        good = self._good_rows[layer]
        new = rows[~good[rows]]
        if not new.size:
            return
        section = self._sections[layer]
        size = self.layout.of(layer).row_bytes
        found = _sums(self._view, section.start, size, new.tolist())
        found ^= _row_salts(self.name, layer, new)
        sums = self._array[section.sums : section.sums + self.tokens * 8]
        stored = sums.view("<u8")[new]
        if not numpy.array_equal(found, stored):
            row = int(new[numpy.nonzero(found != stored)[0][0]])
            raise damage_error(self.path, f"row {row} of layer {layer} changed", self.key)
        good[new] = True

    def _check_records(self, layer: int) -> None:
        """Checks all rows at once; if any changed, `_check_rows` finds which."""
        section = self._sections[layer]
        if not self._good_rows[layer].all():
            found = xxhash.xxh3_128_hexdigest(self._view[section.start : section.rows_stop])
            self._good_rows[layer] |= found == self._whole[layer]

    def rows(self, layer: int, start: int, stop: int, heads: Sequence[int] | None = None) -> Tensor:
        """The rows [start, stop) of a layer, (stop - start, width); native ones are views.

        Args:
            heads: only these of the 2 * G, in this order; the first G are the keys'.
        """
        return decode(self.records(layer, start, stop), self.layout.of(layer), heads)

    def records(self, layer: int, start: int, stop: int) -> Tensor:
        """The bytes of the rows [start, stop) of a layer, (stop - start, row_bytes), a view."""
        if SCAN * (stop - start) >= self.tokens:
            self._check_records(layer)
        self._check_rows(layer, numpy.arange(start, stop))
        return self._records(layer)[start:stop]

    def _records(self, layer: int) -> Tensor:
        section = self._sections[layer]
        return self._bytes[section.start : section.rows_stop].view(self.tokens, -1)

    def gather(self, layer: int, rows: Tensor, out: Tensor) -> None:
        """Copies some rows (K,) of a layer to `out` (K, width)."""
        self._check_rows(layer, rows.numpy())
        records = self._records(layer)
        if self.layout.kind == "native":  # as numbers: several times as fast as bytes
            torch.index_select(records.view(out.dtype), 0, rows, out=out)
        else:
            out.copy_(decode(records.index_select(0, rows), self.layout.of(layer)))

    def reduced(self, layer: int) -> Tensor:
        """The reduced keys of a layer, (n, R), a view."""
        self._check_tail(layer)
        section, width = self._sections[layer], self.layout.reduced[layer]
        dtype: torch.dtype = getattr(torch, self.layout.reduced_dtype)
        stop = section.reduced + self.tokens * width * dtype.itemsize
        return self._bytes[section.reduced : stop].view(dtype).view(self.tokens, width)

    def check(self) -> None:
        """Reads and checks everything again. Raises LibraryError if anything is damaged."""
        self._good_tails = [False] * self.layout.layers
        self._good_rows[:] = False
        for layer in range(self.layout.layers):
            self._check_rows(layer, numpy.arange(self.tokens))

"""One segment file: written once, then mapped, and no row of it used before it was checked.

Every record has a checksum of its own, so that scattered rows are checked without reading the rest.
It is mixed with segment, layer and row, so that a good row in a wrong place is found too. All
records of a section together have one more, for scans, where a checksum a row would take longer
than the scan; what stands behind them (reduced keys, checksums, padding) has one as well. Both are
in the header, whose digest covers all of the header. A file that was cut is named. One that is cut
while it is mapped ends the process: that is the system's answer (SIGBUS), not ours.
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
from esa_cli.storage.library import checksummed_file as sealed
from esa_cli.storage.library.checksummed_file import damaged
from esa_cli.storage.library.int8_rows import decode, encode
from esa_cli.storage.library.row_layout import Layout, Section

_ODD = numpy.uint64(0x9E3779B97F4A7C15)
SCAN = 4
"""Where at least a quarter of a section's rows is wanted, all of it is checked at once."""
Layer = tuple[Tensor, Tensor | None]
"""Rows (n, 2 * G * D) and reduced keys (n, R) of one layer."""


def _places(name: str, layer: int, rows: Any) -> Any:
    """What the checksums of these rows are mixed with: 64 bits that no other place has."""
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
    line = len(sealed.seal("segment", b"")[0]) - 1
    for digits in range(1, 9):  # the first line says how long the padded text is
        data, _ = sealed.seal("segment", text.ljust(layout.header_bytes - line - digits))
        if len(data) == layout.header_bytes:
            return data
    raise AssertionError("a header that does not fill its pages")


def write_segment(
    path: Path, owner: str, layout: Layout, tokens: int, layers: Iterable[Layer]
) -> None:
    """Puts a segment on disk for good. Raises OSError.

    Args:
        owner: see `sealed.new_file`. layers: rows and reduced keys of all tokens, in order.
    """
    name = path.stem
    whole: list[str] = []
    tails: list[str] = []
    sections = layout.sections(tokens)
    with sealed.new_file(path, owner) as file:
        file.write(bytes(layout.header_bytes))
        for layer, ((rows, reduced), section) in enumerate(zip(layers, sections, strict=True)):
            _fits(rows, (tokens, layout.width), layout.dtype)
            if layout.reduced[layer]:
                _fits(reduced, (tokens, layout.reduced[layer]), layout.reduced_dtype)
            data: Any = encode(rows.cpu(), layout).numpy()
            records = memoryview(data).cast("B")
            sums = _sums(records, 0, layout.row_bytes, [*range(tokens)])
            sums ^= _places(name, layer, numpy.arange(tokens))
            tail = _tail(section, reduced, sums, layout)
            whole.append(xxhash.xxh3_128_hexdigest(records))
            tails.append(xxhash.xxh3_128_hexdigest(tail))
            file.write(records)
            file.write(tail)
        file.seek(0)
        file.write(_header(name, layout, tokens, whole, tails))


def _fits(given: Tensor | None, shape: tuple[int, int], dtype: str) -> None:
    """What a layout does not say is not stored: read back by the layout it would be other rows."""
    if given is None or given.shape != shape or given.dtype != getattr(torch, dtype):
        found = "nothing" if given is None else f"{tuple(given.shape)} of {given.dtype}"
        raise ValueError(f"the layout wants {shape} of {dtype}, and there is {found}")


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
    """A segment file, mapped. Its header and length are checked here, the rest when it is used.

    Args:
        tokens: how many it must hold. key: the document's, for messages.

    Raises:
        LibraryError: it is missing, damaged, of another version, or not what its name says.
    """

    def __init__(self, path: Path, layout: Layout, tokens: int, key: str) -> None:
        self.path, self.layout, self.tokens, self.key = path, layout, tokens, key
        self._sections = layout.sections(tokens)
        try:
            with open(path, "rb") as file:
                head = file.read(layout.header_bytes)
                facts = self._check_header(head, os.fstat(file.fileno()).st_size)
                self._whole, self._tails = facts["records"], facts["tails"]
        except FileNotFoundError as error:
            raise LibraryError(f"{path} is missing", sealed.again(key)) from error
        except OSError as error:
            raise sealed.unreadable(path, error) from error
        # torch's own mapping keeps no file open, where a hundred books would be thousands; and what
        # is opened while a model runs is read afterwards, too.
        with torch.inference_mode(False):
            self._bytes = torch.from_file(
                str(path), shared=False, size=self._sections[-1].stop, dtype=torch.uint8
            )
        array: Any = self._bytes.numpy()
        self._array, self._view = array, memoryview(array)
        self._good_rows = numpy.zeros((layout.layers, tokens), dtype=bool)
        self._good_tails = [False] * layout.layers

    def _check_header(self, head: bytes, size: int) -> dict[str, list[str]]:
        facts: dict[str, list[str]] = json.loads(
            sealed.unseal(head, "segment", self.path, self.key)
        )
        wanted = {"name": self.path.stem, "layout": self.layout.as_json(), "tokens": self.tokens}
        if {key: facts[key] for key in wanted} != wanted:
            raise damaged(self.path, "it holds another segment than its name says", self.key)
        if size != self._sections[-1].stop:
            wrong = f"it has {size:,} bytes instead of {self._sections[-1].stop:,}"
            raise damaged(self.path, wrong, self.key)
        return facts

    def _check_tail(self, layer: int) -> None:
        if self._good_tails[layer]:
            return
        section = self._sections[layer]
        found = xxhash.xxh3_128_hexdigest(self._view[section.rows_stop : section.stop])
        if found != self._tails[layer]:
            raise damaged(self.path, f"keys or checksums of layer {layer} changed", self.key)
        self._good_tails[layer] = True

    def _check_rows(self, layer: int, rows: Any) -> None:
        """Checks those of the rows, an index array, that nobody has checked yet."""
        self._check_tail(layer)
        good = self._good_rows[layer]
        new = rows[~good[rows]]
        if not new.size:
            return
        section = self._sections[layer]
        found = _sums(self._view, section.start, self.layout.row_bytes, new.tolist())
        found ^= _places(self.path.stem, layer, new)
        sums = self._array[section.sums : section.sums + self.tokens * 8]
        stored = sums.view("<u8")[new]
        if not numpy.array_equal(found, stored):
            row = int(new[numpy.nonzero(found != stored)[0][0]])
            raise damaged(self.path, f"row {row} of layer {layer} changed", self.key)
        good[new] = True

    def _check_records(self, layer: int) -> None:
        """Checks all rows at once; where something changed they are checked one by one later."""
        section = self._sections[layer]
        if not self._good_rows[layer].all():
            found = xxhash.xxh3_128_hexdigest(self._view[section.start : section.rows_stop])
            self._good_rows[layer] |= found == self._whole[layer]

    def rows(self, layer: int, start: int, stop: int, heads: Sequence[int] | None = None) -> Tensor:
        """The rows [start, stop) of a layer, (stop - start, 2 * G * D); native ones not copied.

        Args:
            heads: only these of the 2 * G, in this order; the first G are the keys'.
        """
        if SCAN * (stop - start) >= self.tokens:
            self._check_records(layer)
        self._check_rows(layer, numpy.arange(start, stop))
        return decode(self._records(layer)[start:stop], self.layout, heads)

    def _records(self, layer: int) -> Tensor:
        section = self._sections[layer]
        return self._bytes[section.start : section.rows_stop].view(self.tokens, -1)

    def gather(self, layer: int, rows: Tensor, out: Tensor) -> None:
        """Copies some rows (K,) of a layer to `out` (K, 2 * G * D)."""
        self._check_rows(layer, rows.numpy())
        records = self._records(layer)
        if self.layout.kind == "native":  # copied in numbers, not in bytes: several times as fast
            torch.index_select(records.view(out.dtype), 0, rows, out=out)
        else:
            out.copy_(decode(records.index_select(0, rows), self.layout))

    def reduced(self, layer: int) -> Tensor:
        """The reduced keys of a layer, (n, R), not copied."""
        self._check_tail(layer)
        section, width = self._sections[layer], self.layout.reduced[layer]
        dtype: torch.dtype = getattr(torch, self.layout.reduced_dtype)
        stop = section.reduced + self.tokens * width * dtype.itemsize
        return self._bytes[section.reduced : stop].view(dtype).view(self.tokens, width)

    def check(self) -> None:
        """Reads and checks everything, whatever was checked before.

        Raises:
            LibraryError: something in it is damaged.
        """
        self._good_tails = [False] * self.layout.layers
        self._good_rows[:] = False
        for layer in range(self.layout.layers):
            self._check_rows(layer, numpy.arange(self.tokens))

"""Files packed with gzip: unpacked within a limit, then read by their name without `.gz`."""

from __future__ import annotations

import zlib
from typing import ClassVar

from esa_cli.documents.readers.reader_registry import damage_error, read, register
from esa_cli.documents.reading_process import UNPACKED, limit_error, mebibytes, reading_limits
from esa_cli.documents.text_builder import STDIN, ExtractedText, label, path_in_hint
from esa_cli.errors import DocumentError

_MAGIC = b"\x1f\x8b\x08"
_STEP = 1 << 20
_PIECE = 1 << 14


@register("gzip")
class GzipReader:
    """A file packed with gzip, of any kind that is read."""

    what: ClassVar[str] = "gzip-compressed data"
    suffixes: ClassVar[tuple[str, ...]] = (".gz",)
    binary: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(_MAGIC)

    def read(self, data: bytes, name: str) -> ExtractedText:
        inner = name[:-3] if name.lower().endswith(".gz") else name
        unpacked = unpack(data, name)
        if not unpacked:
            raise DocumentError(f"{label(name)} contains an empty file", "give another document")
        if unpacked.startswith(_MAGIC):
            raise DocumentError(
                f"{label(name)} is packed with gzip more than once",
                f"unpack it first: gunzip -k {path_in_hint(name)}",
            )
        try:
            return read(unpacked, inner)
        except DocumentError as error:
            if inner in (STDIN, name):
                raise
            raise DocumentError(
                f"{error.message} (unpacked from {name})",
                f"unpack it first: gunzip -k {name}; {error.hint}".rstrip("; "),
            ) from error


def unpack(data: bytes, name: str) -> bytes:
    """Every member of a gzip file, together.

    Raises:
        DocumentError: it is damaged or cut off, or unpacks to more than the limit.
    """
    parts: list[bytes] = []
    most = reading_limits().unpacked
    packed, at, left = memoryview(data), 0, most
    while at < len(packed):
        if at and not packed[at] and not bytes(packed[at:]).strip(b"\0"):
            break  # padding, as tapes leave it
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            # What zlib does not take it copies, so it is handed little at a time.
            piece = packed[at : at + _PIECE]
            try:
                part = member.decompress(piece, _STEP)
            except zlib.error as error:
                raise damage_error(name, GzipReader.what, str(error)) from error
            at += len(piece) - len(member.unconsumed_tail) - len(member.unused_data)
            if not part and not piece and not member.eof:
                raise damage_error(name, GzipReader.what, "the end is missing")
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise limit_error(name, "", f"unpack to at most {mebibytes(most)}", UNPACKED)
    return b"".join(parts)

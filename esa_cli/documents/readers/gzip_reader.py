"""Files packed with gzip: unpacked within a limit, then read by their name without `.gz`."""

from __future__ import annotations

import gzip
import io
import zlib
from typing import ClassVar

from esa_cli.documents.reader_registry import damage_error, register
from esa_cli.documents.reading_process import check_unpacked, read, reading_limits
from esa_cli.documents.text_builder import STDIN, ExtractedText, label, path_in_hint
from esa_cli.errors import DocumentError

_MAGIC = b"\x1f\x8b\x08"


@register("gzip")
class GzipReader:
    """A file packed with gzip, of any kind that is read."""

    what: ClassVar[str] = "gzip-compressed data"
    suffixes: ClassVar[tuple[str, ...]] = (".gz",)
    binary: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(_MAGIC)

    def read(self, data: bytes, name: str) -> ExtractedText:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                unpacked = file.read(reading_limits().unpacked + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise damage_error(name, self.what, str(error)) from error
        check_unpacked(len(unpacked), name)
        unpack = f"unpack it first: gunzip -k {path_in_hint(name)}"
        if not unpacked:
            raise DocumentError(f"{label(name)} contains an empty file", "give another document")
        if unpacked.startswith(_MAGIC):
            raise DocumentError(f"{label(name)} is packed with gzip more than once", unpack)
        inner = name[:-3] if name.lower().endswith(".gz") else name
        try:
            return read(unpacked, inner)
        except DocumentError as error:
            if inner in (STDIN, name):
                raise
            raise DocumentError(
                f"{error.message} (unpacked from {name})", f"{unpack}; {error.hint}".rstrip("; ")
            ) from error

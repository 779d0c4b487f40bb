"""Parts of a zipped document, unpacked within limits.

A few kilobytes can unpack to terabytes: unpacking stops at the limit, whatever sizes the file
declares. XML and HTML parts have a lower limit, because their trees take far more memory than
their text.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from esa_cli.documents.readers.reader_registry import Reader, damage_error
from esa_cli.documents.reading_process import (
    PART,
    UNPACKED,
    check_elements,
    limit_error,
    mebibytes,
    reading_limits,
)
from esa_cli.documents.text_builder import label, optional_import
from esa_cli.errors import DocumentError

_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_LOCKED = "EncryptedPackage".encode("utf-16-le")
_STEP = 1 << 20
MOST_PARTS = 1 << 16
"""Parts of a zipped document; a directory of more takes minutes and gigabytes to list."""
_ENTRY = b"PK\1\2"
_NONE: Mapping[bytes, bytes] = MappingProxyType({})


class ZipParts:
    """The parts of a zipped document by name.

    Args:
        reader: of the format. alike: names of XML's namespaces -> those that are read for them.
    """

    def __init__(
        self, data: bytes, name: str, reader: Reader, alike: Mapping[bytes, bytes] = _NONE
    ) -> None:
        self._name, self._what, self._alike = name, reader.what, alike
        if data.startswith(_OLD_OFFICE) and reader.suffixes[0].endswith("x"):
            raise _old_office_error(data, name, reader.suffixes[0][1:])
        self._limits = reading_limits()
        self._left = self._limits.unpacked
        if data.count(_ENTRY) > MOST_PARTS:
            raise DocumentError(
                f"{label(name)} must have at most {MOST_PARTS:,} parts, got more",
                "save it again with the program that made it, or split it",
            )
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
            self.names = set(self._archive.namelist())
        except Exception as error:  # zipfile raises whatever its arithmetic meets
            reason = str(error) or type(error).__name__
            raise damage_error(name, self._what, reason) from error

    def __contains__(self, part: str) -> bool:
        return part in self.names

    def check(self) -> None:
        """Unpacks every part once, before a library does so without limits.

        Raises:
            DocumentError: as `read`.
        """
        for part in sorted(self.names):
            if not part.endswith("/"):
                self._unpack(part, keep=False)

    def read(self, part: str) -> bytes:
        """One part.

        Raises:
            DocumentError: it is missing, encrypted or damaged, or it or the parts together unpack
                to too much, or it has too many elements.
        """
        if part not in self.names:
            raise damage_error(self._name, self._what, f"it has no {part}")
        return b"".join(self._unpack(part, keep=True))

    def _unpack(self, part: str, *, keep: bool) -> list[bytes]:
        if self._archive.getinfo(part).flag_bits & 1:
            raise DocumentError(
                f"{label(self._name)} is protected by a password",
                "save it without one and give that file",
            )
        pieces: list[bytes] = []
        markup, elements = keep or part.endswith((".xml", ".rels")), 0
        left = self._limits.part if markup else self._limits.unpacked
        try:
            with self._archive.open(part) as stream:
                while piece := stream.read(_STEP):
                    self._left -= len(piece)
                    left -= len(piece)
                    if self._left < 0 or left < 0:
                        raise self._too_large(part if left < 0 else "")
                    if markup:
                        elements += piece.count(b"<") - piece.count(b"</")
                        check_elements(elements, self._name, part)
                    pieces += [piece] if keep else []
        except DocumentError:
            raise
        except Exception as error:  # zipfile raises whatever its arithmetic meets
            raise damage_error(self._name, self._what, f"{part}: {error}") from error
        return pieces

    def xml(self, part: str) -> Any:
        """The root element of one part. Raises DocumentError: as `read`, or it is no XML."""
        data = self.read(part)
        for other, known in self._alike.items():
            data = data.replace(other, known)
        return parse_xml(data, self._name, self._what, part)

    def _too_large(self, part: str) -> DocumentError:
        limit = mebibytes(self._limits.part if part else self._limits.unpacked)
        what = f"its part {part}" if part else ""
        return limit_error(
            self._name, what, f"unpack to at most {limit}", PART if part else UNPACKED
        )


def has_part(head: bytes, part: str) -> bool:
    """True if a zip has a part of this name or, where its end is missing, may have.

    Parts of files inside it do not count: a text may embed a workbook.
    """
    if not head.startswith(b"PK\3\4") or part.encode() not in head:
        return False
    if head.count(_ENTRY) > MOST_PARTS:
        return True  # which ZipParts refuses
    try:
        with zipfile.ZipFile(io.BytesIO(head)) as archive:
            return part in archive.namelist()
    except Exception:  # zipfile raises whatever its arithmetic meets
        return True


def _old_office_error(data: bytes, name: str, new: str) -> DocumentError:
    """The error for an old or encrypted Office file that has a zipped format's name."""
    if _LOCKED in data:
        return DocumentError(
            f"{label(name)} is protected by a password",
            "open it, save it without a password, and give that file",
        )
    return DocumentError(
        f"{label(name)} is called {new}, but is an old Office file ({new[:-1]})",
        f"open it and save it as {new}",
    )


def parse_xml(data: bytes, name: str, what: str, part: str) -> Any:
    """The root element. Nothing is fetched, and entities, which can grow without end, are refused.

    Raises:
        DocumentError: it is no XML, or has entities of its own.
    """
    etree = optional_import("lxml.etree", "lxml", name)
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise damage_error(name, what, f"{part}: {error}") from error
    if next(root.iter(etree.Entity), None) is not None:
        raise damage_error(name, what, f"{part}: it has entities of its own")
    return root

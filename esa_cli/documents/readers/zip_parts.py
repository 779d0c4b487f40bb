"""Parts of a zipped document, and their XML."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

from esa_cli.documents.reader_registry import Reader, damage_error
from esa_cli.documents.reading_process import check_unpacked
from esa_cli.documents.text_builder import label, optional_import
from esa_cli.errors import DocumentError

_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_LOCKED = "EncryptedPackage".encode("utf-16-le")
_ENTRY = b"PK\1\2"
MOST_PARTS = 1 << 16
"""Parts of a zip that are listed to choose its reader; more take minutes and gigabytes."""
_STRICT = (
    (b"http://purl.oclc.org/ooxml/wordprocessingml/main",
     b"http://schemas.openxmlformats.org/wordprocessingml/2006/main"),
    (b"http://purl.oclc.org/ooxml/spreadsheetml/main",
     b"http://schemas.openxmlformats.org/spreadsheetml/2006/main"),
    (b"http://purl.oclc.org/ooxml/officeDocument/math",
     b"http://schemas.openxmlformats.org/officeDocument/2006/math"),
    (b"http://purl.oclc.org/ooxml/officeDocument/relationships",
     b"http://schemas.openxmlformats.org/officeDocument/2006/relationships"),
)  # fmt: skip
"""Namespaces of a document saved as Strict Open XML, and the usual ones that mean the same."""


class ZipParts:
    """The parts of a zipped document by name.

    Raises:
        DocumentError: it is damaged, has a password, or unpacks to more than the limit. A part
            unpacks to no more than the size that the zip's directory declares.
    """

    def __init__(self, data: bytes, name: str, reader: Reader) -> None:
        self._name, self._what = name, reader.what
        if data.startswith(_OLD_OFFICE):
            if _LOCKED in data:
                raise password_error(name)
            raise DocumentError(
                f"{label(name)} is an old Office file (doc, xls, ppt)",
                f"open it and save it as {reader.suffixes[0][1:]}",
            )
        try:
            self._archive = zipfile.ZipFile(io.BytesIO(data))
            listed = self._archive.infolist()
        except Exception as error:  # zipfile raises whatever its arithmetic meets
            reason = str(error) or type(error).__name__
            raise damage_error(name, self._what, reason) from error
        check_unpacked(sum(part.file_size for part in listed), name)
        if any(part.flag_bits & 1 for part in listed):
            raise password_error(name)
        self.names = {part.filename for part in listed}

    def __contains__(self, part: str) -> bool:
        return part in self.names

    def read(self, part: str) -> bytes:
        """The bytes of a part. Raises DocumentError: it is missing or damaged."""
        if part not in self.names:
            raise damage_error(self._name, self._what, f"it has no {part}")
        try:
            return self._archive.read(part)
        except Exception as error:  # zipfile raises whatever its arithmetic meets
            raise damage_error(self._name, self._what, f"{part}: {error}") from error

    def xml(self, part: str) -> Any:
        """The root element of a part; nothing is fetched, and entities of its own are refused.

        Raises:
            DocumentError: as `read`, or it is no XML.
        """
        data = self._usual(part)
        etree = optional_import("lxml.etree", "lxml", self._name)
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
        try:
            root = etree.fromstring(data, parser)
        except (etree.XMLSyntaxError, ValueError) as error:
            raise damage_error(self._name, self._what, f"{part}: {error}") from error
        if next(root.iter(etree.Entity), None) is not None:
            raise damage_error(self._name, self._what, f"{part}: it has entities of its own")
        return root

    def elements(self, part: str, *tags: str) -> Iterator[Any]:
        """The elements with these tags, one after the other, of a part whose tree would be large.

        Raises:
            DocumentError: as `xml`.
        """
        data = self._usual(part)
        if b"<!DOCTYPE" in data.replace(b"\0", b""):  # in UTF-16, too
            raise damage_error(self._name, self._what, f"{part}: it has entities of its own")
        etree = optional_import("lxml.etree", "lxml", self._name)
        try:
            for _, element in etree.iterparse(io.BytesIO(data), tag=tags, no_network=True):
                yield element
                element.clear()
        except (etree.XMLSyntaxError, ValueError) as error:
            raise damage_error(self._name, self._what, f"{part}: {error}") from error

    def _usual(self, part: str) -> bytes:
        """A part with the usual namespaces of Open XML."""
        data = self.read(part)
        for strict, usual in _STRICT:
            data = data.replace(strict, usual)
        return data


def has_part(head: bytes, part: str) -> bool:
    """True if a zip has a part of this name or, where its end is missing, may have.

    Parts of files inside it do not count: a text may embed a workbook.
    """
    if not head.startswith(b"PK\3\4") or part.encode() not in head:
        return False
    if head.count(_ENTRY) > MOST_PARTS:
        return True  # the child process has limits
    try:
        with zipfile.ZipFile(io.BytesIO(head)) as archive:
            return part in archive.namelist()
    except Exception:  # zipfile raises whatever its arithmetic meets
        return True


def password_error(name: str) -> DocumentError:
    return DocumentError(
        f"{label(name)} is protected by a password",
        "open it, save it without a password, and give that file",
    )

"""Reads the files inside zipped documents, such as docx."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from esa_cli.documents.readers.reading_process import refuse_large_unpacked_size
from esa_cli.documents.readers.text_builder import import_package, label_document
from esa_cli.errors import DocumentError

_OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_LOCKED = "EncryptedPackage".encode("utf-16-le")
_STRICT = re.compile(rb"http://purl\.oclc\.org/ooxml/([A-Za-z]+)/")
"""Namespaces of Strict Open XML, which are those of the usual form by another name."""
_SAFE = {"no_network": True, "resolve_entities": False}


class ZipDocument:
    """The files inside a zipped document, none of which is larger than the zip's directory says.
    Raises DocumentError: the document is an old Office file, has a password, or is too large."""

    def __init__(self, data: bytes, name: str) -> None:
        if data.startswith(_OLD_OFFICE):
            if _LOCKED in data:
                raise make_password_error(name)
            message = f"{label_document(name)} is an old Office file (doc, xls, ppt)"
            raise DocumentError(message, "open the file and save it as docx, xlsx or pptx")
        self.etree = import_package("lxml.etree", "lxml", name)
        self._archive = zipfile.ZipFile(io.BytesIO(data))
        parts = self._archive.infolist()
        refuse_large_unpacked_size(sum(part.file_size for part in parts), name)
        if any(part.flag_bits & 1 for part in parts):
            raise make_password_error(name)
        self.names = {part.filename for part in parts}

    def __contains__(self, part: str) -> bool:
        return part in self.names

    def read_file(self, file_name: str) -> bytes:
        return self._archive.read(file_name)

    def _read_xml_bytes(self, file_name: str) -> bytes:
        """Returns the bytes of an XML file, in which namespaces of Strict Open XML are replaced."""
        data = self.read_file(file_name)
        if not _STRICT.search(data, 0, 4096):
            return data
        return _STRICT.sub(rb"http://schemas.openxmlformats.org/\1/2006/", data)

    def parse_xml(self, file_name: str) -> Any:
        """Returns the root element of an XML file, parsed without network access and entities."""
        parser = self.etree.XMLParser(**_SAFE, load_dtd=False, remove_comments=True)
        return self.etree.fromstring(self._read_xml_bytes(file_name), parser)

    def parse_xml_if_any(self, file_name: str) -> Any:
        """Returns the root element of an XML file, or an empty one if the document has no such."""
        return self.parse_xml(file_name) if file_name in self else self.etree.Element("empty")

    def iterate_xml_elements(self, file_name: str, *tags: str) -> Iterator[Any]:
        """Yields the elements of an XML file that have one of `tags`, without a tree in memory."""
        file = io.BytesIO(self._read_xml_bytes(file_name))
        for _, element in self.etree.iterparse(file, tag=tags, **_SAFE):
            yield element
            element.clear()


def make_password_error(document_name: str) -> DocumentError:
    hint = "open the document, save it without a password, and name the new file"
    return DocumentError(f"{label_document(document_name)} is protected by a password", hint)

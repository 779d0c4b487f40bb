"""HTML pages: the text a page shows, its headings for chapters."""

from __future__ import annotations

import re
from typing import ClassVar

from esa_cli.documents.encoding import BYTE_ORDER_MARKS, declared_codec, decode
from esa_cli.documents.readers.html_text import parse_html, write_html
from esa_cli.documents.readers.reader_registry import register
from esa_cli.documents.text_builder import ExtractedText, TextBuilder, label, path_in_hint
from esa_cli.errors import DocumentError

_DECLARED = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([A-Za-z0-9_.:-]+)""", re.IGNORECASE)
_HEAD = 4096
WIDER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
    "tis-620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
    "euc_kr": "cp949",
}  # fmt: skip
"""Declared -> what browsers read it as, and pages rely on: the same characters, and more."""
_BEGINS = re.compile(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html[\s>])", re.IGNORECASE)


@register("html")
class HtmlReader:
    """Web pages."""

    what: ClassVar[str] = "HTML"
    suffixes: ClassVar[tuple[str, ...]] = (".html", ".htm", ".xhtml")
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        return _BEGINS.match(head) is not None

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = decode_markup(data, name)
        root = parse_html(text, name)
        out = TextBuilder()
        if root is not None:
            out.chapter(" ".join((root.findtext("head/title") or "").split()) or None)
            write_html(root, out, name)
        extracted = out.result()
        if not extracted.text.strip():
            raise DocumentError(
                f"{label(name)} is a web page without text; a script may make its text",
                "open it in a browser and save it as text, or print it to PDF",
            )
        return ExtractedText(extracted.text, extracted.marks, extracted.missing, encoding)


def decode_markup(data: bytes, name: str) -> tuple[str, str]:
    """The text of an HTML or XML file, by its byte order mark, what it declares, or its letters.

    Raises:
        DocumentError: as `document_bytes.decode`.
    """
    declared = _DECLARED.search(data[:_HEAD])
    if declared and not data.startswith(BYTE_ORDER_MARKS):
        try:
            encoding = declared_codec(declared[1].decode("ascii"))
            encoding = WIDER.get(encoding, encoding)
            if not encoding.startswith(("utf-16", "utf-32")):  # or it could not be read as ASCII
                return data.decode(encoding), encoding
        except (LookupError, ValueError):
            pass  # not what it declares
    return decode(data, label(name), path_in_hint(name))

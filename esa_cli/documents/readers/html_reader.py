"""HTML pages: the text a page shows, its headings for chapters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from esa_cli.documents.encoding import BYTE_ORDER_MARKS, declared_codec, decode
from esa_cli.documents.readers.html_text import parse_html, parse_xhtml, write_html
from esa_cli.documents.readers.reader_registry import register
from esa_cli.documents.text_builder import (
    ExtractedText,
    TextBuilder,
    label,
    optional_import,
    path_in_hint,
)
from esa_cli.errors import DocumentError

_CHARSET = re.compile(r"""charset\s*=\s*["']?([^\s"';]+)""", re.IGNORECASE)
_XML = re.compile(rb"""\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9_.:-]+)["']""")
_HEAD = 1 << 14
"""Bytes in which a page's encoding is looked for. Browsers look at 1,024 first, and read again
when a declaration follows."""
WIDER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874",
    "tis-620": "cp874", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932",
    "euc_kr": "cp949",
}  # fmt: skip
"""Declared -> what browsers read it as, and pages rely on: the same characters, and more."""
_WEB = frozenset((
    "utf-8", "cp866", "koi8-r", "koi8-u", "mac-roman", "mac-cyrillic", "gb18030", "big5",
    "big5hkscs", "euc_jp", "iso2022_jp", "cp932", "cp949", "cp874",
    *(f"cp{number}" for number in range(1250, 1259)),
    *(f"iso8859-{number}" for number in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
))  # fmt: skip
"""The encodings that browsers know; all have ASCII in them."""
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
        xhtml = name.lower().endswith(".xhtml")
        root = parse_xhtml(data, text, name) if xhtml else parse_html(text, name)
        out = TextBuilder()
        out.chapter(" ".join((root.findtext("{*}head/{*}title") or "").split()) or None)
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
        DocumentError: as `encoding.decode`.
    """
    if not data.startswith(BYTE_ORDER_MARKS):
        for charset in _declared(data[:_HEAD], name):
            encoding = _of_browsers(charset)
            try:
                return data.decode(encoding), encoding
            except (LookupError, ValueError):
                pass  # not what it declares
    return decode(data, label(name), path_in_hint(name))


def _declared(head: bytes, name: str) -> Iterator[str]:
    """What <meta> elements declare, as a browser's parser finds them, then XML's declaration."""
    lexbor = optional_import("selectolax.lexbor", "selectolax", name)
    for meta in lexbor.LexborHTMLParser(head.decode("latin-1")).css("meta"):
        given = meta.attributes
        if given.get("charset"):
            yield given["charset"]
        elif (given.get("http-equiv") or "").strip().lower() == "content-type":
            yield from _CHARSET.findall(given.get("content") or "")[:1]
    if declaration := _XML.match(head):
        yield declaration[1].decode()


def _of_browsers(charset: str) -> str:
    """The Python name of a declared encoding as browsers read it; empty if they know none."""
    charset = re.sub(r"^x-|-[ie]$", "", charset.strip().lower())
    charset = re.sub(r"^(?:windows|dos)-(\d+)$", r"cp\1", charset).replace("windows-31j", "cp932")
    try:
        encoding = declared_codec(charset)
    except (LookupError, ValueError):
        return ""
    encoding = WIDER.get(encoding, encoding)
    if encoding.startswith(("utf-16", "utf-32")):  # or the declaration could not be read as ASCII
        return "utf-8"
    return encoding if encoding in _WEB else ""

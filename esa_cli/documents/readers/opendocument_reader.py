"""OpenDocument texts (odt): paragraphs, tables, lists and notes; headings are chapters.

Pages are those marked by the program that saved the document last. Deleted text, comments, headers
and footers are left out; all but the first are reported. Read from the XML itself: odfdo's text has
no numbers, pages or cells, and keeps the white space between tags.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from esa_cli.documents.readers.html_text import formula_text
from esa_cli.documents.readers.opendocument_styles import (
    OFFICE,
    STYLE,
    TEXT,
    OpenDocumentStyles,
    ParagraphNumbers,
    whole,
)
from esa_cli.documents.readers.reader_registry import damage_error, register
from esa_cli.documents.readers.zip_parts import ZipParts
from esa_cli.documents.text_builder import (
    ExtractedText,
    TextBuilder,
    label,
    no_text_error,
    optional_import,
)
from esa_cli.errors import DocumentError

_CONTENT, _STYLES, _MANIFEST = "content.xml", "styles.xml", "META-INF/manifest.xml"
_MIMETYPE = b"mimetypeapplication/vnd.oasis.opendocument.text"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_SVG = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_MATH = "{http://www.w3.org/1998/Math/MathML}math"
_COMMENT = f"{OFFICE}annotation"
_NOT_SHOWN = (_COMMENT, f"{TEXT}tracked-changes", f"{TEXT}note-citation", f"{OFFICE}forms")
_PARAGRAPHS = (f"{TEXT}p", f"{TEXT}h")
_WORDS = (*_PARAGRAPHS, f"{TEXT}span", f"{TEXT}a")


@register("odt")
class OpenDocumentReader:
    """OpenDocument texts and their templates."""

    what: ClassVar[str] = "an OpenDocument text"
    suffixes: ClassVar[tuple[str, ...]] = (".odt", ".ott")
    binary: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(b"PK\3\4") and head[30:].startswith(_MIMETYPE)

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts = ZipParts(data, name, self.what)
        _refuse_locked(parts, name)
        root = parts.xml(_CONTENT)
        body = root.find(f"{OFFICE}body/{OFFICE}text")
        if body is None:
            raise damage_error(name, self.what, f"{_CONTENT} holds no text document")
        styles = [parts.xml(_STYLES)] if _STYLES in parts else []
        writer = _OpenDocumentWriter(parts, OpenDocumentStyles(*styles, root), body)
        _walk(body, writer, name)
        extracted = writer.out.result(_missing(writer, styles))
        if not extracted.text.strip():
            raise no_text_error(name, self.what)
        return extracted


def _refuse_locked(parts: ZipParts, name: str) -> None:
    if _MANIFEST not in parts:
        return
    if next(parts.xml(_MANIFEST).iter("{*}encryption-data"), None) is not None:
        raise DocumentError(
            f"{label(name)} is protected by a password",
            "open it, save it without a password, and give that file",
        )


def _walk(body: Any, writer: _OpenDocumentWriter, name: str) -> None:
    """Passes every element to the writer, and the text in and behind it, in order."""
    etree = optional_import("lxml.etree", "lxml", name)
    events = etree.iterwalk(body, events=("start", "end", "comment", "pi"))
    for event, element in events:
        if event == "start":
            if not writer.open(element):
                events.skip_subtree()
            elif element.text:
                writer.text(element, element.text)
            continue
        if event == "end":
            writer.close(element)
        if element is not body and element.tail:
            writer.text(element.getparent(), element.tail)


class _OpenDocumentWriter:
    """Writes the text of elements."""

    def __init__(self, parts: ZipParts, styles: OpenDocumentStyles, body: Any) -> None:
        self.out = TextBuilder()
        self.left_out: Counter[str] = Counter()
        self._parts, self._styles = parts, styles
        marked = next(body.iter(f"{TEXT}soft-page-break"), None) is not None
        self._page = 1 if marked else None
        self._numbers = ParagraphNumbers(styles)
        self._cells: list[int] = []  # of the current row, for each table around
        self._notes = 0
        self.out.page(self._page)

    def open(self, element: Any) -> bool:
        """Whether to go on with what is inside."""
        tag = element.tag
        if tag in _NOT_SHOWN:
            if tag == _COMMENT:
                self.left_out["comments in the margin"] += 1
            return False
        if tag in _PARAGRAPHS:
            self._paragraph(element)
        elif tag == f"{TEXT}s":
            self.out.exact(" " * whole(element.get(f"{TEXT}c"), 1000))
        elif tag == f"{TEXT}tab":
            self.out.exact("\t")
        elif tag == f"{TEXT}line-break":
            self.out.flow(" ") if self._cells or self._notes else self.out.exact("\n")
        elif tag == f"{TEXT}soft-page-break":
            self._turn("")
        elif tag == f"{TEXT}span" and self._styles.raised(element.get(f"{TEXT}style-name", "")):
            self.out.raised("".join(element.itertext()))
        elif tag == f"{TEXT}note":
            self._notes += 1
            self.out.flow(" [note: ")
        elif tag.startswith((f"{_TABLE}table", f"{_TABLE}covered")):
            self._table(element)
        elif tag == f"{TEXT}list":
            if not self._numbers.depth:
                self._apart()
            self._numbers.open_list(element)
        elif tag in (f"{TEXT}list-item", f"{TEXT}list-header"):
            self._numbers.item(element)
        elif tag == f"{_DRAW}frame":
            self._frame(element)
        return tag not in (f"{_SVG}title", f"{_SVG}desc", _MATH)

    def close(self, element: Any) -> None:
        tag = element.tag
        if tag == f"{TEXT}note":
            self._notes -= 1
            self.out.exact("]")
        elif tag == f"{TEXT}list":
            self._numbers.close_list()
            if not self._numbers.depth:
                self._apart()
        elif tag == f"{_TABLE}table":
            self._cells.pop()
            self._apart()
        elif tag in _PARAGRAPHS and not self._notes:  # a drawn one may stand inside another
            self.out.flow(" ") if self._cells else self.out.end_line()

    def text(self, inside: Any, text: str) -> None:
        """Text of an element; white space between paragraphs is left out."""
        if text.strip() or inside.tag in _WORDS:
            self.out.flow(text)

    def _apart(self) -> None:
        self.out.flow(" ") if self._cells or self._notes else self.out.paragraph()

    def _turn(self, number: str) -> None:
        """The next page begins, or the one of this number."""
        if self._page is not None:
            self._page = int(number) if number else self._page + 1
            self.out.page(self._page)

    def _new_page(self, family: str, name: str) -> None:
        number = None if self._cells or self._notes else self._styles.new_page(family, name)
        if number is not None and (self.out.begun or number):
            self._turn(number)

    def _paragraph(self, element: Any) -> None:
        name = element.get(f"{TEXT}style-name", "")
        self._new_page("paragraph", name)
        if self._numbers.depth and not (self._cells or self._notes):
            self.out.end_line()
        else:
            self._apart()
        heading, words = element.tag == f"{TEXT}h", _words(element)
        shown = self._numbers.of(element, heading=heading and bool(words))
        if heading and words:
            self.out.chapter(" ".join(f"{shown} {words}".split()))
        if shown and words:
            self.out.lead(f"{shown} ")

    def _table(self, element: Any) -> None:
        tag = element.tag
        if tag == f"{_TABLE}table":
            self._new_page("table", element.get(f"{_TABLE}style-name", ""))
            self._apart()
            self._cells.append(0)
        elif tag == f"{_TABLE}table-row":
            self.out.flow(" ") if len(self._cells) > 1 or self._notes else self.out.end_line()
            self._cells[-1:] = [0]
        elif tag == f"{_TABLE}table-cell":
            if self._cells and self._cells[-1]:
                self.out.flow(" | ")
            self._cells[-1:] = [1]

    def _frame(self, element: Any) -> None:
        """A text box, a picture with its description, or an object, which may be a formula."""
        if element.find(f"{_DRAW}text-box") is not None:
            return
        formula = self._formula(element)
        if formula:
            self.out.flow(f" {formula} ")
            return
        embedded = element.find(f"{_DRAW}object") is not None
        self.left_out["charts and other embedded objects" if embedded else "pictures"] += 1
        said = [element.findtext(f"{_SVG}{tag}") or "" for tag in ("title", "desc")]
        described = " ".join(" ".join(said).split())
        if described:
            self.out.flow(f" [picture: {described}] ")

    def _formula(self, frame: Any) -> str:
        found = frame.find(f"{_DRAW}object")
        if found is None:
            return ""
        inside = found.find(_MATH)
        part = posixpath.normpath(posixpath.join(found.get(_HREF, ""), _CONTENT))
        if inside is None and part in self._parts:
            inside = next(self._parts.xml(part).iter(_MATH), None)
        return "" if inside is None else formula_text(inside)


def _words(paragraph: Any) -> str:
    """Its words, without notes, comments and what is drawn beside them."""
    found = paragraph.xpath(
        "descendant::text()[not(ancestor::t:note or ancestor::o:annotation or ancestor::d:frame)]"
        "| descendant::t:s | descendant::t:tab | descendant::t:line-break",
        namespaces={"t": TEXT[1:-1], "o": OFFICE[1:-1], "d": _DRAW[1:-1]},
    )
    return " ".join("".join(one if isinstance(one, str) else " " for one in found).split())


def _missing(writer: _OpenDocumentWriter, styles: list[Any]) -> Iterator[str]:
    """What the document has and the text has not."""
    for what, count in writer.left_out.items():
        yield f"{what} are left out: {count}"
    edges = [e for root in styles for e in root.iter(f"{STYLE}header", f"{STYLE}footer")]
    if any("".join(edge.itertext()).strip() for edge in edges):
        yield "headers and footers are left out"

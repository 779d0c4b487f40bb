"""Word documents (docx): paragraphs, tables, notes and numbered headings; headings are chapters.

Read from the XML itself: python-docx has no numbers of headings and lists, no notes, no restarts of
page numbers, and skips text in content controls, text boxes and tracked insertions. Deleted text is
left out; headers, footers and comments are left out and reported.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from esa_cli.documents.readers.docx_pages import Pages, begins_with_mark
from esa_cli.documents.readers.docx_styles import (
    BULLET,
    ParagraphStyle,
    W,
    WordLists,
    styles,
    value,
    whole,
)
from esa_cli.documents.readers.reader_registry import register
from esa_cli.documents.readers.zip_parts import ZipParts, has_part
from esa_cli.documents.text_builder import (
    ExtractedText,
    TextBuilder,
    optional_import,
)

_MAIN = "word/document.xml"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_FORMULA_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_GONE = frozenset((_FALLBACK, f"{W}del", f"{W}moveFrom", f"{W}pPr", f"{W}rPr", f"{W}instrText"))
_STRICT = {
    b"http://purl.oclc.org/ooxml/wordprocessingml/main": W[1:-1].encode(),
    b"http://purl.oclc.org/ooxml/officeDocument/math": _FORMULA_TEXT[1:-2].encode(),
}
"""The names of a document that was saved as Strict Open XML, which else is the same."""
_SYMBOLS = {0xF0B7: "•", 0xF0A7: "▪", 0xF0E0: "→", 0xF0FC: "✓"}
_SIGNS = {
    f"{W}tab": "\t", f"{W}ptab": "\t", f"{W}cr": "\n", f"{W}noBreakHyphen": "-",
}  # fmt: skip


@register("docx")
class WordReader:
    """Word documents since 2007."""

    what: ClassVar[str] = "a Word document"
    suffixes: ClassVar[tuple[str, ...]] = (".docx", ".docm", ".dotx")
    binary: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        return has_part(head, _MAIN)

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts = ZipParts(data, name, self, _STRICT)
        root = parts.xml(_MAIN)
        writer = _WordWriter(parts, Pages(root, _counted(parts)))
        walk(root, writer, name)
        return writer.out.text_of(name, self.what, _missing(parts, root))


def walk(root: Any, writer: _WordWriter, name: str) -> None:
    """Passes every element of a tree to the writer, in order."""
    etree = optional_import("lxml.etree", "lxml", name)
    events = etree.iterwalk(root, events=("start", "end"))
    for event, element in events:
        if event == "end":
            writer.close(element)
        elif element.tag in _GONE:
            events.skip_subtree()
        else:
            writer.open(element)


class _WordWriter:
    """Writes the text of elements."""

    def __init__(self, parts: ZipParts, pages: Pages) -> None:
        self.out = TextBuilder()
        self._styles = styles(parts.xml("word/styles.xml")) if "word/styles.xml" in parts else {}
        numbering = "word/numbering.xml"
        self._lists = WordLists.of(parts.xml(numbering)) if numbering in parts else WordLists()
        self._notes = {kind: _notes(parts, kind) for kind in ("footnote", "endnote")}
        self._pages = pages
        self._cells: list[int] = []  # of the current row, for each table around
        self._in_list = False
        self._raised = False
        self.out.page(pages.number)

    def open(self, element: Any) -> None:
        tag = element.tag
        self._pages.shows(tag)
        if tag in (f"{W}t", _FORMULA_TEXT):
            self._text(element)
        elif tag == f"{W}p":
            self._paragraph(element)
        elif tag in _SIGNS:
            self.out.exact(_SIGNS[tag])
        elif tag == f"{W}br":
            self._break(element.get(f"{W}type", ""))
        elif tag == f"{W}lastRenderedPageBreak":
            self._pages.marked()
            self.out.page(self._pages.number)
        elif tag == f"{W}sym":
            self._symbol(element.get(f"{W}char", ""))
        elif tag in (f"{W}footnoteReference", f"{W}endnoteReference"):
            note = self._notes[tag[len(W) : -len("Reference")]].get(element.get(f"{W}id", ""))
            self.out.exact(f" [note: {note}]" if note else "")
        elif tag == f"{W}tbl":
            self.out.paragraph()
            self._cells.append(0)
        elif tag == f"{W}tr":
            self.out.end_line()
            self._cells[-1:] = [0]
        elif tag == f"{W}tc":
            if self._cells and self._cells[-1]:
                self.out.exact(" |")
            self._cells[-1:] = [1]

    def close(self, element: Any) -> None:
        if element.tag == f"{W}tbl":
            self._cells.pop()
            self.out.paragraph()
        elif element.tag == f"{W}p" and element.find(f"{W}pPr/{W}sectPr") is not None:
            self._pages.section()
            self.out.page(self._pages.number)

    def _text(self, element: Any) -> None:
        raised = value(element.getparent(), "rPr/vertAlign") == "superscript"
        if raised and not self._raised:  # a number may be cut in two
            self.out.raised(element.text or "")
        self._raised = raised
        self.out.exact(element.text or "")

    def _paragraph(self, element: Any) -> None:
        name = value(element, "pPr/pStyle") or ""
        style = self._styles.get(name, ParagraphStyle())
        number = value(element, "pPr/numPr/numId") or style.number
        level = value(element, "pPr/numPr/ilvl") or style.level
        at = None if level is None else whole(level)
        shown = self._lists.next(number, at, name) if number else ""
        outline = value(element, "pPr/outlineLvl")
        heading = style.heading if outline is None else outline != "9"
        if self._cells:
            self.out.flow(" ")
        elif self._in_list and (shown or style.contents) and not heading:
            self.out.end_line()
        else:
            self.out.paragraph()
        self._in_list = bool(shown or style.contents) and not heading
        if element.find(f"{W}pPr/{W}pageBreakBefore") is not None:
            self._pages.by_hand()
        if begins_with_mark(element):
            self._pages.marked()
        if heading:
            self._pages.heading(element)
        self.out.page(self._pages.number)
        words = "".join(t.text or "" for t in element.iterfind(f".//{W}t"))
        if heading and words.strip():
            before = "" if shown == BULLET else shown
            self.out.chapter(" ".join(f"{before} {words}".split()))
        if shown and words.strip():
            self.out.lead(f"{shown} ")

    def _break(self, kind: str) -> None:
        if kind == "page":
            self.out.end_line()
            self._pages.by_hand()
            self.out.page(self._pages.number)
        elif self._cells:
            self.out.flow(" ")
        else:
            self.out.exact("\n")

    def _symbol(self, code: str) -> None:
        try:
            number = int(code, 16)
            self.out.exact(_SYMBOLS.get(number) or chr(number))
        except (ValueError, OverflowError):
            self.out.exact("\ufffd")


def _counted(parts: ZipParts) -> str | None:
    """The number of pages, as counted by the program that saved the document last."""
    if "docProps/app.xml" not in parts:
        return None
    pages: str | None = parts.xml("docProps/app.xml").findtext("{*}Pages")
    return pages


def _notes(parts: ZipParts, kind: str) -> dict[str, str]:
    """Text of every footnote or endnote by its number in the file."""
    part = f"word/{kind}s.xml"
    if part not in parts:
        return {}
    notes = {}
    for note in parts.xml(part).iterfind(f"{W}{kind}"):
        words = " ".join(
            "".join(t.text or "" for t in p.iterfind(f".//{W}t")) for p in note.iterfind(f".//{W}p")
        )
        notes[note.get(f"{W}id", "")] = " ".join(words.split())
    return notes


def _missing(parts: ZipParts, root: Any) -> list[str]:
    """Text of the file that is not part of the running text."""
    missing = []
    edges = [p for p in parts.names if re.fullmatch(r"word/(?:header|footer)\d*\.xml", p)]
    if any(parts.xml(part).find(f".//{W}t") is not None for part in edges):
        missing.append("headers and footers are left out")
    if "word/comments.xml" in parts:
        comments = len(parts.xml("word/comments.xml").findall(f"{W}comment"))
        if comments:
            missing.append(f"{comments} comments in the margin are left out")
    if any(part.startswith(("word/charts/chart", "word/diagrams/data")) for part in parts.names):
        missing.append("charts and diagrams are left out")
    if root.find(f".//{W}altChunk") is not None:
        missing.append("files that were put into it as they are, are left out")
    return missing

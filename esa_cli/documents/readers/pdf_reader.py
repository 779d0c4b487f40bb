"""PDF files, by PDFium: text page by page, chapters from the bookmarks.

The order is that of the file. Words hyphenated at a line's end are joined where the rest of the
document shows how they are written. Values of form fields and typed text boxes follow their page's
text; comments are counted. Tables, columns and headings are not recognised, and pictures are not
read.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from esa_cli.documents.reader_registry import Reader, damage_error, register
from esa_cli.documents.text_builder import (
    ExtractedText,
    Mark,
    first_names,
    label,
    optional_import,
    path_in_hint,
    printable,
)
from esa_cli.errors import DocumentError

_HEAD = 1024
_END = b"%%EOF"
_KIDS = re.compile(rb"/Kids\s{0,9}\[([^\[\]]*)\]")
_COUNT = re.compile(rb"/Count\s{1,9}(\d{1,9})")
_DICTIONARY = 512
"""Bytes before and after /Kids in which the other entries of their node are looked for."""
_CUT = "\ufffe"  # PDFium's sign for a hyphen at a line's end
_CUT_WORD = re.compile(rf"(?:(?<!\w)(\w+))?{_CUT}(\w*)")
_LEADERS = re.compile(r" ?(?:\. ?){6,}")
_BULLETS = {0xF0B7: "•", 0xF0A7: "▪", 0xF0D8: "➢", 0xF0FC: "✓", 0xF0E0: "→"}
_UNKNOWN = re.compile("[\ufffd\ue000-\uf8ff]")
_MOST_UNKNOWN = 0.3
_NAMED = 12  # pages that a message lists one by one
_UNSEEN = 2 | 32  # flags of what is not shown
_PART = re.compile(r"\[\d+\]$")


@register("pdf")
class PdfReader(Reader):
    what = "a PDF"
    suffixes = (".pdf",)
    binary = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(b"%PDF-") or (b"%PDF-" in head[:_HEAD] and b"\0" in head)

    def read(self, data: bytes, name: str) -> ExtractedText:
        pdfium = optional_import("pypdfium2", "pypdfium2", name)
        if b"%PDF-" not in data[:_HEAD]:
            raise damage_error(name, self.what, "it does not begin as one")
        try:
            document = pdfium.PdfDocument(data)
        except pdfium.PdfiumError as error:
            if "password" not in str(error).lower():
                raise damage_error(name, self.what, str(error)) from error
            raise DocumentError(
                f"{label(name)} is protected by a password",
                f"save it without one: qpdf --decrypt --password=... {path_in_hint(name)} open.pdf",
            ) from error
        try:
            text = _PdfText(document, pdfium)
            bookmarks = _bookmarks(document, len(text.pages))
        finally:
            document.close()
        if not any(text.pages):
            raise text.no_text_error(name)
        missing = text.missing()
        if has_more_pages(data):
            missing.append("pages that the file does not count")
        if _END not in data[-_HEAD:]:
            missing.append("the end of the file is missing, and perhaps pages with it")
        return _joined(text.pages, bookmarks, missing)


def has_more_pages(data: bytes) -> bool:
    """Whether a node of the tree of pages has more kids than it counts pages: PDFium believes the
    count. Nodes that are compressed are not seen."""
    for kids in _KIDS.finditer(data):
        before = data[max(0, kids.start() - _DICTIONARY) : kids.start()]
        after = data[kids.end() : kids.end() + _DICTIONARY]
        node = before[before.rfind(b" obj") + 1 :] + after.partition(b"endobj")[0]
        count = _COUNT.search(node)
        if count and b"/Pages" in node and int(count[1]) < kids[1].count(b"R"):
            return True
    return False


class _PdfText:
    """The text of each page; `form`: whether its form could be opened, or it has none."""

    def __init__(self, document: Any, pdfium: Any) -> None:
        self._pdfium = pdfium
        self.pages: list[str] = []
        self._empty: list[int] = []  # pages with pictures alone
        self._broken: list[int] = []
        self._comments = 0
        self._form = True
        try:
            document.init_forms()  # before its pages
        except pdfium.PdfiumError:
            self._form = False
        for number in range(1, len(document) + 1):
            try:
                text = self._page(document[number - 1], number)
            except pdfium.PdfiumError:
                text = ""
                self._broken.append(number)
            self.pages.append(text if text.strip() else "")
        self.pages = tidied(self.pages)

    def _page(self, page: Any, number: int) -> str:
        try:
            text_page = page.get_textpage()
            text: str = text_page.get_text_range()
            text_page.close()
            if not text.strip() and next(iter(page.get_objects(max_depth=1)), None):
                self._empty.append(number)
            return "\n".join([text, *self._typed_lines(page)])
        finally:
            page.close()

    def _typed_lines(self, page: Any) -> list[str]:
        """What fields and text boxes have, in the order of the file; counts comments."""
        raw = self._pdfium.raw
        lines: dict[str, None] = {}
        for number in range(raw.FPDFPage_GetAnnotCount(page.raw)):
            note = raw.FPDFPage_GetAnnot(page.raw, number)
            kind = raw.FPDFAnnot_GetSubtype(note)
            words = _string(raw.FPDFAnnot_GetStringValue, note, b"Contents")
            if raw.FPDFAnnot_GetFlags(note) & _UNSEEN:
                pass
            elif kind == raw.FPDF_ANNOT_WIDGET and page.formenv is not None:
                lines[_field(note, page.formenv.raw, raw)] = None
            elif kind == raw.FPDF_ANNOT_FREETEXT:
                lines[words] = None
            elif kind not in (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP):
                self._comments += bool(words)
            raw.FPDFPage_CloseAnnot(note)
        return [line for line in lines if line]

    def missing(self) -> list[str]:
        """What the text lacks of the document."""
        missing = missing_pages(self.pages, self._empty, self._broken)
        if not self._form:
            missing.append("the fields of its form cannot be read")
        if self._comments:
            missing.append(f"comments in the margin are left out: {self._comments}")
        return missing

    def no_text_error(self, name: str) -> DocumentError:
        count = len(self.pages)
        if self._broken or not count:
            reason = f"{len(self._broken)} of its {count} pages cannot be opened"
            return damage_error(name, PdfReader.what, reason)
        why = "are empty, or PDFium shows nothing"
        if self._empty:
            why = "are pictures, as from a scanner"
        return DocumentError(
            f"{label(name)} has no text: its pages ({count}) {why}",
            f"recognise its characters first: ocrmypdf {path_in_hint(name)} text.pdf",
        )


def _field(note: Any, form: Any, raw: Any) -> str:
    """`name: value` of a form's field; empty where nothing is filled in."""

    def text(what: str) -> str:
        return _string(getattr(raw, f"FPDFAnnot_GetFormField{what}"), form, note)

    kind = raw.FPDFAnnot_GetFormFieldType(form, note)
    value = text("Value")
    if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
        choice = text("ExportValue") if kind == raw.FPDF_FORMFIELD_RADIOBUTTON else ""
        value = (choice or "checked") if raw.FPDFAnnot_IsChecked(form, note) else ""
    elif kind in (raw.FPDF_FORMFIELD_PUSHBUTTON, raw.FPDF_FORMFIELD_SIGNATURE):
        value = ""
    name = text("AlternateName") or _PART.sub("", text("Name").rpartition(".")[2])
    return f"{name}: {value}" if name and value else value


def _string(call: Callable[..., int], *arguments: Any) -> str:
    """Text that PDFium writes into a buffer; a first call returns the length needed."""
    buffer = ctypes.create_string_buffer(call(*arguments, None, 0))
    call(*arguments, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), len(buffer))
    return " ".join(buffer.raw.decode("utf-16-le", "replace").replace("\0", " ").split())


def tidied(pages: Sequence[str]) -> list[str]:
    """Words at line ends put together, bullets legible, rows of dots short."""
    words = Counter(word for page in pages for word in re.findall(r"\w[\w-]*", page))

    def whole(cut: re.Match[str]) -> str:
        before, after = cut[1] or "", cut[2]
        hyphened, joined = f"{before}-{after}", before + after
        if words[hyphened] or words[joined]:
            return hyphened if words[hyphened] >= words[joined] else joined
        return joined if before.isalpha() and after.isalpha() and after.islower() else hyphened

    out = []
    for page in pages:
        page = page.replace("\r\n", "\n").replace("\r", "\n").translate(_BULLETS)
        page = _LEADERS.sub(" ... ", _CUT_WORD.sub(whole, page))
        out.append("\n".join(line.rstrip() for line in printable(page).strip().split("\n")))
    return out


def _bookmarks(document: Any, pages: int) -> dict[int, list[str]]:
    """Titles of the bookmarks by their page, from 0."""
    titles: dict[int, list[str]] = defaultdict(list)
    for bookmark in document.get_toc():
        title = " ".join(printable(bookmark.get_title()).split())
        target = bookmark.get_dest()
        page = None if target is None else target.get_index()
        if title and page is not None and 0 <= page < pages:
            titles[page].append(title)
    return titles


def _joined(
    pages: Sequence[str], bookmarks: Mapping[int, Sequence[str]], missing: Sequence[str]
) -> ExtractedText:
    """The pages, with an empty line between them; a chapter begins at its title, or where its page
    does."""
    marks: list[Mark] = []
    parts: list[str] = []
    start, chapter = 0, None
    for index, page in enumerate(pages):
        chapters: dict[int, str] = {}
        at = 0
        for title in bookmarks.get(index, ()):
            pattern = re.compile(r"\s+".join(map(re.escape, title.split())))
            heading = pattern.search(page, at)
            at = heading.start() if heading else at
            chapters[at] = title
        if page:
            chapter = chapters.pop(0, chapter)
            marks.append(Mark(start, index + 1, chapter))
            for at, chapter in chapters.items():
                marks.append(Mark(start + at, index + 1, chapter))
            parts.append(page + "\n\n")
            start += len(parts[-1])
        elif chapters:
            chapter = [*chapters.values()][-1]
    return ExtractedText("".join(parts)[:-1], tuple(marks), tuple(missing))


def missing_pages(pages: Sequence[str], empty: list[int], broken: list[int]) -> list[str]:
    """What pages lack: of the first list those with pictures alone, of the second those that
    PDFium cannot open."""
    unknown = [
        number
        for number, text in enumerate(pages, 1)
        if len(_UNKNOWN.findall(text)) > _MOST_UNKNOWN * len(text)
    ]
    reasons = (
        (empty, "no text, only pictures (ocrmypdf can recognise their characters)"),
        (broken, "damage and cannot be read"),
        (unknown, "characters of a font that does not say which they are"),
    )
    missing = []
    for numbers, what in reasons:
        if numbers:
            listed = first_names(list(map(str, numbers)), _NAMED)
            missing.append(f"page{f's {listed} have' if numbers[1:] else f' {listed} has'} {what}")
    return missing

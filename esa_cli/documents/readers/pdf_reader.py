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
from contextlib import suppress
from typing import Any

from esa_cli.documents.readers.reader_registry import Reader, damage_error, register
from esa_cli.documents.readers.text_builder import (
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
_CUT = "\ufffe"  # PDFium's sign for a hyphen at a line's end
_CUT_WORD = re.compile(rf"(?:(?<!\w)(\w+))?{_CUT}(\w*)")
_LEADERS = re.compile(r" ?(?:\. ?){6,}")
_BULLETS = {0xF0B7: "•", 0xF0A7: "▪", 0xF0D8: "➢", 0xF0FC: "✓", 0xF0E0: "→"}
_UNKNOWN = re.compile("[\ufffd\ue000-\uf8ff]")
_MOST_UNKNOWN = 0.3
_NAMED = 12  # pages that a message lists one by one
_UNSEEN = 2 | 32  # flags of hidden annotations
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
        try:
            document = pdfium.PdfDocument(data)
        except pdfium.PdfiumError as error:
            if "password" not in str(error).lower():
                raise  # damaged
            raise DocumentError(
                f"{label(name)} is protected by a password",
                f"save it without one: qpdf --decrypt --password=... {path_in_hint(name)} open.pdf",
            ) from error
        text = _PdfText(document, pdfium)
        if not any(text.pages):
            raise text.no_text_error(name)
        missing = text.missing()
        if _END not in data[-_HEAD:]:
            missing.append("the end of the file is missing, and perhaps pages with it")
        return _joined(text.pages, _bookmarks(document), missing)


class _PdfText:
    """The text of each page, and what it lacks."""

    def __init__(self, document: Any, pdfium: Any) -> None:
        self._raw = pdfium.raw
        self._empty: list[int] = []  # pages with pictures alone
        self._broken: list[int] = []
        self._comments = 0
        with suppress(pdfium.PdfiumError):  # its fields are left out
            document.init_forms()  # before its pages
        pages = []
        for number in range(1, len(document) + 1):
            text = ""
            try:
                text = self._page(document[number - 1], number)
            except pdfium.PdfiumError:
                self._broken.append(number)
            pages.append(text if text.strip() else "")
        self.pages = tidied(pages)

    def _page(self, page: Any, number: int) -> str:
        text: str = page.get_textpage().get_text_range()
        if not text.strip() and next(iter(page.get_objects(max_depth=1)), None):
            self._empty.append(number)
        return "\n".join([text, *self._typed_lines(page)])

    def _typed_lines(self, page: Any) -> list[str]:
        """What fields and text boxes have, in the order of the file; counts comments."""
        raw, lines = self._raw, dict[str, None]()
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
        unknown = [
            number
            for number, text in enumerate(self.pages, 1)
            if len(_UNKNOWN.findall(text)) > _MOST_UNKNOWN * len(text)
        ]
        missing = []
        for numbers, what in (
            (self._empty, "no text, only pictures (ocrmypdf can recognise their characters)"),
            (self._broken, "damage and cannot be read"),
            (unknown, "characters of a font that does not say which they are"),
        ):
            listed = first_names(list(map(str, numbers)), _NAMED)
            if numbers:
                pages = f"pages {listed} have" if numbers[1:] else f"page {listed} has"
                missing.append(f"{pages} {what}")
        if self._comments:
            missing.append(f"comments in the margin are left out: {self._comments}")
        return missing

    def no_text_error(self, name: str) -> DocumentError:
        count = len(self.pages)
        if self._broken or not count:
            reason = f"{len(self._broken)} of its {count} pages cannot be opened"
            return damage_error(name, PdfReader.what, reason)
        why = "are pictures, as from a scanner" if self._empty else "are empty"
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


def _bookmarks(document: Any) -> dict[int, list[str]]:
    """Titles of the bookmarks by their page, from 0."""
    titles: dict[int, list[str]] = defaultdict(list)
    for bookmark in document.get_toc():
        title = " ".join(printable(bookmark.get_title()).split())
        target = bookmark.get_dest()
        if title and target is not None:
            titles[target.get_index()].append(title)
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

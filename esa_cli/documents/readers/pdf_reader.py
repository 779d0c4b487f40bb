"""PDF files, by PDFium: text page by page, chapters from the bookmarks.

The order is that of the file. Words hyphenated at a line's end are joined where the rest of the
document shows how they are written. Values of form fields and typed text boxes follow their page's
text; comments are counted. Tables, columns and headings are not recognised, and pictures are not
read. Streams that are packed with Flate alone are unpacked once before PDFium does, pictures and
fonts excepted; what is encrypted or packed otherwise is bounded by the child process.
"""

from __future__ import annotations

import bisect
import ctypes
import re
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from esa_cli.documents.readers.reader_registry import damage_error, register
from esa_cli.documents.reading_process import PART, limit_error, mebibytes, reading_limits
from esa_cli.documents.text_builder import (
    ExtractedText,
    Mark,
    label,
    optional_import,
    path_in_hint,
    printable,
)
from esa_cli.errors import DocumentError

_STREAM = re.compile(rb"(?<!end)stream\r?\n")
_APART = re.compile(rb"/Image\b|/FontFile|/Length1\b|/Type1C|/CIDFontType0C|/OpenType|/ICCBased")
_KIDS = re.compile(rb"/Kids\s{0,9}\[([^\[\]]*)\]")
_COUNT = re.compile(rb"/Count\s{1,9}(\d{1,9})")
_DICTIONARY = 512
"""Bytes before a stream in which its dictionary is looked for."""
_STEP = 1 << 14
_PIECE = 1 << 20


def check_streams(data: bytes, name: str) -> None:
    """Raises DocumentError when a stream has, or unpacks to, more bytes than a part may."""
    most = reading_limits().part
    for found in _STREAM.finditer(data):
        before = data[max(0, found.start() - _DICTIONARY) : found.start()]
        before = before[before.rfind(b" obj") + 1 :]
        if _APART.search(before) or b"/FlateDecode" not in before:
            continue
        if _unpacks_beyond(data, found.end(), most):
            what = f"its stream at byte {found.start():,}"
            raise limit_error(name, what, f"unpack to at most {mebibytes(most)}", PART)


def has_more_pages(data: bytes) -> bool:
    """Whether a node of the tree of pages has more kids than it counts pages: PDFium believes the
    count. Nodes that are packed are not seen."""
    for found in _KIDS.finditer(data):
        before = data[max(0, found.start() - _DICTIONARY) : found.start()]
        after = data[found.end() : found.end() + _DICTIONARY]
        node = before[before.rfind(b" obj") + 1 :] + after.partition(b"endobj")[0]
        count = _COUNT.search(node)
        if count and b"/Pages" in node and int(count[1]) < found[1].count(b"R"):
            return True
    return False


def _unpacks_beyond(data: bytes, at: int, most: int) -> bool:
    """Whether what is packed from byte `at` on has more than `most` bytes."""
    packed, size = zlib.decompressobj(), 0
    piece = data[at : at + _STEP]
    try:
        while piece and not packed.eof:
            size += len(packed.decompress(piece, _PIECE))
            if size > most:
                return True
            at += len(piece) - len(packed.unconsumed_tail)
            piece = data[at : at + _STEP]
    except zlib.error:
        pass  # encrypted or damaged, which PDFium says
    return False


_UNSEEN = 2 | 32  # flags of what is not shown
_PART = re.compile(r"\[\d+\]$")


def typed_lines(page: Any, raw: Any) -> tuple[list[str], int]:
    """The lines of one page, in the order of the file, and how many comments it has.

    Args:
        page: of a document whose forms were opened before. raw: PDFium's own functions.
    """
    lines: dict[str, None] = {}
    comments = 0
    for number in range(raw.FPDFPage_GetAnnotCount(page.raw)):
        one = raw.FPDFPage_GetAnnot(page.raw, number)
        kind = raw.FPDFAnnot_GetSubtype(one)
        words = _text(lambda *room, one=one: raw.FPDFAnnot_GetStringValue(one, b"Contents", *room))
        if raw.FPDFAnnot_GetFlags(one) & _UNSEEN:
            pass
        elif kind == raw.FPDF_ANNOT_WIDGET and page.formenv is not None:
            lines[_field(one, page.formenv.raw, raw)] = None
        elif kind == raw.FPDF_ANNOT_FREETEXT:
            lines[words] = None
        elif kind not in (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP):
            comments += bool(words)
        raw.FPDFPage_CloseAnnot(one)
    return [line for line in lines if line], comments


def _field(one: Any, form: Any, raw: Any) -> str:
    """`name: value`; empty where nothing is filled in."""

    def text(what: str) -> str:
        return _text(lambda *room: getattr(raw, f"FPDFAnnot_GetFormField{what}")(form, one, *room))

    kind = raw.FPDFAnnot_GetFormFieldType(form, one)
    value = text("Value")
    if kind in (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON):
        choice = text("ExportValue") if kind == raw.FPDF_FORMFIELD_RADIOBUTTON else ""
        value = (choice or "checked") if raw.FPDFAnnot_IsChecked(form, one) else ""
    elif kind in (raw.FPDF_FORMFIELD_PUSHBUTTON, raw.FPDF_FORMFIELD_SIGNATURE):
        value = ""
    name = text("AlternateName") or _PART.sub("", text("Name").rpartition(".")[2])
    return f"{name}: {value}" if name and value else value


def _text(ask: Callable[..., int]) -> str:
    """Text that PDFium writes into a buffer; a first call returns the length needed."""
    buffer = ctypes.create_string_buffer(ask(None, 0))
    ask(ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), len(buffer))
    return " ".join(buffer.raw.decode("utf-16-le", "replace").replace("\0", " ").split())


_HEAD = 1024
_END = b"%%EOF"
_CUT = "\ufffe"  # PDFium's sign for a hyphen at a line's end
_CUT_WORD = re.compile(rf"(?:(?<!\w)(\w+))?{_CUT}(\w*)")
_LEADERS = re.compile(r" ?(?:\. ?){6,}")
_BULLETS = {0xF0B7: "•", 0xF0A7: "▪", 0xF0D8: "➢", 0xF0FC: "✓", 0xF0E0: "→"}
_UNKNOWN = re.compile("[\ufffd\ue000-\uf8ff]")
_MOST_UNKNOWN = 0.3
_NAMED = 12  # pages that a message lists one by one


@register("pdf")
class PdfReader:
    """PDF files with text in them."""

    what: ClassVar[str] = "a PDF"
    suffixes: ClassVar[tuple[str, ...]] = (".pdf",)
    binary: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        return head.startswith(b"%PDF-") or (b"%PDF-" in head[:_HEAD] and b"\0" in head)

    def read(self, data: bytes, name: str) -> ExtractedText:
        pdfium = optional_import("pypdfium2", "pypdfium2", name)
        if b"%PDF-" not in data[:_HEAD]:
            raise damage_error(name, self.what, "it does not begin as one")
        check_streams(data, name)
        try:
            document = pdfium.PdfDocument(data)
        except pdfium.PdfiumError as error:
            raise _unopened(error, name) from error
        try:
            form = _form(document, pdfium)
            pages, empty, broken, comments = _pages(document, pdfium)
            bookmarks = _bookmarks(document, len(pages))
        finally:
            document.close()
        if not any(pages):
            raise _no_text(name, len(pages), len(broken), pictures=bool(empty))
        missing = _missing(pages, empty, broken)
        if not form:
            missing.append("the fields of its form cannot be read")
        if comments:
            missing.append(f"comments in the margin are left out: {comments}")
        if has_more_pages(data):
            missing.append("pages that the file does not count")
        if _END not in data[-_HEAD:]:
            missing.append("the end of the file is missing, and perhaps pages with it")
        return _extracted(pages, bookmarks, missing)


def _form(document: Any, pdfium: Any) -> bool:
    """Opens its form before its pages; whether that was possible, or there is none."""
    try:
        document.init_forms()
    except pdfium.PdfiumError:
        return False
    return True


def _unopened(error: Exception, name: str) -> DocumentError:
    if "password" in str(error).lower():
        return DocumentError(
            f"{label(name)} is protected by a password",
            f"save it without one: qpdf --decrypt --password=... {path_in_hint(name)} open.pdf",
        )
    return damage_error(name, PdfReader.what, str(error))


def _no_text(name: str, pages: int, broken: int, *, pictures: bool) -> DocumentError:
    if broken or not pages:
        return damage_error(name, PdfReader.what, f"{broken} of its {pages} pages cannot be opened")
    why = "are pictures, as from a scanner" if pictures else "are empty, or PDFium shows nothing"
    return DocumentError(
        f"{label(name)} has no text: its pages ({pages}) {why}",
        f"recognise its characters first: ocrmypdf {path_in_hint(name)} text.pdf",
    )


def _pages(document: Any, pdfium: Any) -> tuple[list[str], list[int], list[int], int]:
    """The text of every page; numbers of pages with pictures alone, and of those that broke; and
    how many comments there are."""
    pages: list[str] = []
    empty: list[int] = []
    broken: list[int] = []
    comments = 0
    for number in range(1, len(document) + 1):
        text = ""
        try:
            page = document[number - 1]
            try:
                text_page = page.get_textpage()
                text = text_page.get_text_range()
                text_page.close()
                if not text.strip() and next(iter(page.get_objects(max_depth=1)), None):
                    empty.append(number)
                lines, more = typed_lines(page, pdfium.raw)
                text, comments = "\n".join([text, *lines]), comments + more
            finally:
                page.close()
        except pdfium.PdfiumError:
            broken.append(number)
        pages.append(text if text.strip() else "")
    return _tidied(pages), empty, broken, comments


def _tidied(pages: list[str]) -> list[str]:
    """Words at line ends put together, bullets legible, rows of dots short."""
    words = Counter(word for page in pages for word in re.findall(r"\w[\w-]*", page))

    def whole(found: re.Match[str]) -> str:
        before, after = found[1] or "", found[2]
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


def _bookmarks(document: Any, pages: int) -> list[tuple[int, str]]:
    """Page, from 0, and title of every bookmark, in the order of the pages."""
    found = []
    for bookmark in document.get_toc():
        title = " ".join(printable(bookmark.get_title()).split())
        target = bookmark.get_dest()
        page = None if target is None else target.get_index()
        if title and page is not None and 0 <= page < pages:
            found.append((page, title))
    return sorted(found, key=lambda item: item[0])


def _extracted(
    pages: list[str], bookmarks: list[tuple[int, str]], missing: list[str]
) -> ExtractedText:
    marks: list[Mark] = []
    parts: list[str] = []
    start, chapter = 0, None
    for index, page in enumerate(pages):
        within: dict[int, str] = {}
        at = 0
        for _, title in bookmarks[_from(bookmarks, index) : _from(bookmarks, index + 1)]:
            at = _heading(page, title, at)
            within[at] = title
        if page:
            chapter = within.pop(0, chapter)
            marks.append(Mark(start, index + 1, chapter))
            for at, chapter in within.items():
                marks.append(Mark(start + at, index + 1, chapter))
            parts.append(page + "\n\n")
            start += len(parts[-1])
        elif within:
            chapter = [*within.values()][-1]
    return ExtractedText("".join(parts)[:-1], tuple(marks), tuple(missing))


def _from(bookmarks: list[tuple[int, str]], page: int) -> int:
    return bisect.bisect_left(bookmarks, page, key=lambda item: item[0])


def _heading(page: str, title: str, after: int) -> int:
    """The position of a bookmark's title on its page; `after` when it is not there."""
    found = re.compile(r"\s+".join(map(re.escape, title.split()))).search(page, after)
    return found.start() if found else after


def _missing(pages: list[str], empty: list[int], broken: list[int]) -> list[str]:
    unknown = [
        number
        for number, text in enumerate(pages, 1)
        if len(_UNKNOWN.findall(text)) > _MOST_UNKNOWN * len(text)
    ]
    said = (
        (empty, "no text, only pictures (ocrmypdf can recognise their characters)"),
        (broken, "damage and cannot be read"),
        (unknown, "characters of a font that does not say which they are"),
    )
    return [f"{_numbers(some)} {what}" for some, what in said if some]


def _numbers(pages: list[int]) -> str:
    """`page 3 has`, `pages 3, 5 and 9 have`."""
    if len(pages) == 1:
        return f"page {pages[0]} has"
    if len(pages) > _NAMED:
        return f"{len(pages)} pages ({pages[0]} to {pages[-1]}) have"
    return f"pages {', '.join(map(str, pages[:-1]))} and {pages[-1]} have"

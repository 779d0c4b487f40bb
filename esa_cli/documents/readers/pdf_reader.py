"""Reads the text of PDF files page by page with PDFium; bookmarks become chapters.

Text keeps the order in which the PDF stores it. Words hyphenated at a line's end are joined if the
rest of the document shows how they are spelled. The values of a page's form fields follow its text.
Pages without text are read by OCR. Columns, headings and comments are not recognised."""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from esa_cli.documents.readers import page_ocr, text_builder
from esa_cli.documents.readers.pdf_tables import extract_page_text
from esa_cli.documents.readers.reading_process import SECONDS
from esa_cli.documents.readers.text_builder import ExtractedText, Mark, label_document
from esa_cli.errors import DocumentError

_CUT = "\ufffe"  # PDFium's sign for a hyphen at a line's end
_CUT_WORD = re.compile(rf"(?:(?<!\w)(\w+))?{_CUT}(\w*)")
_LEADERS = re.compile(r" ?(?:\. ?){6,}")
_BULLETS = {0xF0B7: "•", 0xF0A7: "▪", 0xF0D8: "➢", 0xF0FC: "✓", 0xF0E0: "→"}
_UNKNOWN = re.compile("[\ufffd\ue000-\uf8ff]")
_MAX_UNKNOWN = 0.3
_NO_TITLE = re.compile(r"(?i)^(?:microsoft|untitled|powerpoint|slide \d)|\.\w{2,4}$")
"""The title in the metadata of a PDF that a program has made up, as titles of one word may be."""
_PAGE_NUMBER = re.compile(
    r"(?i)(?<!\w)(?:page|pg|p|seite|blatt|p[aá]g(?:ina)?|sida|side|strona|strana|第)\W{0,2}#|^\W{0,3}#\W{0,3}$"
)
"""Matches a line that says that # is the page's number."""
_NUMBERED_HEADING = re.compile(
    r"(?i:chapter|kapitel|chapitre|cap[ií]tulo|appendix|anhang) \w+\W+\w|\d+(?:\.\d+)+\.? [^\W\d_]"
)
_MAX_FRONT_MATTER = 40  # pages before page 1
_MAX_LISTED = 12  # pages that a message lists
_MAX_HEAD = 3  # lines of a running head or foot


def read_pdf(data: bytes, name: str) -> ExtractedText:
    pdfium = text_builder.import_package("pypdfium2", "pypdfium2", name)
    path = "FILE" if name == text_builder.STDIN else shlex.quote(name)
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        if "password" not in str(error).lower():
            raise  # the file is damaged
        hint = f"save the PDF without a password: qpdf --decrypt --password=... {path} open.pdf"
        raise DocumentError(f"{label_document(name)} is protected by a password", hint) from error
    has_form = document.get_formtype() != pdfium.raw.FORMTYPE_NONE
    if has_form:
        document.init_forms()  # must come before the first page is loaded
    pages, pictures, damaged = [], list[int](), list[int]()
    recogniser, recognised = page_ocr.PageRecogniser(name), dict[int, page_ocr.RecognisedPage]()
    for index in range(len(document)):
        text = ""
        try:
            page = document[index]
            if has_form:  # makes the values of fields part of the page, which is then loaded anew
                page.flatten()
                page = document[index]
            text = extract_page_text(page, pdfium)
            if not text.strip() and next(iter(page.get_objects(max_depth=1)), None):
                if (read := recogniser.recognise_page(page)) is None:
                    pictures.append(index + 1)
                else:
                    recognised[index + 1], text = read, read.text
        except pdfium.PdfiumError:
            damaged.append(index + 1)
        pages.append(text)
    pages = remove_running_heads(tidy_page_texts(pages))
    if not any(pages):
        if damaged or not pages:
            why = f"pages that cannot be opened: {len(damaged)}"
            raise text_builder.make_damage_error(name, "a PDF", why)
        raise DocumentError(
            f"{label_document(name)} has no text: its pages ({len(pages)}) are pictures or empty",
            f"read the pages by OCR: {page_ocr.INSTALL}, or: ocrmypdf {path} text.pdf",
        )
    signs = enumerate((len(_UNKNOWN.findall(page)) / max(1, len(page)) for page in pages), 1)
    unknown = [number for number, share in signs if share > _MAX_UNKNOWN]
    missing = [page_ocr.describe_recognised_pages(recognised)] if recognised else []
    how = page_ocr.INSTALL if not recogniser.installed else "ocrmypdf"
    how = f"{SECONDS}=3600 gives OCR more time" if recogniser.stopped else f"OCR: {how}"
    for numbers, what in (
        (pictures, f"no text, only pictures ({how})"),
        (damaged, "damage and cannot be read"),
        (unknown, "characters of a font that does not say which they are"),
    ):
        if numbers:
            listed = text_builder.shorten_name_list(list(map(str, numbers)), _MAX_LISTED)
            found = f"pages {listed} have" if numbers[1:] else f"page {listed} has"
            missing.append(f"{found} {what}")
    if b"%%EOF" not in data[-1024:]:
        missing.append("the end of the file is missing, and perhaps pages with it")
    title = " ".join(text_builder.replace_unprintable(document.get_metadata_value("Title")).split())
    known = title if " " in title and not _NO_TITLE.search(title) else None
    return _join_page_texts(pages, _read_bookmark_titles(document), missing, known)


def tidy_page_texts(page_texts: Sequence[str]) -> list[str]:
    """Joins words hyphenated at line ends, replaces bullet codes, and shortens rows of dots."""
    words = Counter(word for page in page_texts for word in re.findall(r"\w[\w-]*", page))

    def join_hyphenated_word(hyphenated: re.Match[str]) -> str:
        before, after = hyphenated[1] or "", hyphenated[2]
        hyphened, joined = f"{before}-{after}", before + after
        if words[hyphened] or words[joined]:
            return hyphened if words[hyphened] >= words[joined] else joined
        return joined if before.isalpha() and after.isalpha() and after.islower() else hyphened

    tidied = []
    for page in page_texts:
        page = page.replace("\r\n", "\n").replace("\r", "\n").translate(_BULLETS)
        page = _LEADERS.sub(" ... ", _CUT_WORD.sub(join_hyphenated_word, page))
        lines = text_builder.replace_unprintable(page).strip().split("\n")
        tidied.append("\n".join(line.rstrip() for line in lines))
    return tidied


def remove_running_heads(page_texts: Sequence[str]) -> list[str]:
    """Removes the first and last lines that a third of the pages share but for the page's number,
    at least four pages, or two if a number is surely the page's; and the heading of a chapter above
    two or more of its pages. The first head and the last foot of a kind stay, unless they are only
    a number: the first may be the heading itself. A browser writes the head after the page's text,
    next to the foot, so a head may have `_MAX_HEAD` lines."""
    out = [page.split("\n") for page in page_texts]
    of_count = re.compile(rf"# ?(?:/|\w+) ?{len(out)}(?!\d)")  # "1 of 3"
    for step in (1, -1):
        edges = [min(0, step)] * len(out)  # moves past lines of a head that stay
        for _ in range(_MAX_HEAD):
            shared = [
                _list_forms_of_head("".join(lines[edge:][:1]), index)
                for index, (lines, edge) in enumerate(zip(out, edges, strict=True))
            ]
            counts = Counter(form for forms in shared for form in forms)
            common = set[tuple[str, int]]()
            for (rest, offset), count in counts.items():
                is_page = _PAGE_NUMBER.search(rest) or of_count.search(rest)
                least = 2 if is_page and -_MAX_FRONT_MATTER <= offset <= 1 else 4
                is_heading = _NUMBERED_HEADING.match(rest.strip("# "))
                if count >= (2 if is_heading else max(least, len(out) / 3)):
                    common.add((rest, offset))
            seen = {form for form in common if form[0] == "#"}
            for index in range(len(out))[::step]:
                forms = shared[index] & common
                if len(out[index]) > 2 and forms & seen:
                    del out[index][edges[index]]
                elif forms:
                    edges[index] += step
                seen |= forms
    return ["\n".join(lines) for lines in out]


def _list_forms_of_head(line: str, page_index: int) -> set[tuple[str, int]]:
    """Returns a line, and forms with # for a possible page number and its lead over the index."""
    forms = {(line, 0)} if line else set()
    for found in re.finditer(r"(?<!\d)\d{1,4}(?!\d)", line):
        rest = f"{line[: found.start()]}#{line[found.end() :]}".strip()
        offset = int(found[0]) - page_index
        if rest == "#" or -_MAX_FRONT_MATTER <= offset <= 1:  # not the numbers of invoices
            forms.add((rest, offset))
    return forms


def _read_bookmark_titles(pdf: Any) -> dict[int, list[tuple[str, int]]]:
    """Returns the titles and levels of a PDF's bookmarks by the index of the page they name."""
    titles: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for bookmark in pdf.get_toc():
        title = " ".join(text_builder.replace_unprintable(bookmark.get_title()).split())
        target = bookmark.get_dest()
        if title and target is not None:
            titles[target.get_index()].append((title, bookmark.level + 1))
    return titles


def _join_page_texts(
    page_texts: Sequence[str], bookmarks: Mapping[int, Sequence[tuple[str, int]]],
    missing: Sequence[str], document_title: str | None,
) -> ExtractedText:  # fmt: skip
    """Joins the texts of PDF pages by empty lines, or within a sentence by a line's end; a chapter
    begins at its title, or its page."""
    marks, parts, start = list[Mark](), list[str](), 0
    chapter: tuple[str | None, int | None] = (None, None)
    for index, page in enumerate(page_texts):
        chapters: dict[int, tuple[str | None, int | None]] = {}
        at = 0
        for title, level in bookmarks.get(index, ()):
            heading = re.compile(r"\s+".join(map(re.escape, title.split()))).search(page, at)
            at = heading.start() if heading else at
            chapters[at] = title, level
        if page:
            chapter = chapters.pop(0, chapter)
            marks.append(Mark(start, index + 1, *chapter, document_title))
            for at, chapter in chapters.items():
                marks.append(Mark(start + at, index + 1, *chapter, document_title))
            runs_on = page[-1].islower() or page[-1] == ","
            runs_on = runs_on and "".join(page_texts[index + 1 : index + 2])[:1].islower()
            parts.append(page + ("\n" if runs_on else "\n\n"))
            start += len(parts[-1])
        elif chapters:
            chapter = [*chapters.values()][-1]
    return ExtractedText("".join(parts)[:-1], tuple(marks), tuple(missing))

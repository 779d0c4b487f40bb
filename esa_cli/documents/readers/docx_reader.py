"""Word documents (docx): paragraphs, tables, notes and numbered headings; headings are chapters.

Read from the XML itself: python-docx has no numbers of headings and lists, no notes, no restarts of
page numbers, and skips text in content controls, text boxes and tracked insertions. Deleted text is
left out; headers, footers and comments are left out and reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from esa_cli.documents.readers.reader_registry import register
from esa_cli.documents.readers.zip_parts import ZipParts, has_part
from esa_cli.documents.text_builder import ExtractedText, TextBuilder, optional_import

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
BULLET = "-"
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
_SHOWN = frozenset(f"{W}{tag}" for tag in ("t", "drawing", "pict", "object", "sym"))
_LEVELS = 9
_DEEPEST = 64  # styles that stand on each other
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"),
    (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip


def value(element: Any, path: str) -> str | None:
    """The `val` of what stands below an element at `path`, as `pPr/numPr/ilvl`."""
    steps = "/".join(W + step for step in path.split("/"))
    found = None if element is None else element.find(steps)
    return None if found is None else found.get(f"{W}val")


@dataclass(frozen=True)
class ParagraphStyle:
    """A paragraph's style: heading level, and list of its number."""

    heading: bool = False
    number: str | None = None  # of its list
    level: str | None = None
    contents: bool = False  # a line of a table of contents


def styles(root: Any) -> dict[str, ParagraphStyle]:
    """Every paragraph style by its id; what it does not say, it has from the one it stands on."""
    elements = {s.get(f"{W}styleId", ""): s for s in root.iterfind(f"{W}style")}
    return {name: _style(name, elements) for name in elements}


def _style(name: str, elements: dict[str, Any]) -> ParagraphStyle:
    outline = number = level = None
    contents = (value(elements[name], "name") or "").lower().startswith("toc ")
    for _ in range(_DEEPEST):
        element = elements.get(name)
        if element is None:
            break
        called = (value(element, "name") or "").lower()
        by_name = re.fullmatch(r"heading ([1-9])", called)
        outline = outline or value(element, "pPr/outlineLvl") or (by_name and by_name[1])
        number = number or value(element, "pPr/numPr/numId")
        level = level or value(element, "pPr/numPr/ilvl")
        name = value(element, "basedOn") or ""
    return ParagraphStyle(outline is not None and outline != "9", number, level, contents)


def whole(text: str | None) -> int:
    """A level, 0 where the file says something else."""
    return min(int(text), _LEVELS - 1) if text and text.isdecimal() else 0


@dataclass(frozen=True)
class _WordLevel:
    start: int
    kind: str
    text: str
    style: str | None = None


@dataclass
class WordLists:
    """The lists of a document, and how far each has counted.

    Word computes the numbers of headings and lists when it shows a document; they are not in its
    text. Here they are counted the same way: each paragraph increases its level's counter and
    resets those of the levels below.
    """

    _of_list: dict[str, str] = field(default_factory=dict)
    _levels: dict[str, dict[int, _WordLevel]] = field(default_factory=dict)
    _counts: dict[str, list[int | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Any) -> WordLists:
        """From numbering.xml."""
        lists = cls()
        for number in root.iterfind(f"{W}num"):
            abstract = value(number, "abstractNumId")
            if abstract is not None:
                lists._of_list[number.get(f"{W}numId", "")] = abstract
        shared: dict[str | None, str] = {}
        links: dict[str, str] = {}
        for element in root.iterfind(f"{W}abstractNum"):
            name = element.get(f"{W}abstractNumId", "")
            levels = {whole(x.get(f"{W}ilvl")): _level(x) for x in element.iterfind(f"{W}lvl")}
            lists._levels[name] = levels
            shared[value(element, "styleLink")] = name
            links[name] = value(element, "numStyleLink") or ""
        for number, name in lists._of_list.items():
            lists._of_list[number] = shared.get(links.get(name), name)
        return lists

    def next(self, number: str, level: int | None, style: str) -> str:
        """The number or bullet before the next paragraph of a list; empty for no list.

        Args:
            level: as the paragraph or its style says; None takes the level that names its style.
        """
        abstract = self._of_list.get(number, "")
        levels = self._levels.get(abstract, {})
        if level is None:
            level = next((n for n, known in levels.items() if known.style == style), 0)
        here = levels.get(level)
        if here is None:
            return ""
        if here.kind == "bullet":
            return BULLET
        counts = self._counts.setdefault(abstract, [None] * _LEVELS)
        now = counts[level]
        counts[level] = here.start if now is None else now + 1
        counts[level + 1 :] = [None] * (_LEVELS - level - 1)

        def shown(found: re.Match[str]) -> str:
            of = int(found[1]) - 1
            other = levels.get(of, _WordLevel(1, "decimal", ""))
            count = counts[of]
            return number_text(other.start if count is None else count, other.kind)

        return "" if here.kind == "none" else re.sub(r"%([1-9])", shown, here.text)


def _level(element: Any) -> _WordLevel:
    start = value(element, "start") or ""
    return _WordLevel(
        int(start) if start.isdecimal() else 1,
        value(element, "numFmt") or "decimal",
        value(element, "lvlText") or "",
        value(element, "pStyle"),
    )


def number_text(count: int, kind: str) -> str:
    """A number as a list of this kind shows it."""
    if kind in ("lowerLetter", "upperLetter") and count > 0:
        letter = chr(ord("a") + (count - 1) % 26) * min(1 + (count - 1) // 26, _LEVELS)
        return letter.upper() if kind == "upperLetter" else letter
    if kind in ("lowerRoman", "upperRoman") and 0 < count < 4000:
        out, left = "", count
        for size, sign in _ROMAN:
            out += sign * (left // size)
            left %= size
        return out.upper() if kind == "upperRoman" else out
    return str(count)


class Pages:
    """The current page while a document is walked through.

    A docx has no pages of its own. Its program may have marked where its pages began; sections say
    where numbering restarts, so that the numbers are those printed on the pages. No mark is where
    a page ends between two rows of a table; the table of contents corrects the count there. An
    author's page breaks are used only if there are as many as `counted` says, the program's own
    count of pages. Otherwise there are no page numbers.
    """

    def __init__(self, root: Any, counted: str | None) -> None:
        self._sections = list(root.iter(f"{W}sectPr"))
        self._section = 0
        self._bare = True  # nothing stands on the page yet
        self._marked = root.find(f".//{W}lastRenderedPageBreak") is not None
        self._contents = _contents(root)
        known = self._marked or counted == str(self._breaks(root) + 1)
        self.number: int | None = (self._first() or 1) if known else None

    def _breaks(self, root: Any) -> int:
        """Page breaks that the author made."""
        by_hand: int = sum(b.get(f"{W}type") == "page" for b in root.iter(f"{W}br"))
        by_hand += sum(1 for _ in root.iter(f"{W}pageBreakBefore"))
        return by_hand + sum(_kind(section) != "continuous" for section in self._sections[1:])

    def shows(self, tag: str) -> None:
        """An element is shown: the next mark is a page break of its own."""
        if tag in _SHOWN:
            self._bare = False

    def marked(self) -> None:
        """A page began here in the program that saved the document."""
        if self._marked and not self._bare:
            self._turn()

    def by_hand(self) -> None:
        """The author's page break."""
        self._turn()

    def heading(self, paragraph: Any) -> None:
        """A heading; the table of contents may give it a later page."""
        if self.number is None:
            return
        for bookmark in paragraph.iter(f"{W}bookmarkStart"):
            listed = self._contents.get(bookmark.get(f"{W}name", ""), 0)
            self.number = max(self.number, listed)

    def section(self) -> None:
        """The end of a section; the next one says how it begins."""
        self._section += 1
        kind = _kind(self._sections[self._section])
        if self.number is None:
            return
        if kind != "continuous":
            self._turn()
        start = self._first()
        if start is not None:
            self.number = start
        elif kind == f"{'even' if self.number % 2 else 'odd'}Page":
            self.number += 1  # an empty page, printed without text

    def _first(self) -> int | None:
        if self._section >= len(self._sections):
            return None
        number = self._sections[self._section].find(f"{W}pgNumType")
        start = None if number is None else number.get(f"{W}start")
        return int(start) if isinstance(start, str) and start.isdecimal() else None

    def _turn(self) -> None:
        if self.number is not None:
            self.number += 1
            self._bare = True


def _contents(root: Any) -> dict[str, int]:
    """Page by the bookmark that an entry of the table of contents leads to."""
    pages = {}
    for link in root.iter(f"{W}hyperlink"):
        anchor = link.get(f"{W}anchor", "")
        words = [text.text or "" for text in link.iter(f"{W}t")]
        if anchor.startswith("_Toc") and words and words[-1].isdecimal():
            pages[anchor] = int(words[-1])
    return pages


def _kind(section: Any) -> str:
    return value(section, "type") or "nextPage"


def begins_with_mark(paragraph: Any) -> bool:
    """True if a page's mark stands before everything the paragraph shows."""
    for element in paragraph.iter():
        if element.tag in _SHOWN:
            return False
        if element.tag == f"{W}lastRenderedPageBreak":
            return True
    return False


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
        writer.write(root, name)
        return writer.out.text_of(name, self.what, _missing(parts, root))


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

    def write(self, root: Any, name: str) -> None:
        """Writes a tree's elements in order."""
        etree = optional_import("lxml.etree", "lxml", name)
        events = etree.iterwalk(root, events=("start", "end"))
        for event, element in events:
            if event == "end":
                self._close(element)
            elif element.tag in _GONE:
                events.skip_subtree()
            else:
                self._open(element)

    def _open(self, element: Any) -> None:
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

    def _close(self, element: Any) -> None:
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

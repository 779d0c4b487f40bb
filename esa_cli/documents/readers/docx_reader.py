"""Word documents (docx): paragraphs, tables, notes and numbered headings; headings are chapters.

Read from the XML itself: python-docx has no numbers of headings and lists, no notes, no restarts of
page numbers, and skips text in content controls, text boxes and tracked insertions. Deleted text is
left out; headers, footers and comments are left out and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from esa_cli.documents.readers.reader_registry import Reader, register
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, optional_import
from esa_cli.documents.readers.zip_parts import ZipParts, has_part

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
BULLET = "-"
_MAIN = "word/document.xml"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_FORMULA_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_NOT_SHOWN = frozenset(
    (_FALLBACK, f"{W}del", f"{W}moveFrom", f"{W}pPr", f"{W}rPr", f"{W}instrText")
)
_SYMBOLS = {0xF0B7: "•", 0xF0A7: "▪", 0xF0E0: "→", 0xF0FC: "✓"}
_SIGNS = {"tab": "\t", "ptab": "\t", "cr": "\n", "noBreakHyphen": "-"}
_SHOWN = frozenset(f"{W}{tag}" for tag in ("t", "drawing", "pict", "object", "sym"))
_LEVELS = 9
_MOST_STYLES = 64  # that are based on each other
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"),
    (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip


def value(element: Any, path: str) -> str | None:
    """The `val` of the element at `path` below another, as `pPr/numPr/ilvl`."""
    below = None if element is None else element.find("/".join(W + s for s in path.split("/")))
    return None if below is None else below.get(f"{W}val")


def _level_number(text: str | None) -> int:
    """A level, 0 where the file says something else."""
    return min(int(text), _LEVELS - 1) if text and text.isdecimal() else 0


class ParagraphStyle(NamedTuple):
    """Whether paragraphs are headings, or lines of a table of contents; the list and the level of
    their number."""

    heading: bool = False
    list: str | None = None
    level: str | None = None
    contents: bool = False


def _styles(root: Any) -> dict[str, ParagraphStyle]:
    """Every paragraph style by its id; what it does not say, it has from the one it is based on."""
    elements = {style.get(f"{W}styleId", ""): style for style in root.iterfind(f"{W}style")}
    styles = {}
    for name, element in elements.items():
        contents = (value(element, "name") or "").lower().startswith("toc ")
        outline = number = level = None
        for _ in range(_MOST_STYLES):
            if element is None:
                break
            heading = re.fullmatch(r"heading ([1-9])", (value(element, "name") or "").lower())
            outline = outline or value(element, "pPr/outlineLvl") or (heading and heading[1])
            number = number or value(element, "pPr/numPr/numId")
            level = level or value(element, "pPr/numPr/ilvl")
            element = elements.get(value(element, "basedOn") or "")
        styles[name] = ParagraphStyle(outline not in (None, "9"), number, level, contents)
    return styles


class _ListLevel(NamedTuple):
    start: int = 1
    kind: str = "decimal"
    text: str = ""
    style: str | None = None


class WordLists:
    """The lists of a document, and how far each has counted.

    Word computes the numbers of headings and lists when it shows a document; they are not in its
    text. Here they are counted the same way: each paragraph increases its level's counter and
    resets those of the levels below.
    """

    def __init__(self, numbering: Any) -> None:
        self._abstract: dict[str, str] = {}
        self._levels: dict[str, dict[int, _ListLevel]] = {}
        self._counts: dict[str, list[int | None]] = {}
        by_style: dict[str | None, str] = {}
        links: dict[str, str] = {}
        for element in _children(numbering, "abstractNum"):
            name = element.get(f"{W}abstractNumId", "")
            self._levels[name] = {
                _level_number(level.get(f"{W}ilvl")): _list_level(level)
                for level in _children(element, "lvl")
            }
            by_style[value(element, "styleLink")] = name
            links[name] = value(element, "numStyleLink") or ""
        for number in _children(numbering, "num"):
            name = value(number, "abstractNumId") or ""
            self._abstract[number.get(f"{W}numId", "")] = by_style.get(links.get(name, ""), name)

    def next(self, number: str, level: int | None, style: str) -> str:
        """The number or bullet before the next paragraph of a list; empty for no list.

        Args:
            level: as the paragraph or its style says; None takes the level that names its style.
        """
        abstract = self._abstract.get(number, "")
        levels = self._levels.get(abstract, {})
        if level is None:
            level = next((n for n, known in levels.items() if known.style == style), 0)
        here = levels.get(level)
        if here is None or here.kind == "bullet":
            return BULLET if here else ""
        counts = self._counts.setdefault(abstract, [None] * _LEVELS)
        last = counts[level]
        counts[level] = here.start if last is None else last + 1
        counts[level + 1 :] = [None] * (_LEVELS - level - 1)

        def shown(match: re.Match[str]) -> str:
            place = int(match[1]) - 1
            other, count = levels.get(place, _ListLevel()), counts[place]
            return number_text(other.start if count is None else count, other.kind)

        return "" if here.kind == "none" else re.sub(r"%([1-9])", shown, here.text)


def _list_level(element: Any) -> _ListLevel:
    start = value(element, "start") or ""
    return _ListLevel(
        int(start) if start.isdecimal() else 1,
        value(element, "numFmt") or "decimal",
        value(element, "lvlText") or "",
        value(element, "pStyle"),
    )


def number_text(count: int, kind: str) -> str:
    """A number as a list of this kind shows it."""
    text = str(count)
    if kind in ("lowerLetter", "upperLetter") and count > 0:
        text = chr(ord("a") + (count - 1) % 26) * min(1 + (count - 1) // 26, _LEVELS)
    elif kind in ("lowerRoman", "upperRoman") and 0 < count < 4000:
        text = ""
        for size, sign in _ROMAN:
            text += sign * (count // size)
            count %= size
    return text.upper() if kind.startswith("upper") else text


class Pages:
    """The current page while a document is walked through; None: unknown.

    A docx has no pages of its own. Its program may have marked where its pages began; sections say
    where numbering restarts, so that the numbers are those printed on the pages. No mark is where
    a page ends between two rows of a table; the table of contents corrects the count there.
    """

    def __init__(self, root: Any) -> None:
        self._contents = {}  # page by the bookmark that an entry of the table of contents leads to
        for link in root.iter(f"{W}hyperlink"):
            words = [text.text or "" for text in link.iter(f"{W}t")]
            if words and words[-1].isdecimal():
                self._contents[link.get(f"{W}anchor", "")] = int(words[-1])
        self._sections = root.iter(f"{W}sectPr")
        self.blank = True  # nothing stands on the page yet: a mark is no break of its own
        marked = root.find(f".//{W}lastRenderedPageBreak") is not None
        first = _first_page(next(self._sections, None))
        self.number: int | None = (first or 1) if marked else None

    def mark(self) -> None:
        """A page began here in the program that saved the document."""
        if not self.blank:
            self.turn()

    def turn(self) -> None:
        """A page ends here, as by the author's page break."""
        if self.number is not None:
            self.number += 1
            self.blank = True

    def heading(self, paragraph: Any) -> None:
        """A heading; the table of contents may give it a later page."""
        for bookmark in paragraph.iter(f"{W}bookmarkStart") if self.number else ():
            name = bookmark.get(f"{W}name", "")
            if name.startswith("_Toc"):
                self.number = max(self.number or 0, self._contents.get(name, 0))

    def end_section(self) -> None:
        """The end of a section; the next one says how it begins."""
        section = next(self._sections, None)
        kind = value(section, "type") or "nextPage"
        if kind != "continuous":
            self.turn()
        if self.number is None:
            return
        start = _first_page(section)
        if start is not None:
            self.number = start
        elif kind == f"{'even' if self.number % 2 else 'odd'}Page":
            self.number += 1  # an empty page, printed without text


def _first_page(section: Any) -> int | None:
    """The page number with which a section begins, where it says so."""
    number = None if section is None else section.find(f"{W}pgNumType")
    start = "" if number is None else number.get(f"{W}start", "")
    return int(start) if start.isdecimal() else None


@register("docx")
class WordReader(Reader):
    what = "a Word document"
    suffixes = (".docx", ".docm", ".dotx")
    binary = True

    def sniff(self, head: bytes) -> bool:
        return has_part(head, _MAIN)

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts = ZipParts(data, name, self)
        root = parts.xml(_MAIN)
        writer = _WordWriter(parts, root)
        writer.write(root, name)
        return writer.out.text_of(name, self.what, _missing(parts, root))


def _children(root: Any, tag: str) -> Any:
    """The elements with a tag directly below a root; of no root none."""
    return () if root is None else root.iterfind(f"{W}{tag}")


class _WordWriter:
    """Writes the text of elements."""

    def __init__(self, parts: ZipParts, root: Any) -> None:
        self.out = TextBuilder()
        styles = parts.xml_if_any("word/styles.xml")
        self._styles = {} if styles is None else _styles(styles)
        self._lists = WordLists(parts.xml_if_any("word/numbering.xml"))
        self._notes = {kind: _notes(parts, kind) for kind in ("footnote", "endnote")}
        self._pages = Pages(root)
        self._cells: list[bool] = []  # whether the row has some, for each table around
        self._in_list = False
        self._raised = False
        actions: dict[str, Callable[[Any], None]] = {
            "t": self._text, "p": self._paragraph, "br": self._break, "sym": self._symbol,
            "lastRenderedPageBreak": lambda element: self._pages.mark(), "tbl": self._table,
            "tr": self._row, "tc": self._cell, "footnoteReference": self._note,
            "endnoteReference": self._note,
        }  # fmt: skip
        self._actions = {f"{W}{tag}": action for tag, action in actions.items()}
        self._actions[_FORMULA_TEXT] = self._text
        self._signs = {f"{W}{tag}": sign for tag, sign in _SIGNS.items()}
        self.out.page = self._pages.number

    def write(self, root: Any, name: str) -> None:
        """Writes a tree's elements in order."""
        etree = optional_import("lxml.etree", "lxml", name)
        events = etree.iterwalk(root, events=("start", "end"))
        for event, element in events:
            if event == "end":
                self._close(element)
            elif element.tag in _NOT_SHOWN:
                events.skip_subtree()
            else:
                self._pages.blank &= element.tag not in _SHOWN
                self.out.exact(self._signs.get(element.tag, ""))
                if action := self._actions.get(element.tag):
                    action(element)
                    self.out.page = self._pages.number

    def _close(self, element: Any) -> None:
        if element.tag == f"{W}tbl":
            self._cells.pop()
            self.out.paragraph()
        elif element.tag == f"{W}p" and element.find(f"{W}pPr/{W}sectPr") is not None:
            self._pages.end_section()
            self.out.page = self._pages.number

    def _table(self, element: Any) -> None:
        self.out.paragraph()
        self._cells.append(False)

    def _row(self, element: Any) -> None:
        self.out.end_line()
        self._cells[-1:] = [False]

    def _cell(self, element: Any) -> None:
        self.out.exact(" |" if self._cells and self._cells[-1] else "")
        self._cells[-1:] = [True]

    def _text(self, element: Any) -> None:
        raised = value(element.getparent(), "rPr/vertAlign") == "superscript"
        if raised and not self._raised:  # a number may be cut in two
            self.out.raised(element.text or "")
        self._raised = raised
        self.out.exact(element.text or "")

    def _note(self, element: Any) -> None:
        notes = self._notes[element.tag[len(W) : -len("Reference")]]
        note = notes.get(element.get(f"{W}id", ""))
        self.out.exact(f" [note: {note}]" if note else "")

    def _paragraph(self, element: Any) -> None:
        name = value(element, "pPr/pStyle") or ""
        style = self._styles.get(name, ParagraphStyle())
        number = value(element, "pPr/numPr/numId") or style.list
        level = value(element, "pPr/numPr/ilvl") or style.level
        at = None if level is None else _level_number(level)
        shown = self._lists.next(number, at, name) if number else ""
        outline = value(element, "pPr/outlineLvl")
        heading = style.heading if outline is None else outline != "9"
        in_list = bool(shown or style.contents) and not heading
        if self._cells:
            self.out.flow(" ")
        elif self._in_list and in_list:
            self.out.end_line()
        else:
            self.out.paragraph()
        self._in_list = in_list
        if element.find(f"{W}pPr/{W}pageBreakBefore") is not None:
            self._pages.turn()
        first = next(element.iter(*_SHOWN, f"{W}lastRenderedPageBreak"), None)
        if first is not None and first.tag not in _SHOWN:  # a mark before all that is shown
            self._pages.mark()
        if heading:
            self._pages.heading(element)
        self.out.page = self._pages.number
        words = "".join(t.text or "" for t in element.iterfind(f".//{W}t"))
        if heading and words.strip():
            before = "" if shown == BULLET else shown
            self.out.chapter = " ".join(f"{before} {words}".split())
        if shown and words.strip():
            self.out.lead(f"{shown} ")

    def _break(self, element: Any) -> None:
        if element.get(f"{W}type") == "page":
            self.out.end_line()
            self._pages.turn()
        elif self._cells:
            self.out.flow(" ")
        else:
            self.out.exact("\n")

    def _symbol(self, element: Any) -> None:
        try:
            number = int(element.get(f"{W}char", ""), 16)
            self.out.exact(_SYMBOLS.get(number) or chr(number))
        except (ValueError, OverflowError):
            self.out.exact("\ufffd")


def _notes(parts: ZipParts, kind: str) -> dict[str, str]:
    """Text of every footnote or endnote by its number in the file."""
    notes = {}
    for note in _children(parts.xml_if_any(f"word/{kind}s.xml"), kind):
        paragraphs = (p.iterfind(f".//{W}t") for p in note.iterfind(f".//{W}p"))
        words = " ".join("".join(text.text or "" for text in texts) for texts in paragraphs)
        notes[note.get(f"{W}id", "")] = " ".join(words.split())
    return notes


def _missing(parts: ZipParts, root: Any) -> list[str]:
    """Text of the file that is not part of the running text."""
    missing = []
    edges = [p for p in parts.names if re.fullmatch(r"word/(?:header|footer)\d*\.xml", p)]
    if any(parts.xml(part).find(f".//{W}t") is not None for part in edges):
        missing.append("headers and footers are left out")
    if count := len([*_children(parts.xml_if_any("word/comments.xml"), "comment")]):
        missing.append(f"{count} comments in the margin are left out")
    if any(part.startswith(("word/charts/chart", "word/diagrams/data")) for part in parts.names):
        missing.append("charts and diagrams are left out")
    if root.find(f".//{W}altChunk") is not None:
        missing.append("files that were put into it as they are, are left out")
    return missing

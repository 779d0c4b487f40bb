"""Word documents (docx): paragraphs, tables, notes and numbered headings; headings are chapters.

Read from the XML itself: python-docx has no numbers of headings and lists, no notes, no restarts of
page numbers, and skips text in content controls, text boxes and tracked insertions. Deleted text is
left out; headers, footers and comments are left out and reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, optional_import
from esa_cli.documents.readers.zip_parts import ZipParts

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_FORMULA_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_NOT_SHOWN = frozenset(
    (_FALLBACK, f"{W}del", f"{W}moveFrom", f"{W}pPr", f"{W}rPr", f"{W}instrText")
)
_SHOWN = frozenset(f"{W}{tag}" for tag in ("t", "drawing", "pict", "object", "sym"))
_SYMBOLS = {0xF0B7: "•", 0xF0A7: "▪", 0xF0E0: "→", 0xF0FC: "✓"}
_SIGNS = {f"{W}tab": "\t", f"{W}ptab": "\t", f"{W}cr": "\n", f"{W}noBreakHyphen": "-"}
_BULLET = "-"
_LEVELS = 9
_MAX_STYLES = 64  # that are based on each other
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"),
    (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip


def read_docx(data: bytes, name: str) -> ExtractedText:
    """Reads the running text of a Word document."""
    parts = ZipParts(data, name)
    root = parts.xml("word/document.xml")
    writer = _WordWriter(parts, root)
    writer.write(root, optional_import("lxml.etree", "lxml", name))
    missing = []
    edges = [part for part in parts.names if re.fullmatch(r"word/(?:header|footer)\d*\.xml", part)]
    if any(parts.xml(part).find(f".//{W}t") is not None for part in edges):
        missing.append("headers and footers are left out")
    if comments := len(_children(parts.xml_if_any("word/comments.xml"), "comment")):
        missing.append(f"{comments} comments in the margin are left out")
    if any(part.startswith(("word/charts/chart", "word/diagrams/data")) for part in parts.names):
        missing.append("charts and diagrams are left out")
    return writer.out.result(missing)


def _children(root: Any, tag: str) -> list[Any]:
    """The elements with a tag directly below a root; of a missing root none."""
    return [] if root is None else root.findall(f"{W}{tag}")


def _value(element: Any, path: str) -> str | None:
    """The `val` of the element at `path` below another, as `pPr/numPr/ilvl`."""
    below = element.find("/".join(W + tag for tag in path.split("/")))
    return None if below is None else below.get(f"{W}val")


def _number(text: str | None, default: int) -> int:
    """A whole number, or the default where the file says something else."""
    return int(text) if text and text.isdecimal() else default


class _ParagraphStyle(NamedTuple):
    """Whether paragraphs are headings, or lines of a table of contents; the id of their list, and
    their level in it."""

    heading: bool = False
    list: str | None = None
    level: str | None = None
    contents: bool = False


def _read_styles(root: Any) -> dict[str, _ParagraphStyle]:
    """Every paragraph style by its id; a style inherits from the one it is based on."""
    elements = {style.get(f"{W}styleId", ""): style for style in _children(root, "style")}
    styles = {}
    for name, element in elements.items():
        contents = (_value(element, "name") or "").lower().startswith("toc ")
        outline = number = level = None
        for _ in range(_MAX_STYLES):
            if element is None:
                break
            heading = re.fullmatch(r"heading ([1-9])", (_value(element, "name") or "").lower())
            outline = outline or _value(element, "pPr/outlineLvl") or (heading and heading[1])
            number = number or _value(element, "pPr/numPr/numId")
            level = level or _value(element, "pPr/numPr/ilvl")
            element = elements.get(_value(element, "basedOn") or "")
        styles[name] = _ParagraphStyle(outline not in (None, "9"), number, level, contents)
    return styles


class _ListLevel(NamedTuple):
    start: int = 1
    kind: str = "decimal"
    text: str = ""
    style: str | None = None


class _WordLists:
    """The lists of a document, and the counters of their levels.

    Word computes the numbers of headings and lists when it shows a document; they are not in its
    text. Here they are counted the same way: each paragraph increases its level's counter and
    resets those of the levels below.
    """

    def __init__(self, numbering: Any) -> None:
        self._levels: dict[str, dict[int, _ListLevel]] = {}
        self._counts: dict[str, list[int | None]] = {}
        self._abstract = {
            number.get(f"{W}numId", ""): _value(number, "abstractNumId") or ""
            for number in _children(numbering, "num")
        }
        for element in _children(numbering, "abstractNum"):
            self._levels[element.get(f"{W}abstractNumId", "")] = {
                _number(level.get(f"{W}ilvl"), 0): _ListLevel(
                    _number(_value(level, "start"), 1),
                    _value(level, "numFmt") or "decimal",
                    _value(level, "lvlText") or "",
                    _value(level, "pStyle"),
                )
                for level in _children(element, "lvl")
            }

    def next_label(self, number: str, level: str | None, style: str) -> str:
        """Returns the number or bullet before the next paragraph of a list; empty for no list.

        Args:
            number: the id of the list. level: None takes the level that names the `style`.
        """
        abstract = self._abstract.get(number, "")
        levels = self._levels.get(abstract, {})
        at = min(_number(level, 0), _LEVELS - 1)
        if level is None:
            at = next((n for n, known in levels.items() if known.style == style), 0)
        here = levels.get(at)
        if here is None or here.kind == "bullet":
            return _BULLET if here else ""
        counts = self._counts.setdefault(abstract, [None] * _LEVELS)
        last = counts[at]
        counts[at] = here.start if last is None else last + 1
        counts[at + 1 :] = [None] * (_LEVELS - at - 1)

        def format_level(match: re.Match[str]) -> str:
            place = int(match[1]) - 1
            other, count = levels.get(place, _ListLevel()), counts[place]
            return _format_number(other.start if count is None else count, other.kind)

        return "" if here.kind == "none" else re.sub(r"%([1-9])", format_level, here.text)


def _format_number(count: int, kind: str) -> str:
    """Formats a number as a list of this kind shows it."""
    text = str(count)
    if kind in ("lowerLetter", "upperLetter") and count > 0:
        text = chr(ord("a") + (count - 1) % 26) * min(1 + (count - 1) // 26, _LEVELS)
    elif kind in ("lowerRoman", "upperRoman") and 0 < count < 4000:
        text = ""
        for size, sign in _ROMAN:
            text += sign * (count // size)
            count %= size
    return text.upper() if kind.startswith("upper") else text


class _WordWriter:
    """Writes the text of elements, and counts pages.

    A docx has no pages of its own. Its program may have marked where its pages began; sections say
    where numbering restarts, so that the numbers are those printed on the pages. Without marks the
    page is None.
    """

    def __init__(self, parts: ZipParts, root: Any) -> None:
        self.out = TextBuilder()
        self._styles = _read_styles(parts.xml_if_any("word/styles.xml"))
        self._lists = _WordLists(parts.xml_if_any("word/numbering.xml"))
        self._notes = {kind: _read_notes(parts, kind) for kind in ("footnote", "endnote")}
        self._tables: list[int] = []  # the number of cells in the row of each open table
        self._in_list = False
        self._raised = False
        self._blank = True  # nothing stands on the page yet, so that a mark is no further break
        self._sections = root.iter(f"{W}sectPr")
        first = _first_page(next(self._sections, None))
        if root.find(f".//{W}lastRenderedPageBreak") is not None:
            self.out.page = first or 1
        actions: dict[str, Callable[[Any], None]] = {
            "t": self._write_text, "p": self._begin_paragraph, "br": self._break,
            "sym": self._write_symbol, "lastRenderedPageBreak": self._mark_page,
            "tbl": self._begin_table, "tr": self._begin_row, "tc": self._begin_cell,
            "footnoteReference": self._write_note, "endnoteReference": self._write_note,
        }  # fmt: skip
        self._actions = {f"{W}{tag}": action for tag, action in actions.items()}
        self._actions[_FORMULA_TEXT] = self._write_text

    def write(self, root: Any, etree: Any) -> None:
        """Writes a tree's elements in order."""
        events = etree.iterwalk(root, events=("start", "end"))
        for event, element in events:
            if event == "start" and element.tag in _NOT_SHOWN:
                events.skip_subtree()
            elif event == "start":
                self._blank &= element.tag not in _SHOWN
                self.out.exact(_SIGNS.get(element.tag, ""))
                if action := self._actions.get(element.tag):
                    action(element)
            elif element.tag == f"{W}tbl":
                self._tables.pop()
                self.out.paragraph()
            elif element.tag == f"{W}p" and element.find(f"{W}pPr/{W}sectPr") is not None:
                self._end_section()

    def _begin_table(self, element: Any) -> None:
        self.out.paragraph()
        self._tables.append(0)

    def _begin_row(self, element: Any) -> None:
        self.out.end_line()
        self._tables[-1:] = [0]

    def _begin_cell(self, element: Any) -> None:
        cells = self._tables[-1] if self._tables else 0
        self.out.exact(" |" if cells else "")
        self._tables[-1:] = [cells + 1]

    def _write_text(self, element: Any) -> None:
        raised = _value(element.getparent(), "rPr/vertAlign") == "superscript"
        if raised and not self._raised:  # a number may be cut in two
            self.out.raised(element.text or "")
        self._raised = raised
        self.out.exact(element.text or "")

    def _write_note(self, element: Any) -> None:
        notes = self._notes[element.tag[len(W) : -len("Reference")]]
        note = notes.get(element.get(f"{W}id", ""))
        self.out.exact(f" [note: {note}]" if note else "")

    def _begin_paragraph(self, element: Any) -> None:
        name = _value(element, "pPr/pStyle") or ""
        style = self._styles.get(name, _ParagraphStyle())
        number = _value(element, "pPr/numPr/numId") or style.list
        level = _value(element, "pPr/numPr/ilvl") or style.level
        label = self._lists.next_label(number, level, name) if number else ""
        outline = _value(element, "pPr/outlineLvl")
        heading = style.heading if outline is None else outline != "9"
        in_list = bool(label or style.contents) and not heading
        if self._tables:
            self.out.flow(" ")
        elif self._in_list and in_list:
            self.out.end_line()
        else:
            self.out.paragraph()
        self._in_list = in_list
        if element.find(f"{W}pPr/{W}pageBreakBefore") is not None:
            self._turn_page()
        first = next(element.iter(*_SHOWN, f"{W}lastRenderedPageBreak"), None)
        if first is not None and first.tag not in _SHOWN:  # the number is on the new page
            self._mark_page(first)
        words = "".join(text.text or "" for text in element.iterfind(f".//{W}t"))
        if heading and words.strip():
            before = "" if label == _BULLET else label
            self.out.chapter = " ".join(f"{before} {words}".split())
        if label and words.strip():
            self.out.lead(f"{label} ")

    def _break(self, element: Any) -> None:
        if element.get(f"{W}type") == "page":
            self.out.end_line()
            self._turn_page()
        elif self._tables:
            self.out.flow(" ")
        else:
            self.out.exact("\n")

    def _write_symbol(self, element: Any) -> None:
        try:
            number = int(element.get(f"{W}char", ""), 16)
            self.out.exact(_SYMBOLS.get(number) or chr(number))
        except (ValueError, OverflowError):
            self.out.exact("\ufffd")

    def _mark_page(self, element: Any) -> None:
        """Turns the page where one began in the program that saved the document."""
        if not self._blank:
            self._turn_page()

    def _turn_page(self) -> None:
        if self.out.page is not None:
            self.out.page += 1
            self._blank = True

    def _end_section(self) -> None:
        """Turns the page as the next section says that it begins."""
        section = next(self._sections, None)
        kind = (None if section is None else _value(section, "type")) or "nextPage"
        if kind != "continuous":
            self._turn_page()
        if self.out.page is None:
            return
        if (first := _first_page(section)) is not None:
            self.out.page = first
        elif kind == f"{'even' if self.out.page % 2 else 'odd'}Page":
            self.out.page += 1  # an empty page, printed without text


def _first_page(section: Any) -> int | None:
    """The page number with which a section begins, where it says so."""
    number = None if section is None else section.find(f"{W}pgNumType")
    start = "" if number is None else number.get(f"{W}start", "")
    return int(start) if start.isdecimal() else None


def _read_notes(parts: ZipParts, kind: str) -> dict[str, str]:
    """Returns the text of every footnote or endnote by its number in the file."""
    notes = {}
    for note in _children(parts.xml_if_any(f"word/{kind}s.xml"), kind):
        paragraphs = (p.iterfind(f".//{W}t") for p in note.iterfind(f".//{W}p"))
        words = " ".join("".join(text.text or "" for text in texts) for texts in paragraphs)
        notes[note.get(f"{W}id", "")] = " ".join(words.split())
    return notes

"""Reads paragraphs, tables and notes of Word documents (docx); numbered headings become chapters.

The elements of Word are renamed to HTML elements, whose text the HTML reader extracts. The library
python-docx is not used: it omits numbers of headings and lists, notes, restarts of page numbers,
and text in content controls, text boxes and tracked insertions. The lines of headers precede the
text, and those of footers follow it. Deleted text is left out; comments are reported as missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from esa_cli.documents.readers.heading_cells import HEAD, mark_heading_cells
from esa_cli.documents.readers.html_reader import parse_html, write_html_text
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, parse_whole_number
from esa_cli.documents.readers.zip_parts import ZipDocument

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_FORMULA_TEXT = "{http://schemas.openxmlformats.org/officeDocument/2006/math}t"
_NOT_SHOWN = (_FALLBACK, f"{W}del", f"{W}moveFrom", f"{W}instrText")
_SHOWN = frozenset(f"{W}{tag}" for tag in ("t", "drawing", "pict", "object", "sym"))
_HTML_TAGS = {f"{W}tbl": "table", f"{W}tr": "tr", f"{W}tc": "td", f"{W}br": "br", f"{W}cr": "br"}
_SYMBOLS = {
    "F0B7": "•", "F0A7": "▪", "F0E0": "→", "F0FC": "✓", "F0FB": "✗", "F0FE": "☑", "F0FD": "☒",
    "F06F": "☐", "F0A8": "☐",
}  # fmt: skip
_SIGNS = {f"{W}tab": " ", f"{W}ptab": " ", f"{W}noBreakHyphen": "-"}
_BULLET = "-"
_LEVELS = 9
_PAGE_WORDS = 4
"""The most words of a line that only numbers the page, such as `Page 3 of 12`."""
_MAX_STYLES = 64  # in a chain of styles that are based on each other
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"),
    (40, "xl"), (10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip


def read_docx(data: bytes, name: str) -> ExtractedText:
    zipped, out, missing = ZipDocument(data, name), TextBuilder(), []
    root, etree = zipped.parse_xml("word/document.xml"), zipped.etree
    etree.strip_elements(root, *_NOT_SHOWN, with_tail=False)
    _join_merged_cells(root)
    _mark_rows_that_a_style_makes_bold(root, zipped.parse_xml_if_any("word/styles.xml"))
    converter = _WordToHtmlConverter(zipped, root)
    out.page = converter.page
    converter.convert_elements_to_html(root)
    mark_heading_cells(root)
    out.write_edge_lines(_iterate_edge_lines(zipped, "header"))
    write_html_text(parse_html(etree.tostring(root, method="html", encoding="unicode"), name), out)
    out.write_edge_lines(_iterate_edge_lines(zipped, "footer"))
    if comments := len(zipped.parse_xml_if_any("word/comments.xml").findall(f"{W}comment")):
        missing.append(f"{comments} comments in the margin are left out")
    if any(part.startswith(("word/charts/chart", "word/diagrams/data")) for part in zipped.names):
        missing.append("charts and diagrams are left out")
    return out.result(missing)


def _is_heading_row(row: Any) -> bool:
    """Returns True if a row is marked as heading, or all its words are bold."""
    words = [run for run in row.iterfind(f"{W}tc/{W}p/{W}r") if run.find(f"{W}t") is not None]
    bold = bool(words) and all(_is_set(run.find(f"{W}rPr/{W}b")) for run in words)
    return bold or row.get("class") == HEAD or _is_set(row.find(f"{W}trPr/{W}tblHeader"))


def _is_set(element: Any) -> bool:
    """Whether an element such as `b`, which may say "0", is there and says yes."""
    return element is not None and element.get(f"{W}val", "1") not in ("0", "false", "off")


def _join_merged_cells(root: Any) -> None:
    """Replaces the empty cells below a cell that spans several rows by the cell's `rowspan`."""
    for table in root.iter(f"{W}tbl"):
        above: dict[int, Any] = {}
        for row in table.iterfind(f"{W}tr"):
            column = 0
            for cell in row.findall(f"{W}tc"):
                merged = cell.find(f"{W}tcPr/{W}vMerge")
                if merged is None:
                    above.pop(column, None)
                elif merged.get(f"{W}val") == "restart":
                    above[column] = cell
                elif column in above:
                    above[column].set("rowspan", str(int(above[column].get("rowspan", "1")) + 1))
                    row.remove(cell)
                column += parse_whole_number(_read_value(cell, "tcPr/gridSpan"), 1)


def _mark_rows_that_a_style_makes_bold(root: Any, styles: Any) -> None:
    """Sets the class of the first row of each table whose style has bold type there."""
    tables = {s.get(f"{W}styleId"): s for s in styles.findall(f"{W}style[@{W}type='table']")}
    for table in root.iter(f"{W}tbl"):
        row, look = table.find(f"{W}tr"), table.find(f"{W}tblPr/{W}tblLook")
        style = tables.get(_read_value(table, "tblPr/tblStyle"))
        if row is None or look is None or not _is_first_row_styled(look):
            continue
        for _ in range(_MAX_STYLES):
            if style is None:
                break
            first = style.find(f"{W}tblStylePr[@{W}type='firstRow']/{W}rPr/{W}b")
            if first is not None:
                if _is_set(first):
                    row.set("class", HEAD)
                break
            style = tables.get(_read_value(style, "basedOn"))


def _is_first_row_styled(look: Any) -> bool:
    """Whether a table uses its style for the first row; older files have a number of bits."""
    if value := look.get(f"{W}firstRow"):
        return value in ("1", "true", "on")
    bits = look.get(f"{W}val", "")
    return re.fullmatch("[0-9A-Fa-f]{1,4}", bits) is not None and bool(int(bits, 16) & 0x20)


def _iterate_edge_lines(zipped: ZipDocument, edge: str) -> Iterator[str]:
    """Yields the lines of each `header` or `footer`, but for those that only number the page."""
    for part in sorted(filter(re.compile(rf"word/{edge}\d*\.xml").fullmatch, zipped.names)):
        root = zipped.parse_xml(part)
        zipped.etree.strip_elements(root, _FALLBACK, f"{W}del", with_tail=False)
        for paragraph in root.iter(f"{W}p"):
            fields = [code.text or "" for code in paragraph.iter(f"{W}instrText")]
            fields += [field.get(f"{W}instr", "") for field in paragraph.iter(f"{W}fldSimple")]
            line = "".join(text.text or "" for text in paragraph.iterfind(f".//{W}t"))
            if len(line.split()) > _PAGE_WORDS or not any("PAGE" in field for field in fields):
                yield line


def _read_value(element: Any, path: str) -> str | None:
    """Returns the `val` attribute of the element at `path`, such as `pPr/numPr/ilvl`."""
    below = element.find("/".join(W + tag for tag in path.split("/")))
    return None if below is None else below.get(f"{W}val")


class _ParagraphStyle(NamedTuple):
    """Says whether a paragraph style of Word is for headings, lists or a table of contents."""

    outline: str | None = None  # the level of headings from "0", or "9"
    list: str | None = None
    level: str | None = None
    contents: bool = False


def _read_paragraph_styles(root: Any) -> dict[str, _ParagraphStyle]:
    """Returns the paragraph styles by id, with what a style inherits from other styles."""
    elements = {style.get(f"{W}styleId", ""): style for style in root.findall(f"{W}style")}
    styles = {}
    for name, element in elements.items():
        contents = (_read_value(element, "name") or "").lower().startswith("toc ")
        outline = number = level = None
        for _ in range(_MAX_STYLES):
            if element is None:
                break
            heading = re.fullmatch(r"heading ([1-9])", (_read_value(element, "name") or "").lower())
            outline = outline or _read_value(element, "pPr/outlineLvl")
            outline = outline or (heading and str(int(heading[1]) - 1))
            number = number or _read_value(element, "pPr/numPr/numId")
            level = level or _read_value(element, "pPr/numPr/ilvl")
            element = elements.get(_read_value(element, "basedOn") or "")
        styles[name] = _ParagraphStyle(outline, number, level, contents)
    return styles


class _WordListLevel(NamedTuple):
    start: int = 1
    kind: str = "decimal"
    text: str = ""
    style: str | None = None


class _WordListNumbering:
    """Counts the numbers of headings and list items, which a docx does not contain, as Word does:
    each paragraph increases its level's counter and resets the counters of deeper levels."""

    def __init__(self, numbering: Any) -> None:
        self._levels: dict[str, dict[int, _WordListLevel]] = {}
        self._counts: dict[str, list[int | None]] = {}
        numbers = {one.get(f"{W}numId", ""): one for one in numbering.findall(f"{W}num")}
        self._abstract = {id: _read_value(one, "abstractNumId") for id, one in numbers.items()}
        for element in numbering.findall(f"{W}abstractNum"):
            self._levels[element.get(f"{W}abstractNumId", "")] = {
                parse_whole_number(level.get(f"{W}ilvl"), 0): _WordListLevel(
                    parse_whole_number(_read_value(level, "start"), 1),
                    _read_value(level, "numFmt") or "decimal",
                    _read_value(level, "lvlText") or "",
                    _read_value(level, "pStyle"),
                )
                for level in element.findall(f"{W}lvl")
            }

    def make_next_list_label(self, list_id: str, level: str | None, style_name: str) -> str:
        """Returns the number or bullet of the next paragraph of the list `list_id` at `level`, or
        at the level that names the paragraph's style if `level` is None."""
        abstract = self._abstract.get(list_id) or ""
        levels = self._levels.get(abstract, {})
        at = min(parse_whole_number(level, 0), _LEVELS - 1)
        if level is None:
            at = next((n for n, known in levels.items() if known.style == style_name), 0)
        here = levels.get(at)
        if here is None or here.kind == "bullet":
            return _BULLET if here else ""
        counts = self._counts.setdefault(abstract, [None] * _LEVELS)
        last = counts[at]
        counts[at] = here.start if last is None else last + 1
        counts[at + 1 :] = [None] * (_LEVELS - at - 1)

        def format_level_number(placeholder: re.Match[str]) -> str:
            place = int(placeholder[1]) - 1
            other, count = levels.get(place, _WordListLevel()), counts[place]
            return _format_list_number(other.start if count is None else count, other.kind)

        return "" if here.kind == "none" else re.sub(r"%([1-9])", format_level_number, here.text)


def _format_list_number(number: int, number_format: str) -> str:
    text = str(number)
    if number_format in ("lowerLetter", "upperLetter") and number > 0:
        text = chr(ord("a") + (number - 1) % 26) * min(1 + (number - 1) // 26, _LEVELS)
    elif number_format in ("lowerRoman", "upperRoman") and 0 < number < 4000:
        text = ""
        for size, sign in _ROMAN:
            text += sign * (number // size)
            number %= size
    return text.upper() if number_format.startswith("upper") else text


class _WordToHtmlConverter:
    """Renames Word elements to HTML elements, and sets page numbers where pages begin, if the
    program that saved the docx has marked them; else the page is None."""

    def __init__(self, zipped: ZipDocument, root: Any) -> None:
        self._styles = _read_paragraph_styles(zipped.parse_xml_if_any("word/styles.xml"))
        self._lists = _WordListNumbering(zipped.parse_xml_if_any("word/numbering.xml"))
        self._notes = {kind: _read_note_texts(zipped, kind) for kind in ("footnote", "endnote")}
        self._blank = True  # whether the page is still empty, so that a mark begins no other page
        self._section_ends = False
        self._sections = iter(list(root.iter(f"{W}sectPr")))
        first = _read_first_page_number(next(self._sections, None))
        marked = root.find(f".//{W}lastRenderedPageBreak") is not None
        self.page: int | None = (first or 1) if marked else None

    def convert_elements_to_html(self, root: Any) -> None:
        for element in list(root.iter("*")):
            tag, before, new = element.tag, self.page, _HTML_TAGS.get(element.tag, "span")
            text = element.text if tag in (f"{W}t", _FORMULA_TEXT) else _SIGNS.get(tag)
            kept = dict[str, str]()
            self._blank &= tag not in _SHOWN
            if tag == f"{W}p":
                new, text = self._convert_word_paragraph(element)
            elif tag == f"{W}lastRenderedPageBreak":
                self._begin_next_page(unless_page_is_empty=True)
            elif tag == f"{W}br" and element.get(f"{W}type") == "page":
                self._begin_next_page()
            elif tag == f"{W}r" and _read_value(element, "rPr/vertAlign") == "superscript":
                last = element.getprevious()  # Word may cut a number in two
                new = "small" if last is not None and last.tag in ("sup", "small") else "sup"
            elif tag in (f"{W}footnoteReference", f"{W}endnoteReference"):
                note = self._notes[tag[len(W) : -len("Reference")]].get(element.get(f"{W}id", ""))
                text = f" [note: {note}]" if note else None
            elif tag == f"{W}tr" and _is_heading_row(element):
                kept["class"] = HEAD
            elif tag == f"{W}tc":
                kept["colspan"] = _read_value(element, "tcPr/gridSpan") or "1"
                kept["rowspan"] = element.get("rowspan", "1")
            elif tag == f"{W}sym":
                text = _SYMBOLS.get(element.get(f"{W}char", ""), "\ufffd")
            element.attrib.clear()
            element.attrib.update(kept)
            element.tag, element.text, element.tail = new, text, None
            if self.page != before:
                element.set("role", "doc-pagebreak")
                element.set("title", str(self.page))

    def _convert_word_paragraph(self, element: Any) -> tuple[str, str | None]:
        """Returns the HTML tag of a Word paragraph, and its list number or bullet, if any."""
        if self._section_ends:
            section = next(self._sections, None)
            if section is None or _read_value(section, "type") != "continuous":
                self._begin_next_page()
            if self.page is not None:
                self.page = _read_first_page_number(section) or self.page
        self._section_ends = element.find(f"{W}pPr/{W}sectPr") is not None
        name = _read_value(element, "pPr/pStyle") or ""
        style = self._styles.get(name, _ParagraphStyle())
        number = _read_value(element, "pPr/numPr/numId") or style.list
        level = _read_value(element, "pPr/numPr/ilvl") or style.level
        label = self._lists.make_next_list_label(number, level, name) if number else ""
        outline = _read_value(element, "pPr/outlineLvl") or style.outline
        if element.find(f"{W}pPr/{W}pageBreakBefore") is not None:
            self._begin_next_page()
        first = next(element.iter(*_SHOWN, f"{W}lastRenderedPageBreak"), None)
        if first is not None and first.tag not in _SHOWN:  # the list number is on the new page
            self._begin_next_page(unless_page_is_empty=True)
        for properties in element.findall(f"{W}pPr"):
            element.remove(properties)
        words = "".join(text.text or "" for text in element.iterfind(f".//{W}t"))
        if outline and outline != "9":
            label = "" if label == _BULLET else label
            tag = f"h{int(outline) + 1}" if outline in tuple("01234") else "h6"
            return tag, f"{label} " if words.strip() else None
        listed = bool(label or style.contents)
        return "div" if listed else "p", f"{label} " if label and words.strip() else None

    def _begin_next_page(self, *, unless_page_is_empty: bool = False) -> None:
        if self.page is not None and not (unless_page_is_empty and self._blank):
            self.page += 1
            self._blank = True


def _read_first_page_number(section: Any) -> int | None:
    """Returns the page number with which a section of a Word document restarts, or None."""
    number = None if section is None else section.find(f"{W}pgNumType")
    return None if number is None else parse_whole_number(number.get(f"{W}start"), None)


def _read_note_texts(zipped: ZipDocument, note_kind: str) -> dict[str, str]:
    """Returns the text of every footnote or endnote (`note_kind`) by the note's id in the file."""
    notes = {}
    for note in zipped.parse_xml_if_any(f"word/{note_kind}s.xml").findall(W + note_kind):
        paragraphs = (p.iterfind(f".//{W}t") for p in note.iterfind(f".//{W}p"))
        words = " ".join("".join(text.text or "" for text in texts) for texts in paragraphs)
        notes[note.get(f"{W}id", "")] = " ".join(words.split())
    return notes

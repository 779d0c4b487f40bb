"""Reads paragraphs, lists, tables and formulas of HTML pages; headings become chapters.

The library selectolax (lexbor) parses HTML and XHTML as browsers do. The text includes everything
that a page shows, even menus, because navigation and content cannot be distinguished reliably. A
picture is replaced by its description. The library inscriptis is not used, because it takes time
quadratic in the length of a paragraph."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from html import escape
from typing import Any

from esa_cli.documents.readers import spanned_cells, text_builder
from esa_cli.documents.readers.plain_text import BYTE_ORDER_MARKS, decode_text, look_up_encoding
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, import_package

_SKIPPED = frozenset(
    ("script", "style", "template", "iframe", "noembed", "noframes", "noscript", "datalist", "head",
     "annotation", "annotation-xml", "rp")
)  # fmt: skip
"""Tags whose contents a browser that runs scripts never shows as text."""
_Attributes = Mapping[str, str | None]
Chapters = Mapping[str, tuple[str, int]]
_UNSEEN_STYLES = frozenset(("display:none", "visibility:hidden", "visibility:collapse"))
_HEADINGS = frozenset(("h1", "h2", "h3", "h4", "h5", "h6"))
_PARAGRAPHS = _HEADINGS | {"p", "pre", "table", "ul", "ol", "dl", "blockquote", "figure", "hr"}
_LINES = _PARAGRAPHS | {
    "address", "article", "aside", "body", "caption", "center", "dd", "details", "dialog", "div",
    "dt", "fieldset", "figcaption", "footer", "form", "header", "legend", "li", "main", "menu",
    "nav", "option", "section", "summary",
}  # fmt: skip
_SPACED = frozenset(("button", "desc", "object", "svg", "text", "textarea", "title"))
"""Tags that are shown apart from the words around them, though on their line."""
_LISTS = ("ol", "ul", "menu")
_MAX_COPIES = 20
"""The most cells, for each of its own, that a table has when spanned cells are copied; a crafted
table would have thousands."""
_ROWS_OF_NAMES = 3
"""The most rows at the top of a table that name its columns."""
_FORMULA_SIGNS = {
    "msup": " ^", "msub": " _", "msubsup": " _^", "munder": " _", "mover": " ^",
    "munderover": " _^", "mfrac": " /",
}  # fmt: skip
"""Element of a formula -> the sign before its first, second and third part."""
_FORMULA_BREAKS = {"mtr": ";", "mlabeledtr": ";", "mtd": ","}
_RELATIONS = frozenset("+=<>≤≥≠≈≡→⇒⇔∈⊆⊂")

_EMPTY = re.compile(
    r"<(?!(?:area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr)[\s/])"
    r"([A-Za-z][\w:.-]*)((?:\s[^<>]*)?)/>"
)
"""An XML tag that closes itself, as HTML has them for these names alone."""
_XML_ENCODING = re.compile(
    rb"""\s*<\?xml\s[^<>]*?\bencoding\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE
)
_CHARSET = re.compile(r"""charset\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
_END_OF_DTD = re.compile(r"\]\s*>")
_HEAD = 1 << 14
"""Bytes in which a page's encoding is looked for. Browsers look at 1,024 first, and read again
when a declaration follows."""


def read_html(data: bytes, name: str) -> ExtractedText:
    """Reads a web page; the page's title is the chapter before the first heading."""
    text, encoding = decode_markup(data, name)
    root, out = parse_html(text, name, xml=name.lower().endswith(".xhtml")), TextBuilder()
    title = root.css_first("head > title")
    out.chapter = _join_printable_words(title.text()) or None if title else None
    write_html_text(root, out)
    return replace(out.result(), encoding=encoding)


def decode_markup(data: bytes, name: str) -> tuple[str, str]:
    """Returns the text of an HTML or XML file and the Python name of its encoding, which the file
    declares or else `decode_text` finds. Raises DocumentError."""
    if not data.startswith(BYTE_ORDER_MARKS):
        for declared in _find_declared_encodings(data[:_HEAD], name):
            charset = re.sub(r"^x-|-[ie]$", "", declared.strip().lower())
            charset = re.sub(r"^(?:windows|dos)-(\d+)$", r"cp\1", charset)
            with suppress(LookupError, ValueError):  # the declared encoding is wrong or unknown
                encoding = look_up_encoding(charset)
                if encoding.startswith(("utf-16", "utf-32")):
                    encoding = "utf-8"  # as the declaration was read as ASCII
                return data.decode(encoding), encoding
    return decode_text(data, name)


def _find_declared_encodings(head: bytes, name: str) -> Iterator[str]:
    """Yields the encodings that an XML declaration and the `meta` elements of a page name. The page
    is parsed, because comments, scripts and words of the page may have the same characters."""
    if found := _XML_ENCODING.match(head):
        yield found[1].decode("ascii")
    if b"charset" not in head.lower():
        return
    for meta in parse_html(head.decode("latin-1"), name).css("meta"):
        attributes = meta.attributes
        if declared := attributes.get("charset"):
            yield declared
        elif (attributes.get("http-equiv") or "").strip().lower() == "content-type":
            yield from _CHARSET.findall(attributes.get("content") or "")[:1]


def parse_html(text: str, name: str, *, xml: bool = False) -> Any:
    """Parses HTML or, with `xml`, XHTML as browsers do, and returns the root node."""
    lexbor = import_package("selectolax.lexbor", "selectolax", name)
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    if xml:
        text = _EMPTY.sub(r"<\1\2></\1>", _replace_xml_sections(text))
    without_events = lexbor.LexborDocumentOptions.WO_EVENTS.value  # quadratic in a list's options
    data = text.encode("utf-8", "replace")
    try:
        return lexbor.LexborHTMLParser(data, options=without_events, scripting=True).root
    except lexbor.SelectolaxError as error:  # lexbor repairs every page, so memory is short
        raise MemoryError from error


def _replace_xml_sections(text: str) -> str:
    """Escapes the CDATA sections of XHTML and removes its DTD, which HTML does not have."""
    before, doctype, after = text.partition("<!DOCTYPE")
    dtd = _END_OF_DTD.search(after)
    if dtd and "[" in after.partition(">")[0] and "<html" not in before:
        text = f"{before}{doctype} html>{after[dtd.end() :]}"
    first, *sections = text.split("<![CDATA[")
    parts = (section.partition("]]>") for section in sections)
    return first + "".join(escape(words) + rest for words, _, rest in parts)


def write_html_text(root: Any, out: TextBuilder, chapters: Chapters | None = None) -> None:
    """Appends the text of a parsed page to `out`. `chapters` maps the id of an element to the title
    and level of the chapter that begins there; if it is None, headings begin chapters."""
    _HtmlTextExtractor(out, chapters).write_node_text(root)


class _HtmlTextExtractor:
    """Extracts the text of HTML elements, with line and paragraph breaks that depend on the tag."""

    def __init__(self, out: TextBuilder, chapters: Chapters | None) -> None:
        self._out, self._chapters = out, chapters
        self._inside: Counter[str] = Counter()  # open elements by tag, which is "h" for headings
        self._cells = 0  # number of cells of the current row so far
        self._names: list[str] = []  # names of the columns of the current table, if it has any
        self._rows_of_names = 0  # number of rows of names that follow
        self._lists: list[int | None] = []  # the next number of each open list; None has bullets

    def write_node_text(self, node: Any) -> None:
        if not node.is_element_node:
            if node.is_text_node:
                self._write_text(node.text_content or "")
            return
        tag, attributes = node.tag.lower(), node.attributes
        if tag in _SKIPPED:
            return
        hidden = tag != "math" and _is_hidden_element(tag, attributes)
        # Hidden formulas are read, too, because the page shows pictures of them.
        for formula in [node] if tag == "math" else node.css("math") if hidden else []:
            self._out.flow(" ".join(_format_mathml(formula).split()))
        if tag == "math" or hidden:
            return
        if tag == "table" and not self._inside["table"]:
            if len(node.css("table")) == 1:
                self._copy_spanned_cells(node)
                self._names, self._rows_of_names = _list_column_names(node)
        elif tag == "tr" and self._names:
            self._write_row_with_names(node)
            return
        self._break_line_around_element(tag)
        self._set_chapter_and_page(node, tag, attributes)
        self._write_prefix_of_element(node, tag, attributes)
        kind = "h" if tag in _HEADINGS else tag
        self._inside[kind] += 1
        for child in node.iter(include_text=True):
            self.write_node_text(child)
        self._inside[kind] -= 1
        if tag == "q":
            self._write_text("”")
        elif tag in _LISTS:
            self._lists.pop()
        elif tag == "table" and not self._inside["table"]:
            self._names = []
        self._break_line_around_element(tag)

    def _write_row_with_names(self, row: Any) -> None:
        """Writes a row as a line `name: value; name: value`; rows of names are not written."""
        names, written, column = self._names, [], 0
        for cell in _list_cells(row):
            text, self._out.page = self._read_cell(cell)
            name = names[column] if column < len(names) else ""
            if text and text != name:
                written.append(f"{name}: {text}" if name else text)
            column += _read_column_span(cell)
        if self._rows_of_names:
            self._rows_of_names -= 1
            return
        self._out.end_line()
        self._out.flow("; ".join(written))

    def _read_cell(self, cell: Any) -> tuple[str, int | None]:
        """Returns a cell's text on one line, and the page on which it ends."""
        inner = TextBuilder()
        inner.page = self._out.page
        _HtmlTextExtractor(inner, self._chapters or {}).write_node_text(cell)
        return " ".join(inner.result().text.split()), inner.page

    def _copy_spanned_cells(self, table: Any) -> None:
        """Inserts the text of each cell that spans several rows into the rows below."""
        if not table.css_first("[rowspan]:not([rowspan='1'])"):
            return
        for section in table.css("thead, tbody, tfoot"):
            rows = section.css("tr")
            cells = [*map(_list_cells, rows)]
            spans = [
                [(_read_column_span(cell), _read_row_span(cell)) for cell in row] for row in cells
            ]
            found = spanned_cells.find_cells_of_rows(spans)
            if sum(map(len, found)) > _MAX_COPIES * sum(map(len, cells)):
                continue
            for number, places in enumerate(found):
                own = iter(cells[number])
                following = next(own, None)
                for row, at in places if cells[number] else ():
                    if row == number:
                        following = next(own, None)
                        continue
                    copy = table.parser.create_node(cells[row][at].tag)
                    copy.attrs["colspan"] = str(_read_column_span(cells[row][at]))
                    text, _ = self._read_cell(cells[row][at])
                    copy.insert_child(text if len(text) <= spanned_cells.MAX_COPY else "")
                    if following is None:
                        rows[number].insert_child(copy)
                    else:
                        following.insert_before(copy)

    def _write_text(self, text: str) -> None:
        self._out.add_exact_text(text) if self._inside["pre"] else self._out.flow(text)

    def _break_line_around_element(self, tag: str) -> None:
        if tag in _SPACED:
            self._out.flow(" ")
        elif tag == "tr":
            self._cells = 0
            self._out.end_line()
        elif tag in _LINES:
            if self._cells:
                self._out.flow(" ")
            elif tag in _PARAGRAPHS and not self._lists:
                self._out.start_paragraph()
            else:
                self._out.end_line()

    def _set_chapter_and_page(self, node: Any, tag: str, attributes: _Attributes) -> None:
        out, words = self._out, _join_printable_words(node.text()) if tag in _HEADINGS else ""
        if self._chapters is not None:
            known = self._chapters.get(attributes.get("id") or "#")
            out.chapter, out.level = known or (out.chapter, out.level)
        elif words and not self._inside["h"]:
            out.chapter, out.level = words, int(tag[1])
        kind = f"{attributes.get('epub:type') or ''} {attributes.get('role') or ''}".split()
        if "pagebreak" in kind or "doc-pagebreak" in kind:
            number = attributes.get("title") or attributes.get("aria-label") or ""
            out.page = text_builder.parse_whole_number(number, out.page)

    def _write_prefix_of_element(self, node: Any, tag: str, attributes: _Attributes) -> None:
        if tag == "br":
            self._out.flow(" ") if self._cells else self._out.break_line()
        elif tag == "sup" and not self._inside["sup"]:
            self._out.append_exponent_sign(node.text())
        elif tag == "img":
            described = _join_printable_words(attributes.get("alt") or "")
            self._out.flow(f" [picture: {described}] " if described else "")
        elif tag == "q":
            self._write_text("“")
        elif tag in _LISTS:
            first = text_builder.parse_whole_number(attributes.get("start"), 1)
            self._lists.append(first if tag == "ol" else None)
        elif tag == "li":
            number = self._lists[-1] if self._lists else None
            self._out.set_prefix_of_next_piece("- " if number is None else f"{number}. ")
            if number is not None:
                self._lists[-1] = number + 1
        elif tag in ("td", "th"):
            self._out.flow(" | " if self._cells else "")
            self._cells += 1


def _join_printable_words(text: str) -> str:
    return " ".join(text_builder.replace_unprintable(text).split())


def _list_column_names(table: Any) -> tuple[list[str], int]:
    """Returns the names of a table's columns, from first rows of heading cells alone, and the
    number of these rows; no names for other tables. A column under `2024` and `Plan` is named
    `2024 Plan`."""
    rows = [*map(_list_cells, table.css("tr")[: _ROWS_OF_NAMES + 1])]
    count = 0
    while count < len(rows) and rows[count] and all(cell.tag == "th" for cell in rows[count]):
        count += 1
    if not count or count == len(rows) or len(rows[0]) < 2:
        return [], 0
    words: list[list[str]] = []  # of each column, from the top
    for row in rows[:count]:
        named = [_join_printable_words(cell.text()).rstrip(" :") for cell in row]
        spread = [n for n, c in zip(named, row, strict=True) for _ in range(_read_column_span(c))]
        words += [[] for _ in spread[len(words) :]]
        for column, name in zip(words, spread, strict=False):
            column += [name] * (name not in column)
    names = [" ".join(filter(None, column)) for column in words]
    return ([], 0) if names.count("") > 1 else (names, count)


def _list_cells(row: Any) -> list[Any]:
    return [cell for cell in row.iter() if cell.tag in ("td", "th")]


def _read_column_span(cell: Any) -> int:
    return spanned_cells.parse_span(cell.attributes.get("colspan"), spanned_cells.MAX_COLUMNS)


def _read_row_span(cell: Any) -> int:
    return spanned_cells.parse_span(cell.attributes.get("rowspan"), spanned_cells.MAX_ROWS)


def _is_hidden_element(tag: str, attributes: _Attributes) -> bool:
    if tag == "dialog" and "open" not in attributes:
        return True
    if (attributes.get("hidden", "until-found") or "").lower() != "until-found":
        return True  # a search in the page shows an element that is hidden until it is found
    if (attributes.get("aria-hidden") or "").strip().lower() == "true":
        return True
    style = "".join((attributes.get("style") or "").lower().split()).split(";")
    return any(part.removesuffix("!important") in _UNSEEN_STYLES for part in style)


def _format_mathml(formula: Any) -> str:
    """Formats a MathML formula as one line of text, for example `x^2` or `√(2)`."""
    if not formula.is_element_node:
        return (formula.text_content or "").strip()
    tag = formula.tag.lower()
    if tag in _SKIPPED:
        return ""
    parts = [(part.tag.lower(), _format_mathml(part)) for part in formula.iter(include_text=True)]
    elements = [part for kind, part in parts if kind[0] != "-"]
    if tag in _FORMULA_SIGNS and len(elements) == len(_FORMULA_SIGNS[tag]):
        return "".join(
            sign.strip() + (part if part.isalnum() or len(part) < 2 else f"({part})")
            for sign, part in zip(_FORMULA_SIGNS[tag], elements, strict=True)
        )
    text = last = ""
    for kind, part in parts:
        if last and part and kind[0] != "-":  # "-" begins the kind of a text node
            words = kind in ("mi", "mtext") and last[-1:].isalpha() and len(last + part) > 2
            text += _FORMULA_BREAKS.get(kind, "") * (part.strip()[:1] not in _RELATIONS)
            text += " " * (words or kind in _FORMULA_BREAKS)
        text += part
        last = part if kind[0] != "-" else last
    if tag == "mo" and text in _RELATIONS:
        return f" {text} "
    if tag == "mfenced":
        attributes = formula.attributes
        return f"{attributes.get('open', '(') or ''}{text}{attributes.get('close', ')') or ''}"
    return f"√({text})" if tag == "msqrt" else text

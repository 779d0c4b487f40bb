"""Reads OpenDocument texts (odt), of which headings become chapters, and spreadsheets (ods).

The elements of OpenDocument are renamed to HTML elements, whose text the HTML reader extracts.
Pages are counted by the page marks of the program that last saved the document. The lines of
headers precede the text, and those of footers follow it. Comments are reported as missing."""

from __future__ import annotations

from typing import Any

from esa_cli.documents.readers.heading_cells import mark_heading_cells
from esa_cli.documents.readers.html_reader import parse_html, write_html_text
from esa_cli.documents.readers.sheet_tables import MergedCells, Rows, copy_merged_cells
from esa_cli.documents.readers.spanned_cells import MAX_COLUMNS, MAX_ROWS
from esa_cli.documents.readers.spreadsheet_reader import write_sheet
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder
from esa_cli.documents.readers.zip_parts import ZipDocument, make_password_error

_MANIFEST = "META-INF/manifest.xml"
_OASIS = "urn:oasis:names:tc:opendocument:xmlns:"
_SPACES = {name: f"{_OASIS}{name}:1.0" for name in ("office", "style", "text", "table")} | {
    "draw": f"{_OASIS}drawing:1.0",
    "svg": f"{_OASIS}svg-compatible:1.0",
    "fo": f"{_OASIS}xsl-fo-compatible:1.0",
}
_PREFIXES = {space: prefix for prefix, space in _SPACES.items()}
_HTML_TAGS = {
    "text:p": "p", "text:list": "ul", "text:list-item": "li", "text:list-header": "div",
    "text:line-break": "br", "table:table": "table", "table:table-header-rows": "thead",
    "table:table-row": "tr", "table:table-cell": "td", "draw:text-box": "div",
}  # fmt: skip
"""Tag -> that of HTML; all others become spans."""
_NOT_SHOWN = (
    "//text:tracked-changes | //text:note-citation | //text:index-title-template | //office:forms"
    " | //table:covered-table-cell | //office:annotation"
)
_LINES = "//text:p[not(.//text:page-number)]"
_HEADER_LINES, _FOOTER_LINES = f"//style:header{_LINES}", f"//style:footer{_LINES}"
_RAISED = "//style:style[starts-with(style:text-properties/@style:text-position, 'super')]"
_TABLE = f"{{{_SPACES['table']}}}"
_COUNTS = ("number-columns-repeated", "number-columns-spanned", "number-rows-spanned")
_DATE = f"{{{_SPACES['office']}}}date-value"
_STYLE_NAME = f"{{{_SPACES['style']}}}name"
_STYLE = "//style:style[@style:family='paragraph']"
_BREAK = "style:paragraph-properties/@fo:break-before"
_NEW_PAGE = f"{_BREAK}[.='page'] | @style:master-page-name[string()]"


def _open_zip(data: bytes, name: str) -> ZipDocument:
    zipped = ZipDocument(data, name)
    if _MANIFEST in zipped and b"encryption-data" in zipped.read_file(_MANIFEST):
        raise make_password_error(name)
    return zipped


def read_ods(data: bytes, name: str) -> ExtractedText:
    """Reads the values of a spreadsheet as `read_workbook` does; sheets are chapters."""
    out = TextBuilder()
    content = _open_zip(data, name).parse_xml("content.xml")
    for table in _find_elements(content, "//office:spreadsheet/table:table"):
        write_sheet(table.get(f"{_TABLE}name", ""), _read_sheet_rows(table), out)
    for what, path in (
        ("comments", "//office:annotation"),
        ("charts and pictures", "//draw:frame"),
    ):
        if count := len(_find_elements(content, path)):
            out.left_out[what] = count
    return out.result()


def _read_sheet_rows(table: Any) -> Rows:
    """Returns the rows of a sheet that have cells. A cell that stands for several is copied."""
    rows, merged, number = Rows(), list[MergedCells](), 1
    for row in _find_elements(table, ".//table:table-row"):
        cells, column = dict[int, str](), 1
        for cell in _find_elements(row, "table:table-cell | table:covered-table-cell"):
            count, columns, below = (int(cell.get(_TABLE + what, "1")) for what in _COUNTS)
            lines = ("".join(p.itertext()) for p in _find_elements(cell, "text:p"))
            if text := cell.get(_DATE, "").replace("T", " ") or " ".join(lines):
                cells |= dict.fromkeys(range(column, column + min(count, MAX_COLUMNS)), text)
                merged.append(MergedCells(column, number, column + columns - 1, number + below - 1))
            column += count
        count = int(row.get(f"{_TABLE}number-rows-repeated", "1"))
        rows |= {number + at: dict(cells) for at in range(min(count, MAX_ROWS)) if cells}
        number += count
    copy_merged_cells(rows, merged)
    return rows


def read_odt(data: bytes, name: str) -> ExtractedText:
    zipped = _open_zip(data, name)
    content, styles = zipped.parse_xml("content.xml"), zipped.parse_xml_if_any("styles.xml")
    [body] = _find_elements(content, "//office:body/office:text")
    out = TextBuilder()
    if comments := len(_find_elements(body, "//office:annotation")):
        out.left_out["comments in the margin"] = comments
    out.page = 1 if _find_elements(body, "//text:soft-page-break") else None
    _rename_elements_to_html(body, [content, styles], out)
    mark_heading_cells(body)
    out.write_edge_lines("".join(p.itertext()) for p in _find_elements(styles, _HEADER_LINES))
    page = zipped.etree.tostring(body, method="html", encoding="unicode")
    write_html_text(parse_html(page, name), out)
    out.write_edge_lines("".join(p.itertext()) for p in _find_elements(styles, _FOOTER_LINES))
    return out.result()


def _rename_elements_to_html(body: Any, roots: list[Any], out: TextBuilder) -> None:
    """Renames OpenDocument elements to HTML elements, and sets page numbers where pages begin."""
    paragraphs = [style for root in reversed(roots) for style in _find_elements(root, _STYLE)]
    styles = {style.get(_STYLE_NAME, ""): style for style in paragraphs}
    raised = {one.get(_STYLE_NAME, "") for root in roots for one in _find_elements(root, _RAISED)}
    for element in _find_elements(body, _NOT_SHOWN):
        _replace_content(element, "")
    for note in _find_elements(body, "//text:note"):
        texts = ("".join(element.itertext()) for element in _find_elements(note, ".//text:p"))
        _replace_content(note, f" [note: {' '.join(' '.join(texts).split())}]")
    page, begun = 1, False
    for element in list(body.iter("*")):
        space, _, local = element.tag.removeprefix("{").partition("}")
        tag = f"{_PREFIXES.get(space, '')}:{local}"
        style = element.get(f"{{{_SPACES['text']}}}style-name", "")
        element.tag = "sup" if style in raised else _HTML_TAGS.get(tag, "span")
        if tag == "table:table-cell":
            for kind, attribute in (("columns", "colspan"), ("rows", "rowspan")):
                name = f"{{{_SPACES['table']}}}number-{kind}-spanned"
                element.set(attribute, element.get(name, "1"))
        if tag == "text:h":
            level = element.get(f"{{{_SPACES['text']}}}outline-level", "1")
            element.tag = f"h{level if level in tuple('123456') else 6}"
        elif tag in ("text:s", "text:tab"):
            element.text = " "
        elif tag in ("svg:title", "svg:desc"):
            _replace_content(element, "")
        elif tag == "draw:frame" and not _find_elements(element, "draw:text-box"):
            embedded = _find_elements(element, "draw:object")
            out.left_out["charts and other embedded objects" if embedded else "pictures"] += 1
            titles = _find_elements(element, "svg:title | svg:desc")
            described = " ".join("".join(title.itertext()) for title in titles)
            _replace_content(element, f" [picture: {described}] " if described.strip() else "")
        breaks = tag in ("text:p", "text:h") and _does_style_begin_page(style, styles)
        if out.page and begun and (breaks or tag == "text:soft-page-break"):
            page += 1
            element.set("role", "doc-pagebreak")
            element.set("title", str(page))
        begun = begun or bool((element.text or "").strip())


def _replace_content(element: Any, text: str) -> None:
    tail = element.tail
    element.clear()
    element.text, element.tail = text, tail


def _does_style_begin_page(style_name: str, styles: dict[str, Any]) -> bool:
    """Returns True if paragraphs of a style, or of the style that it is based on, begin a page."""
    style = styles.get(style_name)
    if style is None:
        return False
    if _find_elements(style, _NEW_PAGE):
        return True
    parent = style.get(f"{{{_SPACES['style']}}}parent-style-name", "")
    return not _find_elements(style, _BREAK) and _does_style_begin_page(parent, styles)


def _find_elements(element: Any, xpath: str) -> Any:
    return element.xpath(xpath, namespaces=_SPACES)

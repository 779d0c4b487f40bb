"""Reads Excel workbooks (xlsx): each sheet is a chapter, its rows are written like CSV rows.

Values are the values stored in the file. Dates have ISO format, percentages their sign; other
number formats are not applied. This module parses the XML, because openpyxl loses rows that are out
of order.
"""

from __future__ import annotations

import posixpath
import re
from datetime import date, datetime, time, timedelta
from typing import Any

from esa_cli.documents.readers.csv_reader import format_table
from esa_cli.documents.readers.text_builder import ExtractedText, TextBuilder, import_optional
from esa_cli.documents.readers.zip_parts import ZipParts

_MAIN = "xl/workbook.xml"
_RELATED = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_OTHER_PARTS = {
    "xl/charts/chart": "charts", "xl/media/": "pictures", "xl/embeddings/": "embedded files",
    "xl/comments": "sheets of comments",
}  # fmt: skip
"""Beginning of a part's name -> the contents of such parts."""
_LITERAL = re.compile(r'"[^"]*"|\\.')
_CONTROL = re.compile(r"_x00[01][0-9A-Fa-f]_")


def read_workbook(data: bytes, name: str) -> ExtractedText:
    """Reads the sheets of a workbook in order."""
    parts, out, missing = ZipParts(data, name), TextBuilder(), []
    workbook = _Workbook(parts, name)
    for title, part in workbook.sheets.items():
        if part in parts:
            workbook.write_sheet(title, part, out)
        else:
            missing.append(f"the sheet {title} is named but not in the file")
    if workbook.uncomputed:
        missing.append(
            f"formulas without a stored value are left out: {workbook.uncomputed} (saving the "
            "file in a spreadsheet program computes them)"
        )
    for begin, what in _OTHER_PARTS.items():
        if count := sum(part.startswith(begin) for part in parts.names):
            out.left_out[what] += count
    return out.result(missing)


class _Workbook:
    """The strings, number formats and dates that cells of all sheets refer to, the file parts of
    the sheets by title, and the number of formulas without a value."""

    def __init__(self, parts: ZipParts, name: str) -> None:
        self._parts = parts
        self._utils = import_optional("openpyxl.utils", "openpyxl", name)
        self._numbers = import_optional("openpyxl.styles.numbers", "openpyxl", name)
        self.uncomputed = 0
        root, links, by_kind = parts.parse_xml(_MAIN), {}, {}
        for link in parts.parse_xml("xl/_rels/workbook.xml.rels").iterfind("{*}Relationship"):
            kind = link.get("Type", "").rpartition("/")[2]
            part = posixpath.normpath(posixpath.join("/xl", link.get("Target", ""))).lstrip("/")
            links[link.get("Id")] = kind, part
            by_kind[kind] = part
        self.sheets: dict[str, str] = {}
        for sheet in root.iterfind("{*}sheets/{*}sheet"):
            kind, part = links.get(sheet.get(_RELATED), ("worksheet", ""))
            hidden = " (hidden)" * (sheet.get("state", "visible") != "visible")
            if kind == "worksheet":
                self.sheets[sheet.get("name", "") + hidden] = part
        properties, dates = root.find("{*}workbookPr"), self._utils.datetime
        from_1904 = properties is not None and properties.get("date1904") in ("1", "true")
        self._epoch = dates.MAC_EPOCH if from_1904 else dates.WINDOWS_EPOCH
        strings = by_kind.get("sharedStrings", "")
        items = parts.iterate_elements(strings, "{*}si") if strings in parts else ()
        self._strings = [_join_string(item).replace("x005F_", "") for item in items]
        formats, styles = dict(self._numbers.BUILTIN_FORMATS), by_kind.get("styles", "")
        self._formats: list[str] = []  # of each style of cells
        if (root := parts.parse_xml_if_any(styles)) is not None:
            for custom in root.iterfind("{*}numFmts/{*}numFmt"):
                formats[int(custom.get("numFmtId", "0"))] = custom.get("formatCode", "")
            numbers = (int(s.get("numFmtId", "0")) for s in root.iterfind("{*}cellXfs/{*}xf"))
            self._formats = [formats.get(number, "General") for number in numbers]

    def write_sheet(self, title: str, part: str, out: TextBuilder) -> None:
        """Writes a sheet's values as lines, without empty rows and columns."""
        rows = self._read_rows(part)
        columns = sorted({column for row in rows for column in row})
        if not columns:
            return
        out.start_paragraph()
        out.chapter = title
        if len(columns) == 1:
            lines = "\n".join(" ".join(row[columns[0]].split()) for row in rows if row)
        else:
            lines = format_table([[row.get(column, "") for column in columns] for row in rows])
        out.exact_text(f"Sheet: {title}\n{lines}".rstrip("\n"))

    def _read_rows(self, part: str) -> list[dict[int, str]]:
        """Returns the text of cells by column, row after row; if a cell occurs twice, the last one
        counts. One of several empty rows remains, as it may separate a title from a table."""
        cells: dict[int, dict[int, str]] = {}
        number = 0
        for element in self._parts.iterate_elements(part, "{*}row"):
            number, column = int(element.get("r") or number + 1), 0
            for cell in element.iterfind("{*}c"):
                letters = (cell.get("r") or "").rstrip("0123456789")
                column = self._utils.column_index_from_string(letters) if letters else column + 1
                if text := self._format_cell(cell):
                    cells.setdefault(number, {})[column] = text
        rows: list[dict[int, str]] = []
        for number in sorted(cells):
            if rows and number - 1 not in cells:
                rows.append({})
            rows.append(cells[number])
        return rows

    def _format_cell(self, cell: Any) -> str:
        """Returns a cell's value as text; the text is empty if the cell has no value."""
        kind, value = cell.get("t", "n"), cell.findtext("{*}v")
        for inline in cell.iterfind("{*}is"):
            value, kind = _join_string(inline), "inline"
        if not value:
            # A string may be empty on purpose.
            self.uncomputed += kind == "n" and cell.find("{*}f") is not None
            return ""
        if kind == "n":
            return self._format_number(cell, value)
        if kind == "b":
            return str(bool(int(value))).upper()
        value = self._strings[int(value)] if kind == "s" else value
        return _CONTROL.sub(" ", value).strip()

    def _format_number(self, cell: Any, text: str) -> str:
        value = float(text) if set(text) & set(".eE") else int(text)
        style = int(cell.get("s", "0"))
        form = self._formats[style] if style < len(self._formats) else "General"
        if self._numbers.is_date_format(form):
            passed = self._numbers.is_timedelta_format(form)
            try:
                converted = self._utils.datetime.from_excel(value, self._epoch, timedelta=passed)
                return _format_date(converted)
            except (OverflowError, ValueError):
                return "#VALUE!"
        share = "%" in _LITERAL.sub("", form)
        value = value * 100 if share else value
        # With the fifteen digits that spreadsheets keep.
        whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
        return (str(int(value)) if whole else f"{value:.15g}") + "%" * share


def _join_string(element: Any) -> str:
    """Returns the words of a string cell, without the marks of their pronunciation."""
    pieces = [*element.iterfind("{*}t"), *element.iterfind("{*}r/{*}t")]
    return "".join(piece.text or "" for piece in pieces)


def _format_date(value: date | datetime | time | timedelta) -> str:
    if isinstance(value, datetime):
        whole = value.time() == time()
        return str(value.date()) if whole else value.isoformat(" ", "seconds")
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return value.isoformat()

"""Excel workbooks (xlsx): every sheet a chapter, its rows as those of CSV.

Values are those stored in the file: formulas are not computed. Dates are ISO's, percentages have
their sign; other number formats are not applied. Charts are left out and counted. Read from the XML
itself, because openpyxl loses rows and cells that are out of order; it converts dates.
"""

from __future__ import annotations

import posixpath
import re
from datetime import date, datetime, time, timedelta
from typing import Any

from esa_cli.documents.readers.csv_reader import as_lines
from esa_cli.documents.readers.reader_registry import Reader, register
from esa_cli.documents.readers.text_builder import (
    ExtractedText,
    TextBuilder,
    label,
    optional_import,
)
from esa_cli.documents.readers.zip_parts import ZipParts, has_part
from esa_cli.errors import DocumentError

_MAIN = "xl/workbook.xml"
_RELATED = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_OTHERS = {
    "xl/charts/chart": "charts", "xl/media/": "pictures", "xl/embeddings/": "embedded files",
    "xl/comments": "sheets of comments",
}  # fmt: skip
"""Beginning of a part's name -> what such parts are."""
_LITERAL = re.compile(r'"[^"]*"|\\.')
_CONTROL = re.compile(r"_x00[01][0-9A-Fa-f]_")


@register("sheets")
class SpreadsheetReader(Reader):
    what = "an Excel workbook"
    suffixes = (".xlsx", ".xlsm", ".xltx", ".xltm")
    binary = True

    def sniff(self, head: bytes) -> bool:
        return has_part(head, _MAIN)

    def read(self, data: bytes, name: str) -> ExtractedText:
        parts, out = ZipParts(data, name, self), TextBuilder()
        workbook, missing = _Workbook(parts, name), []
        for title, part in workbook.sheets.items():
            if part in parts:
                workbook.write(title, part, out)
            else:
                missing.append(f"the sheet {title} is named but not in the file")
        if workbook.formulas:
            missing.append(
                f"formulas without a stored value are left out: {workbook.formulas} (saving the "
                "file in a spreadsheet program computes them)"
            )
        for begin, what in _OTHERS.items():
            if count := sum(part.startswith(begin) for part in parts.names):
                out.left_out[what] += count
        extracted = out.result(missing)
        if not extracted.text:
            never = "; its formulas have never been computed" if workbook.formulas else ""
            raise DocumentError(
                f"{label(name)} is a workbook without a value in its cells{never}",
                "open it in a spreadsheet program, save it, and give that file",
            )
        return extracted


class _Workbook:
    """What the cells of all sheets depend on.

    `sheets`: the parts of sheets with cells, by their title; `formulas`: how many have no value.
    """

    def __init__(self, parts: ZipParts, name: str) -> None:
        self._parts = parts
        self._utils = optional_import("openpyxl.utils", "openpyxl", name)
        self._numbers = optional_import("openpyxl.styles.numbers", "openpyxl", name)
        self.formulas = 0
        root, links, by_kind = parts.xml(_MAIN), {}, {}
        for link in parts.xml("xl/_rels/workbook.xml.rels").iterfind("{*}Relationship"):
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
        self._epoch = dates.CALENDAR_MAC_1904 if from_1904 else dates.CALENDAR_WINDOWS_1900
        strings = by_kind.get("sharedStrings", "")
        items = parts.elements(strings, "{*}si") if strings in parts else ()
        self._strings = [_text(item).replace("x005F_", "") for item in items]
        self._formats = self._number_formats(parts.xml_if_any(by_kind.get("styles", "")))

    def _number_formats(self, root: Any) -> list[str]:
        """The number format of each style of cells."""
        if root is None:
            return []
        formats = dict(self._numbers.BUILTIN_FORMATS)
        for custom in root.iterfind("{*}numFmts/{*}numFmt"):
            formats[int(custom.get("numFmtId", "0"))] = custom.get("formatCode", "")
        styles = root.iterfind("{*}cellXfs/{*}xf")
        return [formats.get(int(style.get("numFmtId", "0")), "General") for style in styles]

    def write(self, title: str, part: str, out: TextBuilder) -> None:
        """A sheet's values as lines, without empty rows and columns."""
        rows = self._rows(part)
        columns = sorted({column for row in rows for column in row})
        if not columns:
            return
        out.paragraph()
        out.chapter = title
        if len(columns) == 1:
            lines = "\n".join(" ".join(row[columns[0]].split()) for row in rows if row)
        else:
            lines = as_lines([[row.get(column, "") for column in columns] for row in rows])
        out.exact(f"Sheet: {title}\n{lines}".rstrip("\n"))

    def _rows(self, part: str) -> list[dict[int, str]]:
        """The text of cells by column, row after row; of a cell that is given twice the last one
        counts. Of empty rows one is kept, which may part a title from a table."""
        cells: dict[int, dict[int, str]] = {}
        number = 0
        for element in self._parts.elements(part, "{*}row"):
            number, column = int(element.get("r") or number + 1), 0
            for cell in element.iterfind("{*}c"):
                letters = (cell.get("r") or "").rstrip("0123456789")
                column = self._utils.column_index_from_string(letters) if letters else column + 1
                if text := self._shown(cell):
                    cells.setdefault(number, {})[column] = text
        rows: list[dict[int, str]] = []
        for number in sorted(cells):
            if rows and number - 1 not in cells:
                rows.append({})
            rows.append(cells[number])
        return rows

    def _shown(self, cell: Any) -> str:
        """A cell's value as text; empty where it has none."""
        kind, value = cell.get("t", "n"), cell.findtext("{*}v")
        for inline in cell.iterfind("{*}is"):
            return _plain(_text(inline))
        if not value:
            # A string may be empty on purpose.
            self.formulas += kind != "str" and cell.find("{*}f") is not None
            return ""
        if kind == "s":
            return _plain(self._strings[int(value)])
        if kind == "b":
            return str(bool(int(value))).upper()
        if kind == "d":
            return _date(self._utils.datetime.from_ISO8601(value))
        return self._number(cell, value) if kind == "n" else _plain(value)

    def _number(self, cell: Any, text: str) -> str:
        value = float(text) if set(text) & set(".eE") else int(text)
        style = int(cell.get("s", "0"))
        form = self._formats[style] if style < len(self._formats) else "General"
        if self._numbers.is_date_format(form):
            passed = self._numbers.is_timedelta_format(form)
            try:
                return _date(self._utils.datetime.from_excel(value, self._epoch, timedelta=passed))
            except (OverflowError, ValueError):
                return "#VALUE!"
        share = "%" in _LITERAL.sub("", form)
        value = value * 100 if share else value
        # With the fifteen digits that spreadsheets keep.
        whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
        return (str(int(value)) if whole else f"{value:.15g}") + "%" * share


def _text(element: Any) -> str:
    """The words of a string, without how they are pronounced."""
    pieces = [*element.iterfind("{*}t"), *element.iterfind("{*}r/{*}t")]
    return "".join(piece.text or "" for piece in pieces)


def _plain(text: str) -> str:
    return _CONTROL.sub(" ", text).strip()


def _date(value: date | datetime | time | timedelta) -> str:
    if isinstance(value, datetime):
        whole = value.time() == time()
        return str(value.date()) if whole else value.isoformat(" ", "seconds")
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return value.isoformat()

"""Reads tables: CSV files and Excel workbooks (xlsx), of which each sheet is a chapter.

Each row of a table becomes a line in which every value has its column's name. Rows above a table
remain as lines of text. Columns are numbered if no heading row names all of them. The delimiter of
a CSV file is the character that splits the first rows into equally many cells.

A formula of a workbook is read as the value stored in the file. Dates have ISO format,
percentages a %, and sums the currency and decimals of the file's format of numbers. openpyxl
does not parse the XML, because it loses rows that are out of order."""

from __future__ import annotations

import csv
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from itertools import accumulate, groupby, islice
from typing import Any, NamedTuple

from esa_cli.documents.readers.heading_cells import is_year
from esa_cli.documents.readers.plain_text import decode_text_with_lf
from esa_cli.documents.readers.sheet_tables import (
    MergedCells,
    Rows,
    copy_merged_cells,
    divide_into_tables,
)
from esa_cli.documents.readers.text_builder import ExtractedText, Mark, TextBuilder, import_package
from esa_cli.documents.readers.zip_parts import ZipDocument

_Rows = Iterable[Sequence[str]]
_DELIMITERS = "\t|;,"
"""Delimiters of cells. If several fit equally well, the first counts, as numbers contain commas."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_SAMPLE = 1 << 16
_ROWS_LOOKED_AT = 100
_LONGEST_NAME = 80
_MAIN = "xl/workbook.xml"
_RELATED = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
_OTHER_PARTS = {
    "xl/charts/chart": "charts", "xl/media/": "pictures", "xl/embeddings/": "embedded files",
    "xl/comments": "sheets of comments",
}  # fmt: skip
"""Beginning of a part's name -> the contents of such parts."""
_LITERAL = re.compile(r'"[^"]*"|\\.')
_CONTROL = re.compile(r"_x00[01][0-9A-Fa-f]_")
_CURRENCY = re.compile(r"\[\$([^\[\]-]*)(?:-[^\[\]]*)?\]")
"""A currency in a format of numbers, as in `[$€-407]`."""
_CONDITION = re.compile(r"\[[^\[\]]*\]")
"""A colour or condition in a format of numbers, as in `[Red]`."""
_FILLING = re.compile(r"[_*\\](.)|\"")
"""Marks of a format of numbers: space as wide as a sign, repeated signs, and quotation marks."""


def read_csv(data: bytes, name: str) -> ExtractedText:
    """Reads a CSV table; a file that is no table is read as plain text."""
    text, encoding = decode_text_with_lf(data, name)
    marks = list[Mark]()
    with suppress(csv.Error):  # no delimiter, an unclosed quotation mark, or a cell without end
        blocks = format_table(_CsvRows(text))
        starts = accumulate((len(block.text) for block in blocks), initial=0)
        marks = [Mark(start, row=block.row) for start, block in zip(starts, blocks, strict=False)]
        text = "".join(block.text for block in blocks) or text
    return ExtractedText(text, tuple(marks), encoding=encoding)


class _CsvRows:
    """The rows of a CSV text, parsed again in each iteration, because lists of all cells would take
    a hundred times the memory of the text. Raises csv.Error: the text is no table."""

    def __init__(self, text: str) -> None:
        self._text, sample = text, text[:_SAMPLE]
        if len(text) > _SAMPLE:
            sample = sample[: sample.rfind("\n") + 1]
        shares = {sign: _compute_share_of_regular_rows(sample, sign) for sign in _DELIMITERS}
        self._delimiter = max(shares, key=lambda sign: shares[sign])
        if not shares[self._delimiter]:
            raise csv.Error("no delimiter fits")

    def __iter__(self) -> Iterator[list[str]]:
        return csv.reader(_iterate_lines(self._text), delimiter=self._delimiter, strict=True)


def _iterate_lines(text: str) -> Iterator[str]:
    return (line[0] for line in _LINE.finditer(text))


def _compute_share_of_regular_rows(csv_sample: str, delimiter: str) -> float:
    """Returns the share of the first rows that have the usual number of cells, from 0 to 1."""
    try:
        rows = list(csv.reader(_iterate_lines(csv_sample), delimiter=delimiter))
    except csv.Error:
        return 0.0
    widths = Counter(len(row) for row in rows if row)
    width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return count / widths.total() if width > 1 else 0.0


class TableRows(NamedTuple):
    """Rows of a table that follow one another, from number `row` on, a line each."""

    row: int
    text: str


def format_table(rows: _Rows, numbers: Sequence[int] | None = None) -> list[TableRows]:
    """Returns a line `name: value; name: value` for each row, without empty cells and rows. Rows
    are numbered by `numbers`, or from 1."""
    widths = Counter(map(_count_cells_to_last_filled, rows))
    del widths[0]
    if not widths:
        return []
    usual_width = max(widths, key=lambda width: widths[width])
    rows_above = _count_rows_above_table(rows, usual_width)
    body = (cells for row in islice(rows, rows_above, None) if any(cells := _collapse_spaces(row)))
    first = list(islice(body, _ROWS_LOOKED_AT))
    named = len(first) > 1 and len(first[0]) >= usual_width and _starts_with_column_names(first)
    lines = _format_table_rows(rows, rows_above, first[0] if named else [])
    return join_rows((numbers[at] if numbers else at + 1, line) for at, line in lines)


def join_rows(lines: Iterable[tuple[int, str]]) -> list[TableRows]:
    """Joins the lines of rows whose numbers follow one another."""
    blocks = list[TableRows]()
    for _, group in groupby(enumerate(lines), key=lambda item: item[1][0] - item[0]):
        rows = [row for _, row in group]
        blocks.append(TableRows(rows[0][0], "".join(line for _, line in rows)))
    return blocks


def _format_table_rows(
    rows: _Rows, rows_above: int, column_names: list[str]
) -> Iterator[tuple[int, str]]:
    """Yields the index and text of the rows above the table, and of its rows with column names."""
    skip_heading = bool(column_names)
    for number, row in enumerate(rows):
        cells = _collapse_spaces(row)
        if not any(cells):
            continue
        if number < rows_above:
            yield number, "; ".join(filter(None, cells)) + "\n"
        elif skip_heading:
            skip_heading = False
        else:
            column_names += [""] * (len(cells) - len(column_names))
            named = ((column_names[i] or f"column {i + 1}", cell) for i, cell in enumerate(cells))
            yield number, "; ".join(f"{name}: {cell}" for name, cell in named if cell) + "\n"


def _collapse_spaces(row: Sequence[str]) -> list[str]:
    return [" ".join(cell.split()) for cell in row]


def _count_cells_to_last_filled(row: Sequence[str]) -> int:
    return next((at for at in range(len(row), 0, -1) if row[at - 1].strip()), 0)


def _count_rows_above_table(rows: _Rows, usual_width: int) -> int:
    """Returns the number of rows above the table, the last of which is a blank line, title or very
    short row before the first row of usual width."""
    rows_above = 0
    for number, row in enumerate(rows, 1):
        if _count_cells_to_last_filled(row) >= usual_width:
            break
        if _count_cells_to_last_filled(row) < 2 or len(row) < usual_width - 1:
            rows_above = number
    return rows_above


def _starts_with_column_names(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: different words, at most one missing, and years only
    if the columns below have other numbers."""
    names = [cell for cell in rows[0] if cell]
    if len(names) < len(rows[0]) - 1 or len(set(names)) < len(names):
        return False  # one column may have no name, as the numbers of rows often have none
    for at, cell in enumerate(rows[0]):
        below = [row[at] for row in rows[1:] if at < len(row) and row[at]]
        years = is_year(cell) and sum(map(is_year, below)) * 2 <= len(below)
        if len(cell) > _LONGEST_NAME or (_is_number(cell) and not years):
            return False
    return True


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".").strip("%€$£ "))
    except ValueError:
        return False
    return True


def read_workbook(data: bytes, name: str) -> ExtractedText:
    zipped, out, missing = ZipDocument(data, name), TextBuilder(), []
    workbook = _ExcelWorkbook(zipped, name)
    for title, part in workbook.sheets.items():
        if part in zipped:
            write_sheet(title, workbook.read_sheet_rows(part), out)
        else:
            missing.append(f"the sheet {title} is named but not in the file")
    if workbook.uncomputed:
        missing.append(
            f"formulas without a stored value are left out: {workbook.uncomputed} (saving the "
            "file in a spreadsheet program computes them)"
        )
    for begin, what in _OTHER_PARTS.items():
        if count := sum(part.startswith(begin) for part in zipped.names):
            out.left_out[what] += count
    return out.result(missing)


class _ExcelWorkbook:
    """The sheets of an Excel workbook by title, with the strings, number formats and dates that
    cells refer to. `uncomputed` counts formulas without a stored value."""

    def __init__(self, zipped: ZipDocument, name: str) -> None:
        self._zipped = zipped
        self._utils = import_package("openpyxl.utils", "openpyxl", name)
        self._numbers = import_package("openpyxl.styles.numbers", "openpyxl", name)
        self.uncomputed = 0
        root, links, by_kind = zipped.parse_xml(_MAIN), {}, {}
        for link in zipped.parse_xml("xl/_rels/workbook.xml.rels").iterfind("{*}Relationship"):
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
        items = zipped.iterate_xml_elements(strings, "{*}si") if strings in zipped else ()
        self._strings = [_extract_string_of_cell(item).replace("x005F_", "") for item in items]
        formats, styles = dict(self._numbers.BUILTIN_FORMATS), by_kind.get("styles", "")
        root = zipped.parse_xml_if_any(styles)
        custom = {
            int(one.get("numFmtId", "0")): one.get("formatCode", "")
            for one in root.iterfind("{*}numFmts/{*}numFmt")
        }
        numbers = [int(s.get("numFmtId", "0")) for s in root.iterfind("{*}cellXfs/{*}xf")]
        formats |= custom
        # By style of cells. The `$` of a format without a code stands for any local currency.
        self._formats = [formats.get(number, "General") for number in numbers]
        self._currencies = [_find_currency(custom.get(number, "")) for number in numbers]

    def read_sheet_rows(self, sheet_path: str) -> Rows:
        """Returns the rows of a sheet that have cells; of a cell that occurs twice, the last
        counts."""
        cells, merged, number = Rows(), list[MergedCells](), 0
        for element in self._zipped.iterate_xml_elements(sheet_path, "{*}row", "{*}mergeCell"):
            if element.get("ref"):
                merged.append(MergedCells(*self._utils.range_boundaries(element.get("ref"))))
                continue
            number, column = int(element.get("r") or number + 1), 0
            for cell in element.iterfind("{*}c"):
                letters = (cell.get("r") or "").rstrip("0123456789")
                column = self._utils.column_index_from_string(letters) if letters else column + 1
                if text := self._format_cell(cell):
                    cells.setdefault(number, {})[column] = text
        copy_merged_cells(cells, merged)
        return cells

    def _format_cell(self, cell: Any) -> str:
        """Returns a cell's value as text; the text is empty if the cell has no value."""
        kind, value = cell.get("t", "n"), cell.findtext("{*}v")
        for inline in cell.iterfind("{*}is"):
            value, kind = _extract_string_of_cell(inline), "inline"
        if not value:
            # A string may be empty on purpose.
            self.uncomputed += kind == "n" and cell.find("{*}f") is not None
            return ""
        if kind == "n":
            return self._format_numeric_cell(cell, value)
        if kind == "b":
            return str(bool(int(value))).upper()
        value = self._strings[int(value)] if kind == "s" else value
        return _CONTROL.sub(" ", value).strip()

    def _format_numeric_cell(self, cell: Any, digits: str) -> str:
        value = float(digits) if set(digits) & set(".eE") else int(digits)
        style = int(cell.get("s", "0"))
        form = self._formats[style] if style < len(self._formats) else "General"
        if self._numbers.is_date_format(form):
            passed, dates = self._numbers.is_timedelta_format(form), self._utils.datetime
            with suppress(OverflowError, ValueError):
                return _format_date(dates.from_excel(value, self._epoch, timedelta=passed))
            return "#VALUE!"
        share = "%" in _LITERAL.sub("", form)
        value = value * 100 if share else value
        # With the fifteen digits that spreadsheets keep.
        whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
        text = (str(int(value)) if whole else f"{value:.15g}") + "%" * share
        before, after = self._currencies[style] if style < len(self._currencies) else ("", "")
        if before + after and "." in text:
            places = form.partition(".")[2]
            text += "0" * (len(places) - len(places.lstrip("0")) - len(text.partition(".")[2]))
        return "-" * (value < 0) + before + text.removeprefix("-") + after


def write_sheet(title: str, cells: Rows, out: TextBuilder) -> None:
    """Writes a sheet's title and values as lines, without empty rows and columns."""
    if not cells:
        return
    out.start_paragraph()
    out.chapter, out.row = title, None
    out.add_exact_text(f"Sheet: {title}")
    rows = Rows()
    for number in sorted(cells):
        if rows and number - 1 not in cells:
            rows[number - 1] = {}  # for several: it may separate a title from a table
        rows[number] = cells[number]
    for table in divide_into_tables(rows):
        for block in _format_sheet_table(table):
            out.row = block.row
            out.end_line()
            out.add_exact_text(block.text.rstrip("\n"))


def _format_sheet_table(table: Rows) -> list[TableRows]:
    columns = sorted({column for row in table.values() for column in row})
    if len(columns) > 1:
        rows = [[row.get(column, "") for column in columns] for row in table.values()]
        return format_table(rows, [*table])
    cells = ((number, text) for number, row in table.items() for text in row.values())
    return join_rows((number, " ".join(text.split()) + "\n") for number, text in cells)


def _find_currency(number_format: str) -> tuple[str, str]:
    """Returns the currency before and after numbers of a format, such as "USD " or " €"."""
    form = _CURRENCY.sub(r'"\1"', number_format).partition(";")[0]
    form = _FILLING.sub("", _CONDITION.sub("", form))
    before, after = re.split(r"[0#?]", form, maxsplit=1)[0], re.split(r"[0#?]", form)[-1]
    before, after = (part if _is_currency(part.strip()) else "" for part in (before, after))
    if form == before:  # no digits
        return "", ""
    letters = before.strip()[-1:].isalpha()
    return before.strip() + " " * letters, " " * bool(after) + after.strip()


def _is_currency(text: str) -> bool:
    code = len(text) == 3 and text.isascii() and text.isupper()
    return code or any(unicodedata.category(sign) == "Sc" for sign in text)


def _extract_string_of_cell(element: Any) -> str:
    """Returns the words of a string cell in a workbook, without marks of pronunciation."""
    pieces = [*element.iterfind("{*}t"), *element.iterfind("{*}r/{*}t")]
    return "".join(piece.text or "" for piece in pieces)


def _format_date(value: date | datetime | time | timedelta) -> str:
    if isinstance(value, datetime):
        return str(value.date()) if value.time() == time() else value.isoformat(" ", "seconds")
    if isinstance(value, timedelta):
        minutes, seconds = divmod(round(value.total_seconds()), 60)
        return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
    return value.isoformat()

"""Reads CSV tables: each row becomes a line in which every value has its column's name.

The delimiter is the character that splits the first rows into equally many cells. Lines above the
table remain in the text. Without a heading row, or with too few names in the row, columns are
numbered.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from esa_cli.documents.readers.plain_text import decode_lines
from esa_cli.documents.readers.text_builder import ExtractedText

_DELIMITERS = "\t|;,"
"""Of two that fit equally well the first counts: numbers have commas in them, hardly any a tab."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_SAMPLE = 1 << 16
_ROWS_LOOKED_AT = 100
_LONGEST_NAME = 80


def read_csv(data: bytes, name: str) -> ExtractedText:
    """Reads a CSV table; a file that is no table is read as plain text."""
    text, encoding = decode_lines(data, name)
    with suppress(csv.Error):  # no delimiter, an unclosed quotation mark, or a cell without end
        text = format_table(_CsvRows(text)) or text
    return ExtractedText(text, encoding=encoding)


class _CsvRows:
    """The rows of a CSV text, parsed again in each pass: lists of all cells would take a hundred
    bytes for each byte of text. Raises csv.Error: the text is no table."""

    def __init__(self, text: str) -> None:
        self._text = text
        sample = self._text[:_SAMPLE]
        if len(self._text) > _SAMPLE:
            sample = sample[: sample.rfind("\n") + 1]
        shares = {sign: _measure_row_regularity(sample, sign) for sign in _DELIMITERS}
        self._delimiter = max(shares, key=lambda sign: shares[sign])
        if not shares[self._delimiter]:
            raise csv.Error("no delimiter fits")

    def __iter__(self) -> Iterator[list[str]]:
        return csv.reader(_split_lines(self._text), delimiter=self._delimiter, strict=True)


def _split_lines(text: str) -> Iterator[str]:
    return (line[0] for line in _LINE.finditer(text))


def _measure_row_regularity(sample: str, delimiter: str) -> float:
    """Returns the share of the first rows that have the usual number of cells, from 0 to 1."""
    try:
        rows = list(csv.reader(_split_lines(sample), delimiter=delimiter))
    except csv.Error:
        return 0.0
    widths = Counter(len(row) for row in rows if row)
    width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return count / widths.total() if width > 1 else 0.0


def format_table(rows: Iterable[Sequence[str]]) -> str:
    """Returns a line `name: value; name: value` for each row, without empty cells. The rows are
    iterated over several times."""
    widths = Counter(map(_count_filled_cells, rows))
    del widths[0]
    if not widths:
        return ""
    usual_width = max(widths, key=lambda width: widths[width])
    rows_above = _count_rows_above(rows, usual_width)
    body = (cells for row in islice(rows, rows_above, None) if any(cells := _clean_cells(row)))
    first = list(islice(body, _ROWS_LOOKED_AT))
    named = len(first) > 1 and len(first[0]) >= usual_width and _starts_with_heading(first)
    return "".join(_format_rows(rows, rows_above, first[0] if named else []))


def _format_rows(rows: Iterable[Sequence[str]], rows_above: int, names: list[str]) -> Iterator[str]:
    """Yields the rows above the table unchanged, then each row of the table with column names."""
    skip_heading = bool(names)
    for number, row in enumerate(rows):
        cells = _clean_cells(row)
        if not any(cells):
            continue
        if number < rows_above:
            yield "; ".join(filter(None, cells)) + "\n"
        elif skip_heading:
            skip_heading = False
        else:
            names += [""] * (len(cells) - len(names))
            named = ((names[at] or f"column {at + 1}", cell) for at, cell in enumerate(cells))
            yield "; ".join(f"{name}: {cell}" for name, cell in named if cell) + "\n"


def _clean_cells(row: Sequence[str]) -> list[str]:
    return [" ".join(cell.split()) for cell in row]


def _count_filled_cells(row: Sequence[str]) -> int:
    """Returns the number of cells of a row up to the last cell that is not empty."""
    return next((at for at in range(len(row), 0, -1) if row[at - 1].strip()), 0)


def _count_rows_above(rows: Iterable[Sequence[str]], usual_width: int) -> int:
    """Returns the number of rows above the table, as on top of a bank statement: up to the last
    blank line, title or very short row before the first whole row."""
    rows_above = 0
    for number, row in enumerate(rows, 1):
        if _count_filled_cells(row) >= usual_width:
            break
        if _count_filled_cells(row) < 2 or len(row) < usual_width - 1:
            rows_above = number
    return rows_above


def _starts_with_heading(rows: Sequence[Sequence[str]]) -> bool:
    """Returns True if the first row names the columns: different words, at most one missing, and
    years only if the columns below have other numbers."""
    names = [cell for cell in rows[0] if cell]
    if len(names) < len(rows[0]) - 1 or len(set(names)) < len(names):
        return False  # one column may have no name, as the numbers of rows often have none
    for at, cell in enumerate(rows[0]):
        below = [row[at] for row in rows[1:] if at < len(row) and row[at]]
        years = _is_year(cell) and sum(map(_is_year, below)) * 2 <= len(below)
        if len(cell) > _LONGEST_NAME or (_is_number(cell) and not years):
            return False
    return True


def _is_year(text: str) -> bool:
    return text.isdecimal() and len(text) == 4 and "1800" <= text <= "2100"


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".").strip("%€$£ "))
    except ValueError:
        return False
    return True

"""Tables in CSV: a line for each row, every value with its column's name.

The delimiter is the one that cuts the first rows into equally many cells. Lines above the table are
kept as they are. Without a heading row, or where it has too few names, columns are numbered. A file
that is not a table is read as plain text.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise

from esa_cli.documents.readers.reader_registry import Reader, register
from esa_cli.documents.readers.text_builder import ExtractedText
from esa_cli.documents.readers.text_reader import plain_text

_DELIMITERS = "\t|;,"
"""Of two that fit as well the first: numbers and names have commas in them, hardly any a tab."""
_NAMED = re.compile(r"sep=(.)\n")
"""A first line in which some programs name the delimiter."""
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_SAMPLE = 1 << 16
_LOOKED_AT = 100  # rows in which the kinds of columns are seen
_LONGEST_NAME = 80


@register("csv")
class CsvReader(Reader):
    what = "CSV"
    suffixes = (".csv", ".tsv", ".tab")
    binary = False

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = plain_text(data, name)
        with suppress(csv.Error):  # an unclosed quotation mark, or a cell without end
            text = as_lines(_Table(text)) or text
        return ExtractedText(text, encoding=encoding)


class _Table:
    """The rows of a text in CSV, parsed in each pass: lists of all cells would take a hundred bytes
    for each of the text. Raises csv.Error: it is no table."""

    def __init__(self, text: str) -> None:
        named = _NAMED.match(text)
        self._text = text[named.end() :] if named else text
        sample = self._text[:_SAMPLE]
        if len(self._text) > _SAMPLE:
            sample = sample[: sample.rfind("\n") + 1]
        signs = named[1] if named else _DELIMITERS
        self._delimiter = max(signs, key=lambda sign: _consistency(sample, sign))
        if not _consistency(sample, self._delimiter):
            raise csv.Error("no delimiter fits")

    def __iter__(self) -> Iterator[list[str]]:
        return csv.reader(_lines_of(self._text), delimiter=self._delimiter, strict=True)


def _lines_of(text: str) -> Iterator[str]:
    return (line[0] for line in _LINE.finditer(text))


def _consistency(sample: str, delimiter: str) -> float:
    """The share of the first rows that have the usual number of cells, from 0 to 1."""
    try:
        rows = list(csv.reader(_lines_of(sample), delimiter=delimiter))
    except csv.Error:
        return 0.0
    widths = Counter(len(row) for row in rows if row)
    width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return count / widths.total() if width > 1 else 0.0


def as_lines(rows: Iterable[Sequence[str]]) -> str:
    """`name: value; name: value`, a line for each row; empty cells are left out.

    Args:
        rows: of a table; they are read in several passes.
    """
    widths = Counter(map(_width, rows))
    del widths[0]
    if not widths:
        return ""
    usual = max(widths, key=lambda width: widths[width])
    above = _above(rows, usual)
    body = (cells for row in islice(rows, above, None) if any(cells := _cells(row)))
    first = list(islice(body, _LOOKED_AT))
    named = len(first) > 1 and len(first[0]) >= usual and _names_columns(first)
    return "".join(_lines(rows, above, first[0] if named else []))


def _lines(rows: Iterable[Sequence[str]], above: int, heads: list[str]) -> Iterator[str]:
    """The lines of the rows `above` the table, then of the table without its row of `heads`."""
    heading = bool(heads)
    for number, row in enumerate(rows):
        cells = _cells(row)
        if not any(cells):
            continue
        if number < above:
            yield "; ".join(filter(None, cells)) + "\n"
        elif heading:
            heading = False
        else:
            heads += [""] * (len(cells) - len(heads))
            named = ((heads[at] or f"column {at + 1}", cell) for at, cell in enumerate(cells))
            yield "; ".join(f"{name}: {cell}" for name, cell in named if cell) + "\n"


def _cells(row: Sequence[str]) -> list[str]:
    return [" ".join(cell.split()) for cell in row]


def _width(row: Sequence[str]) -> int:
    """Cells up to the last that is not empty."""
    return next((at for at in range(len(row), 0, -1) if row[at - 1].strip()), 0)


def _above(rows: Iterable[Sequence[str]], usual: int) -> int:
    """The number of rows before the table begins, as on top of a bank statement: up to
    the last blank line, title or very short row before the first whole one."""
    above = 0
    for number, row in enumerate(rows, 1):
        if _width(row) >= usual:
            break
        if _width(row) < 2 or len(row) < usual - 1:
            above = number
    return above


def _names_columns(rows: Sequence[Sequence[str]]) -> bool:
    """True if the first of these rows is a heading: words, nearly all there and all different.

    Numbers may be among them, as years are: where the columns below have other ones, or as a series
    (1, 2, 3) that no other row is.
    """
    cells = rows[0]
    words = [cell for cell in cells if cell]
    if len(words) < len(cells) - 1 or len(set(words)) < len(words):
        return False  # one column may have no name, as the numbers of rows often have none
    if any(len(cell) > _LONGEST_NAME for cell in words):
        return False
    numbers = [at for at, cell in enumerate(cells) if _is_number(cell)]
    if len(numbers) > 2 and 0 not in numbers and _is_series(cells, numbers):
        return not any(_is_series(row, numbers) for row in rows[1:])
    return all(_is_year(cells[at]) and not _has_years(rows[1:], at) for at in numbers)


def _is_series(cells: Sequence[str], columns: Sequence[int]) -> bool:
    """Whether the cells of these columns are whole numbers with one step between them."""
    try:
        numbers = [int(cells[at]) for at in columns]
    except (ValueError, IndexError):
        return False
    steps = {b - a for a, b in pairwise(numbers)}
    return len(steps) == 1 and steps != {0}


def _is_year(text: str) -> bool:
    return text.isdecimal() and len(text) == 4 and "1800" <= text <= "2100"


def _has_years(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Whether most cells of a column are years."""
    below = [row[column] for row in rows if column < len(row) and row[column]]
    return sum(map(_is_year, below)) * 2 > len(below)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".").strip("%€$£ "))
    except ValueError:
        return False
    return True

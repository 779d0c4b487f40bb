"""Tables in CSV: a line for each row, every value with its column's name.

The delimiter is the one that cuts the first rows into equally many cells. Lines above the table are
kept as they are. Without a heading row, or where it has too few names, columns are numbered. A file
that is not a table is read as plain text.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from esa_cli.documents.readers.reader_registry import register
from esa_cli.documents.readers.text_reader import plain_text
from esa_cli.documents.text_builder import ExtractedText

_DELIMITERS = "\t|;,"
"""Of two that fit as well the first: numbers and names have commas in them, hardly any a tab."""
_TOLD = re.compile(r"sep=(.)\n")
"""A first line by which some programs are told the delimiter."""
_SAMPLE = 1 << 16
_LONGEST_NAME = 80


@register("csv")
class CsvReader:
    """Comma-, semicolon- or tab-separated values."""

    what: ClassVar[str] = "CSV"
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".tab")
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        return False

    def read(self, data: bytes, name: str) -> ExtractedText:
        text, encoding = plain_text(data, name)
        rows = parse(text)
        return ExtractedText(as_lines(rows) if rows else text, encoding=encoding)


def parse(text: str) -> list[list[str]]:
    """The rows of a table, blank lines among them; empty when the text is none."""
    told = _TOLD.match(text)
    if told:
        text = text[told.end() :]
    best = told[1] if told else max(_DELIMITERS, key=lambda sign: _consistency(text, sign))
    if not _consistency(text, best):
        return []
    try:
        rows = _rows(text, best)
        return rows if any(cell.strip() for row in rows for cell in row) else []
    except csv.Error:  # an unclosed quotation mark, or a cell without end
        return []


def _rows(text: str, delimiter: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))


def _consistency(text: str, delimiter: str) -> float:
    """The share of the first rows that have the usual number of cells, from 0 to 1."""
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1]
    try:
        rows = list(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter))
    except csv.Error:
        return 0.0
    widths = Counter(len(row) for row in rows if row)
    width, count = max(widths.items(), key=lambda item: (item[1], item[0]), default=(0, 0))
    return count / widths.total() if width > 1 else 0.0


def as_lines(rows: Sequence[Sequence[str]]) -> str:
    """`name: value; name: value`, a line for each row; empty cells are left out."""
    cells = [[" ".join(cell.split()) for cell in row] for row in rows]
    usual = Counter(filter(None, map(_width, cells))).most_common(1)[0][0]
    above = _above(cells, usual)
    lines = ["; ".join(filter(None, row)) for row in cells[:above] if any(row)]
    table = [row for row in cells[above:] if any(row)]
    named = len(table) > 1 and len(table[0]) >= usual and _names_columns(table[0])
    heads = table[0] if named else []
    names = [*heads, *[""] * (max(map(len, table)) - len(heads))]
    names = [name or f"column {number}" for number, name in enumerate(names, 1)]
    for row in table[1:] if named else table:
        lines.append("; ".join(f"{n}: {c}" for n, c in zip(names, row, strict=False) if c))
    return "\n".join(lines) + "\n"


def _width(row: Sequence[str]) -> int:
    """Cells up to the last that is not empty."""
    return max((at for at, cell in enumerate(row, 1) if cell), default=0)


def _above(rows: Sequence[Sequence[str]], usual: int) -> int:
    """The number of rows before the table begins, as on top of a bank statement: up to
    the last blank line, title or very short row before the first whole one."""
    above = 0
    for number, row in enumerate(rows, 1):
        if _width(row) >= usual:
            break
        if _width(row) < 2 or len(row) < usual - 1:
            above = number
    return above


def _names_columns(cells: Sequence[str]) -> bool:
    """True if a first row is a heading: words, nearly all there and all different."""
    words = [cell for cell in cells if cell]
    if len(words) < len(cells) - 1 or len(set(words)) < len(words):
        return False  # one column may have no name, as the numbers of rows often have none
    return not any(_is_number(cell) or len(cell) > _LONGEST_NAME for cell in words)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".").strip("%€$£ "))
    except ValueError:
        return False
    return True

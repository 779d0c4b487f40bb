"""Tables in CSV: one line a row, every value with its column's name.

The delimiter is the one that cuts the rows of the beginning into equally many cells. Without a
heading row the columns are numbered. A file that is no table after all is read as plain text, so
that nothing is lost. It does not know types.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from .extracted import Extracted
from .registered import register
from .text import plain_text

_DELIMITERS = ",;\t|"
_SAMPLE = 1 << 16
_LONGEST_NAME = 80


@register("csv")
class Csv:
    """Comma-, semicolon- or tab-separated values."""

    what: ClassVar[str] = "CSV"
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".tab")
    binary: ClassVar[bool] = False

    def sniff(self, head: bytes) -> bool:
        return False

    def read(self, data: bytes, name: str) -> Extracted:
        text, encoding = plain_text(data, name)
        rows = parse(text)
        return Extracted(as_lines(rows) if rows else text, encoding=encoding)


def parse(text: str) -> list[list[str]]:
    """The rows of a table; empty when the text is none."""
    best = max(_DELIMITERS, key=lambda sign: _agreement(text, sign))
    if not _agreement(text, best):
        return []
    try:
        return [row for row in _rows(text, best) if any(cell.strip() for cell in row)]
    except csv.Error:  # an unclosed quotation mark, or a cell without end
        return []


def _rows(text: str, delimiter: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))


def _agreement(text: str, delimiter: str) -> float:
    """How many rows of the beginning have the usual number of cells, from 0 to 1."""
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
    width = max(map(len, rows))
    first = [" ".join(cell.split()) for cell in rows[0]]
    named = len(rows) > 1 and _names_columns(first)
    heads = first if named else []
    names = [*heads, *[""] * (width - len(heads))]
    names = [name or f"column {number}" for number, name in enumerate(names, 1)]
    lines = []
    for row in rows[1:] if named else rows:
        cells = (" ".join(cell.split()) for cell in row)
        lines.append("; ".join(f"{n}: {c}" for n, c in zip(names, cells, strict=False) if c))
    return "\n".join(lines) + "\n"


def _names_columns(cells: Sequence[str]) -> bool:
    """Whether a first row is a heading: words, nearly all there and all different."""
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

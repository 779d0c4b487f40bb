"""Finds the tables of an Excel sheet: a sheet may have several below each other, and cells that
span several rows or columns.

A table ends at an empty row before another row of names: different words, as many as the widest
row below has cells, of which one stands above numbers. Lines above a table stay with it, and rows
of names with fewer than three words follow only a table that is as wide. In other blocks of rows
the names of the table above go on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from esa_cli.documents.readers.heading_cells import has_digit, is_year
from esa_cli.documents.readers.spanned_cells import MAX_COPY

Rows = dict[int, dict[int, str]]
"""The text of each cell by the number of its row, and of its column; an empty row has no cells."""


class MergedCells(NamedTuple):
    """Rows and columns, the last of each included, of which the first cell has the text."""

    column: int
    row: int
    last_column: int
    last_row: int


def copy_merged_cells(rows: Rows, merged: list[MergedCells]) -> None:
    """Copies the text of each cell that spans several rows into the rows below that have cells,
    and joins a row of names with the row of groups above it: `2024 Plan`."""
    numbers = sorted(number for number, row in rows.items() if row)
    by_row: dict[int, list[MergedCells]] = {}
    for at in merged:
        by_row.setdefault(at.row, []).append(at)
        text = rows.get(at.row, {}).get(at.column, "")
        below = slice(bisect_right(numbers, at.row), bisect_right(numbers, at.last_row))
        for number in numbers[below] if 0 < len(text) <= MAX_COPY else ():
            rows[number].setdefault(at.column, text)
    for number in numbers:
        if not any(at.last_column > at.column for at in by_row.get(number, ())):
            continue
        groups, names = dict(rows[number]), rows.get(number + 1, {})
        if len(rows.get(number - 1, {})) > 1 or len(groups) < 2 or not names:
            continue  # a row of the table itself, or a title
        if any(word[0].isdecimal() for word in names.values()):
            continue
        for at in by_row[number]:
            inside = (column for column in names if at.column <= column <= at.last_column)
            groups |= dict.fromkeys(inside, rows[number].get(at.column, ""))
        if groups.keys() <= names.keys():
            for column, group in groups.items():
                if group not in ("", names[column]):
                    names[column] = f"{group} {names[column]}"
            del rows[number]


def divide_into_tables(rows: Rows) -> Iterator[Rows]:
    """Yields the rows of each table, which with the lines above it has at least one row."""
    table, width = Rows(), 0
    for block in _divide_at_empty_rows(rows):
        names = _count_names(block)
        if names and width and (width >= 3 or names <= width):
            yield table
            table, width = Rows(), 0
        width = width or names
        table |= block
    if table:
        yield table


def _divide_at_empty_rows(rows: Rows) -> Iterator[Rows]:
    """Yields the rows up to each empty row, which is the last of its block."""
    block = Rows()
    for number, row in rows.items():
        block[number] = row
        if not row:
            yield block
            block = Rows()
    if block:
        yield block


def _count_names(block: Rows) -> int:
    """Returns the number of names in the first row of several cells, or 0 if it is no row of
    names. Rows of one cell above it are titles."""
    filled = [row for row in block.values() if row]
    start = next((at for at, row in enumerate(filled) if len(row) > 1), len(filled))
    names, below = (filled[start], filled[start + 1 :]) if start < len(filled) else ({}, [])
    words = set(names.values())
    if not below or len(words) < len(names) or max(map(len, below)) > len(names):
        return 0
    if any(word[0].isdecimal() and not is_year(word) for word in words):
        return 0
    columns = [[row[at] for row in below if at in row] for at in names]
    return len(names) if any(cells and all(map(has_digit, cells)) for cells in columns) else 0

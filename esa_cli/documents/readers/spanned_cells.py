"""Copies a table's cell that spans several rows into each of these rows, so that every row has all
of its words when it is read alone."""

from __future__ import annotations

from collections.abc import Sequence

MAX_COLUMNS = 100
"""Columns that a cell spans at most; browsers allow 1,000."""
MAX_ROWS = 1000
"""Rows that a cell spans at most; browsers allow 65,534."""
MAX_COPY = 200
"""Characters of a cell that is copied. A longer text is no name of the rows beside it."""
Place = tuple[int, int]
"""The number of a row, and that of a cell among the row's own, both from 0."""


def parse_span(text: str | None, most: int) -> int:
    """Returns the number of columns or rows in an attribute, from 1 to `most`."""
    return min(max(1, int(text[:5])), most) if text and text.isdecimal() else 1


def find_cells_of_rows(spans: Sequence[Sequence[tuple[int, int]]]) -> list[list[Place]]:
    """Returns the cells of each row from left to right: its own, and those of rows above that span
    it. `spans` has, for each row, how many columns and rows each of its own cells spans."""
    found, above = list[list[Place]](), dict[int, tuple[int, int, Place]]()
    for number, row in enumerate(spans):
        cells, below = list[Place](), dict[int, tuple[int, int, Place]]()
        column = own = 0
        while own < len(row) or above:
            if column in above:
                columns, rows, place = above.pop(column)
            elif own < len(row):
                (columns, rows), place = row[own], (number, own)
                own += 1
            else:
                column = next(iter(above))
                continue
            cells.append(place)
            if rows > 1:
                below[column] = columns, rows - 1, place
            for covered in range(column, column + columns):  # cells may overlap by mistake
                above.pop(covered, None)
            column += columns
        found.append(cells)
        above = below
    return found

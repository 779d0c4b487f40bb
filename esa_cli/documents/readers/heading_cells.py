"""Finds the heading cells of tables in Word, OpenDocument and PDF files, which name the columns.

A column's name is then written before each value. Where a document does not mark the first row
as a heading, a first row of three or more different words is one if some column has numbers in
all rows below. A table of two columns may as well have names on its left side. Two marked rows
are names if a cell of the first spans several columns or rows; other tables with several marked
rows are all in bold type. A first row of one cell is a title, which becomes a line above."""

from __future__ import annotations

from typing import Any

from esa_cli.documents.readers.spanned_cells import (
    MAX_COLUMNS,
    MAX_ROWS,
    find_cells_of_rows,
    parse_span,
)

HEAD = "head"
"""The class of a row that the document marks as a heading."""


def mark_heading_cells(root: Any) -> None:
    """Renames the cells of the heading rows of each table, in a tree of elements with HTML tags."""
    for table in root.iter("table"):
        if next(table.iterdescendants("table"), None) is not None:
            continue
        rows = [*table.iter("tr")]
        cells = [[*row.iter("td")] for row in rows]
        while len(rows) > 2 and len(cells[0]) == 1 < len(cells[1]):  # a title
            title = cells.pop(0)[0]
            title.tag = "div"
            table.addprevious(title)
            row = rows.pop(0)
            row.getparent().remove(row)
        if len(rows) < 2 or len(cells[0]) < 2:
            continue
        marked = [row.get("class") == HEAD or row.getparent().tag == "thead" for row in rows]
        texts = [["".join(cell.itertext()).strip() for cell in row] for row in cells]
        spans = [[*map(_read_spans, row)] for row in cells]
        whole = [[texts[row][at] for row, at in line] for line in find_cells_of_rows(spans)]
        heading_rows = [*marked, False].index(False)
        most = 2 if any(span != (1, 1) for span in spans[0]) else 1
        if not 0 < heading_rows <= most or heading_rows == len(rows):
            heading_rows = int(has_names_above_numbers(whole))
        for cell in (cell for row in cells[:heading_rows] for cell in row):
            cell.tag = "th"


def _read_spans(cell: Any) -> tuple[int, int]:
    columns, rows = cell.get("colspan"), cell.get("rowspan")
    return parse_span(columns, MAX_COLUMNS), parse_span(rows, MAX_ROWS)


def has_names_above_numbers(rows: list[list[str]]) -> bool:
    """Returns True if the first of a table's rows has at least three different words, all rows have
    as many cells, and some column has numbers in all rows below that are not empty. Words have no
    digits, except in names such as "From April 2023", "7 °C" or "2023", above other numbers."""
    names, below = rows[0] if rows else [], rows[1:]
    if len(names) < 3 or "" in names[1:] or len(set(names)) < len(names) or not below:
        return False
    if any(len(row) != len(names) for row in below):
        return False
    columns = [[cell for cell in column if cell] for column in zip(*below, strict=True)]
    named = [one for one in zip(names, columns, strict=True) if has_digit(one[0])]
    if not all(_is_name_above_numbers(name, cells) for name, cells in named):
        return False
    return any(column and all(map(has_digit, column)) for column in columns)


def _is_name_above_numbers(name: str, cells: list[str]) -> bool:
    """Whether a name with a digit is not as the cells below, which begin with a digit or a sign, or
    have no letter next to a digit if the name has a unit."""
    numbers = [cell for cell in cells if has_digit(cell)]
    has_unit = _has_letter(name) and bool(numbers or name[0].isdecimal())
    if has_unit and not any(map(_has_letter, numbers)):
        return True
    if any(cell[0].isalpha() for cell in cells):
        return False
    return name[0].isalpha() or (is_year(name) and not all(map(is_year, cells)))


def is_year(text: str) -> bool:
    return text.isdecimal() and len(text) == 4 and "1800" <= text <= "2100"


def has_digit(text: str) -> bool:
    return any(map(str.isdecimal, text))


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def format_rows(rows: list[list[str]]) -> str:
    """Returns a line `name: value; name: value` for each row below the first, which has names."""
    named = (zip(rows[0], row, strict=True) for row in rows[1:])
    cells = ([f"{name}: {cell}" if name else cell for name, cell in row if cell] for row in named)
    return "\n".join(map("; ".join, cells))

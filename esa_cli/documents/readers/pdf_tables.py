"""Finds the tables of a PDF page whose cells are divided by lines, and writes their columns' names
before each value.

A table is a group of horizontal and vertical lines that touch each other. Only a table whose first
row names the columns is rewritten (`heading_cells.has_names_above_numbers`). Tables without lines
between columns are not recognised."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

from esa_cli.documents.readers.heading_cells import format_rows, has_names_above_numbers

_THIN, _LEAST = 2.5, 8.0
"""The thickness that a line has at most, and its least length, in points."""
_NEAR = 3.0
"""The distance in points below which lines touch each other, or are one line."""
_MAX_LINES = 600
"""Lines of a page above which it is a drawing; the time is quadratic in their number."""


class _Box(NamedTuple):
    """Left, bottom, right and top in points."""

    left: float
    bottom: float
    right: float
    top: float

    def touches(self, other: _Box) -> bool:
        return (
            self.left <= other.right + _NEAR
            and other.left <= self.right + _NEAR
            and self.bottom <= other.top + _NEAR
            and other.bottom <= self.top + _NEAR
        )


def extract_page_text(page: Any, pdfium: Any) -> str:
    """Returns the text of a page of pypdfium2, whose tables have a line for each row."""
    text_page = page.get_textpage()
    grids = [_Grid(lines) for lines in _group_lines(_list_lines(page, pdfium))]
    tables = [grid for grid in grids if grid.is_table]
    written, out = 0, ""
    if tables:
        count = text_page.count_chars()
        boxes = [_Box(*text_page.get_charbox(at)) for at in range(count)]
        found = [table.read_cells(boxes, text_page) for table in tables]
        for first, end, rows in sorted(found):
            if first >= written and has_names_above_numbers(rows):
                if first > written:
                    out += text_page.get_text_range(written, first - written).rstrip()
                out += "\n\n" * bool(out) + format_rows(rows) + "\n\n"
                written = end
        if written:
            rest = count - written
            return out + (text_page.get_text_range(written, rest).lstrip() if rest else "")
    text: str = text_page.get_text_range()
    return text


def _list_lines(page: Any, pdfium: Any) -> list[_Box]:
    """Lists the lines on a page; a rectangle counts as its four sides."""
    lines = list[_Box]()
    for item in page.get_objects(filter=[pdfium.raw.FPDF_PAGEOBJ_PATH], max_depth=1):
        left, bottom, right, top = item.get_bounds()
        width, height = right - left, top - bottom
        if max(width, height) < _LEAST:
            continue
        if min(width, height) <= _THIN:
            lines.append(_Box(left, bottom, right, top))
        else:
            lines += [_Box(left, y, right, y) for y in (bottom, top)]
            lines += [_Box(x, bottom, x, top) for x in (left, right)]
        if len(lines) > _MAX_LINES:
            return []
    return lines


def _group_lines(lines: list[_Box]) -> Iterator[list[_Box]]:
    """Yields the groups of lines that touch each other."""
    rest = list(lines)
    while rest:
        group = [rest.pop()]
        for line in group:  # the group grows while it is iterated over
            group += [other for other in rest if line.touches(other)]
            rest = [other for other in rest if not line.touches(other)]
        yield group


class _Grid:
    """The rows and columns between the lines of a group."""

    def __init__(self, lines: list[_Box]) -> None:
        self._xs = _merge_near([one.left for one in lines if one.right - one.left <= _THIN])
        self._ys = _merge_near([one.bottom for one in lines if one.top - one.bottom <= _THIN])
        self.is_table = len(self._xs) > 3 and len(self._ys) > 2

    def read_cells(self, boxes: list[_Box], text_page: Any) -> tuple[int, int, list[list[str]]]:
        """Returns the first and the end index of the table's characters, and the texts of its cells
        by row, from the top; no rows if other text stands between the table's characters."""
        places = [self._find_cell(box) for box in boxes]
        inside = [at for at, place in enumerate(places) if place is not None]
        rows = [[""] * (len(self._xs) - 1) for _ in self._ys[1:]]
        if not inside:
            return 0, 0, []
        first, end = inside[0], inside[-1] + 1
        row, column = places[first] or (0, 0)
        for at in range(first, end):
            place, sign = places[at], text_page.get_text_range(at, 1)
            if place is None and sign.strip():
                return 0, 0, []
            row, column = place or (row, column)
            rows[row][column] += sign
        return first, end, [cells for row in rows if any(cells := [" ".join(c.split()) for c in row])]

    def _find_cell(self, box: _Box) -> tuple[int, int] | None:
        column = bisect_right(self._xs, (box.left + box.right) / 2) - 1
        row = bisect_right(self._ys, (box.bottom + box.top) / 2) - 1
        if box.right <= box.left or not (0 <= column < len(self._xs) - 1):
            return None
        return (len(self._ys) - 2 - row, column) if 0 <= row < len(self._ys) - 1 else None


def _merge_near(places: list[float]) -> list[float]:
    out = list[float]()
    for place in sorted(places):
        if not out or place - out[-1] > _NEAR:
            out.append(place)
    return out

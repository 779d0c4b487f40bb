"""Finds the tables of a PDF page, which are groups of horizontal and vertical lines that touch each
other, and writes the columns' names before each value if the first row has names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from esa_cli.documents.readers.heading_cells import format_rows, has_names_above_numbers

_THIN, _LEAST = 2.5, 8.0
"""The thickness that a line has at most, and its least length, in points."""
_NEAR = 3.0
"""The distance in points below which lines touch each other, or are one line."""
_MAX_LINES = 600
"""Lines of a page above which it is a drawing; the time is quadratic in their number."""
_Box = tuple[float, float, float, float]
"""Left, bottom, right and top in points."""


def extract_page_text(page: Any, pdfium: Any) -> str:
    """Returns the text of a page of pypdfium2, in which tables have a line for each row."""
    text_page = page.get_textpage()
    grids = [grid for grid in map(_Grid, _group_lines(_list_lines(page, pdfium))) if grid.is_table]
    if not grids:
        return str(text_page.get_text_range())
    count, at, out = text_page.count_chars(), 0, ""
    boxes = [text_page.get_charbox(number) for number in range(count)]
    for first, end, rows in sorted(grid.read_cells(boxes, text_page) for grid in grids):
        if at <= first < end and has_names_above_numbers(rows):
            before = text_page.get_text_range(at, first - at) if at < first else ""
            out += f"{before.rstrip()}\n\n{format_rows(rows)}\n\n"
            at = end
    return out + (text_page.get_text_range(at, count - at).lstrip() if at < count else "")


def _list_lines(page: Any, pdfium: Any) -> list[_Box]:
    """Lists the lines on a page; a rectangle counts as its four sides."""
    lines = list[_Box]()
    for item in page.get_objects(filter=[pdfium.raw.FPDF_PAGEOBJ_PATH], max_depth=1):
        left, bottom, right, top = item.get_bounds()
        if min(right - left, top - bottom) <= _THIN:
            lines += [(left, bottom, right, top)] * (max(right - left, top - bottom) >= _LEAST)
        else:
            lines += [(left, y, right, y) for y in (bottom, top)]
            lines += [(x, bottom, x, top) for x in (left, right)]
        if len(lines) > _MAX_LINES:
            return []
    return lines


def _group_lines(lines: list[_Box]) -> Iterator[list[_Box]]:
    """Yields the groups of lines that touch each other."""
    while lines:
        group, lines = lines[:1], lines[1:]
        for line in group:  # the group grows while it is iterated over
            group += [other for other in lines if _touch(line, other)]
            lines = [other for other in lines if not _touch(line, other)]
        yield group


def _touch(one: _Box, other: _Box) -> bool:
    ends = [(max(one[at], other[at]), min(one[at + 2], other[at + 2])) for at in (0, 1)]
    return all(start <= end + _NEAR for start, end in ends)


class _Grid:
    """The rows and columns between the lines of a group."""

    def __init__(self, lines: list[_Box]) -> None:
        self._xs = _merge_near([one[0] for one in lines if one[2] - one[0] <= _THIN])
        self._ys = _merge_near([-one[1] for one in lines if one[3] - one[1] <= _THIN])
        self.is_table = len(self._xs) > 3 and len(self._ys) > 2

    def read_cells(self, boxes: list[_Box], text_page: Any) -> tuple[int, int, list[list[str]]]:
        """Returns the first and the end index of the table's characters, and the texts of its cells
        by row, from the top; no rows if other text stands between the table's characters."""
        places = list(map(self._find_cell, boxes))
        inside = [at for at, place in enumerate(places) if place]
        rows = [[""] * len(self._xs) for _ in self._ys]
        row = column = 0
        for at in range(inside[0], inside[-1] + 1) if inside else ():
            sign = text_page.get_text_range(at, 1)
            if not places[at] and sign.strip():
                return 0, 0, []
            row, column = places[at] or (row, column)  # spaces may have no box
            rows[row][column] += sign
        texts = [[" ".join(cell.split()) for cell in row[:-1]] for row in rows]
        return (inside[0], inside[-1] + 1, [*filter(any, texts)]) if inside else (0, 0, [])

    def _find_cell(self, box: _Box) -> tuple[int, int] | None:
        """Returns the row and the column of a character, or None for one outside the table."""
        column = bisect_right(self._xs, (box[0] + box[2]) / 2) - 1
        row = bisect_right(self._ys, -(box[1] + box[3]) / 2) - 1
        within = 0 <= column < len(self._xs) - 1 and 0 <= row < len(self._ys) - 1
        return (row, column) if within and box[0] < box[2] else None


def _merge_near(places: list[float]) -> list[float]:
    merged = list[float]()
    for place in sorted(places):
        if not merged or place - merged[-1] > _NEAR:
            merged.append(place)
    return merged

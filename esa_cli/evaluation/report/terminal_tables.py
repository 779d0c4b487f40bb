"""A run's results as rich renderables: tables, heat maps, reasons, recall by layer.

Every colour has its number beside it, so output without colours (NO_COLOR, a pipe) has the same
content. What would be wider than `width` is divided into several tables or maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TypeVar

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from esa_cli.evaluation.report.statistics import BINS, REASONS, UNKNOWN, Cell, Summary
from esa_cli.system.pages import page_style as look

T = TypeVar("T")

NAME = 16
"""The most columns a method's name gets before it is folded or cut."""
GAP = 3
BARS = "▁▂▃▄▅▆▇█"


def report(summary: Summary, width: int = 80) -> RenderableType:
    """All tables of a run, test by test."""
    if not summary.tests:
        return Text("no questions were asked")
    parts: list[RenderableType] = []
    for test in summary.tests:
        parts += [results(summary, test, width), Text()]
        if summary.has_depths(test):
            parts += [heat_maps(summary, test, width), Text()]
    parts += [reasons(summary), Text(), layers(summary, width)]
    return Group(*parts)


def results(summary: Summary, test: str, width: int = 80) -> RenderableType:
    """Methods x lengths: the score, beside it the share of the dense score, and n."""
    lengths, methods = summary.lengths(test), summary.methods(test)
    labels = dict(zip(lengths, look.length_labels(lengths), strict=True))
    longest = max((len(label) for label in labels.values()), default=0)
    room = max(1, (width - NAME - 10) // (max(longest, 9) + 2))
    parts: list[RenderableType] = [
        _title(test, "score in %, in brackets the share of the dense score")
    ]
    for some in _pieces(lengths, room):
        table = _table("method", *(labels[length] for length in some), "n")
        for method in methods:
            cells = [summary.cell(test, method, length) for length in some]
            table.add_row(_name(method), *map(_score, cells), _counts(cells))
        parts.append(table)
    ceiling = summary.ceiling(test)
    if ceiling is None:
        parts.append(Text("no dense rows, so no retained scores", style="dim"))
    else:
        where = [cell.length or 0 for cell in summary.dense if cell.test == test]
        at = ", ".join(look.length_labels(where))
        ends = f"{look.percent(ceiling.low)}–{look.percent(ceiling.high)}"
        text = f"dense ceiling {look.percent(ceiling.mean)} at {at}, n {ceiling.n}, 95 % {ends}"
        parts.append(Text(f"{text}; n counts questions a length", style="dim"))
    return Group(*parts)


def heat_maps(summary: Summary, test: str, width: int = 80) -> RenderableType:
    """Depth (down) x length (across), one map a method, and the legend."""
    lengths = summary.lengths(test)
    labels = dict(zip(lengths, look.length_labels(lengths), strict=True))
    cell = max(5, *(len(label) + 1 for label in labels.values()))
    side = 1 + len(look.depth_label(BINS - 1, BINS))
    room = max(1, (width - side) // cell)
    maps = []
    for method in summary.methods(test):
        for number, some in enumerate(_pieces(lengths, room)):
            name = method if not number else f"{method}, longer"
            columns = [summary.depths(test, method, length) for length in some]
            means = [[each.mean if each else None for each in column] for column in columns]
            lines = _map(name, [labels[length] for length in some], means, cell, side, width)
            maps.append(lines)
    parts = [_title(test, "score in % by depth of the fact in % (down) and length (across)")]
    beside = max(1, (width + GAP) // (max(map(_width, maps)) + GAP))
    for some_maps in _pieces(maps, beside):
        parts += [*_side_by_side(some_maps), Text()]
    return Group(*parts, legend())


def legend() -> Text:
    """The colour scale with its numbers."""
    text = Text("     ")
    for tenth in range(BINS + 1):
        text.append_text(_block(tenth / BINS, 5))
    return text.append("  –  not asked")


def reasons(summary: Summary) -> RenderableType:
    """Counts of each reason, all lengths together."""
    known = [*REASONS, *sorted({why for cell in summary.pooled for why in cell.why} - {*REASONS})]
    if not any(reason in cell.why for cell in summary.pooled for reason in REASONS):
        return Text("why answers were missed: not recorded", style="dim")
    table = _table("test", "method", *known, names=2)
    for cell in summary.pooled:
        counts = [str(cell.why.get(reason, 0)) for reason in known]
        table.add_row(_name(cell.test), _name(cell.method), *counts)
    note = f"{UNKNOWN}: nothing was recorded" if UNKNOWN in known else ""
    heading = Text("Why answers were missed").append(" (questions, all lengths)", style="dim")
    return Group(heading, table, *([Text(note, style="dim")] if note else []))


def layers(summary: Summary, width: int = 80) -> RenderableType:
    """One bar a layer: the share of the fact's tokens that were in view, all lengths together; for
    answers from text, the share that was among the first passages."""
    cells = [cell for cell in summary.pooled if any(share is not None for share in cell.layers)]
    passages = [
        Text(look.printable(f"{cell.test} {cell.method}:") + " ")
        .append(look.percent_sign(cell.recall), style="bold")
        .append(" of the facts in the first three passages", style="dim")
        for cell in summary.pooled
        if cell not in cells and cell.recall is not None
    ]
    if not cells:
        return Group(*(passages or [Text("recall by layer: not recorded", style="dim")]))
    names = [look.printable(f"{cell.test} {cell.method}") for cell in cells]
    side = min(max(map(cell_len, names)), 2 * NAME)
    room = max(1, width - side - 2 - 30)
    heading = Text("Recall by layer").append(" (first to last; full height is 100 %)", style="dim")
    lines = [heading]
    for name, cell in zip(names, cells, strict=True):
        bars, per = sparkline(cell.layers, room)
        least, at = min((share, i) for i, share in enumerate(cell.layers) if share is not None)
        tail = f" mean {look.percent(cell.recall)}, least {look.percent(least)} in layer {at}"
        text = Text(set_cell_size(name, side) + " ").append(bars, style="cyan")
        lines.append(text.append(tail))
        if per > 1:
            lines.append(Text(f"{'':{side}} one bar is {per} layers", style="dim"))
    return Group(*lines, *passages)


def sparkline(shares: Sequence[float | None], room: int) -> tuple[str, int]:
    """At most `room` bars, and how many neighbours each is the mean of; "·" where none is known."""
    per = -(-len(shares) // room)
    bars = ""
    for piece in _pieces(shares, per):
        known = [share for share in piece if share is not None]
        mean = sum(known) / len(known) if known else None
        bars += "·" if mean is None else BARS[min(int(mean * len(BARS)), len(BARS) - 1)]
    return bars, per


def _table(*headers: str, names: int = 1) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for i, header in enumerate(headers):
        if i < names:
            table.add_column(Text(header), max_width=NAME, overflow="fold")
        else:
            table.add_column(Text(header), justify="right")
    return table


def _title(test: str, what: str) -> Text:
    return Text(look.printable(test), style="bold").append(f"  {what}", style="not bold dim")


def _name(text: str) -> Text:
    return Text(look.printable(text))


def _score(cell: Cell | None) -> Text:
    if cell is None:
        return Text("–", style="dim")
    text = Text(look.percent(cell.mean), style="bold")
    kept = f"({look.percent(cell.retained)})" if cell.retained is not None else ""
    return text.append(f" {kept:>5}", style="not bold") if kept else text


def _counts(cells: Iterable[Cell | None]) -> Text:
    counts = sorted({cell.n for cell in cells if cell})
    return Text("–" if not counts else "–".join(map(str, sorted({counts[0], counts[-1]}))))


def _map(
    name: str,
    labels: Sequence[str],
    columns: Sequence[Sequence[float | None]],
    cell: int,
    side: int,
    most: int,
) -> list[Text]:
    """Lines of one map; `columns` holds a list of depths a length.

    The name has the map's width, or as much more as it takes, up to `most`: names that are cut may
    be the same.
    """
    name = look.printable(name)
    width = max(side + cell * len(labels), min(cell_len(name), most))
    head = "".join(f"{label:>{cell - 1}} " for label in labels)
    lines = [Text(set_cell_size(name, width), style="bold"), Text(" " * side + head, style="dim")]
    for depth in range(BINS):
        line = Text(f"{look.depth_label(depth, BINS):>{side - 1}} ", style="dim")
        for column in columns:
            line.append_text(_block(column[depth], cell))
        lines.append(line)
    return lines


def _block(share: float | None, width: int) -> Text:
    number = f"{look.percent(share):>{width - 1}} "
    if share is None:
        return Text(number, style="not dim")
    back = look.colour(share)
    return Text(number, style=Style(color=look.ink(back), bgcolor=back, dim=False))


def _width(lines: Sequence[Text]) -> int:
    return max(line.cell_len for line in lines)


def _side_by_side(maps: Sequence[Sequence[Text]]) -> list[Text]:
    wide = max(map(_width, maps))
    lines = []
    for row in zip_longest(*maps):
        line = Text()
        for i, part in enumerate(row):
            line.append(" " * GAP if i else "").append_text(part)
            line.append(" " * (wide - part.cell_len))
        lines.append(line)
    return lines


def _pieces(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[i : i + size] for i in range(0, len(items), size)]

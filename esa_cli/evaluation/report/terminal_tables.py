"""A run's results as rich renderables: tables, heat maps, reasons, recall by layer.

Every colour has its number beside it, so output without colours (NO_COLOR, a pipe) has the same
content. What would be wider than `width` is divided into several tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.style import Style
from rich.table import Table
from rich.text import Text

from esa_cli.evaluation.report.statistics import BINS, REASONS, UNKNOWN, Cell, Summary
from esa_cli.system.pages import page_style as look

T = TypeVar("T")

NAME = 16
"""The most columns a method's name gets before it is folded."""
BARS = "▁▂▃▄▅▆▇█"


def report(summary: Summary, width: int = 80) -> RenderableType:
    """All tables of a run, test by test."""
    if not summary.tests:
        return Text("no questions were asked")
    parts: list[RenderableType] = []
    for test in summary.tests:
        parts += [*results(summary, test, width), Text()]
        if summary.has_depths(test):
            parts += [*heat_maps(summary, test, width), Text()]
    parts += [*reasons(summary), Text(), *layers(summary, width)]
    return Constrain(Group(*parts), width)


def results(summary: Summary, test: str, width: int) -> list[RenderableType]:
    """Methods x lengths: the score, beside it the share of the dense score, and n."""
    parts: list[RenderableType] = [
        _title(test, "score in %, in brackets the share of the dense score")
    ]
    for lengths in _pieces(summary.lengths(test), max(1, (width - NAME - 10) // 11)):
        table = _table("method", *look.length_labels(lengths), "n")
        for method in summary.methods(test):
            cells = [summary.cell(test, method, length) for length in lengths]
            counts = sorted({cell.n for cell in cells if cell})
            numbers = "–".join(map(str, sorted({counts[0], counts[-1]}))) if counts else "–"
            table.add_row(_name(method), *map(_score, cells), numbers)
        parts.append(table)
    ceiling = summary.ceiling(test)
    if ceiling is None:
        return [*parts, Text("no dense rows, so no retained scores", style="dim")]
    labels = ", ".join(look.length_labels(summary.dense_lengths(test)))
    ends = f"{look.percent(ceiling.low)}–{look.percent(ceiling.high)}"
    text = f"dense ceiling {look.percent(ceiling.mean)} at {labels}, n {ceiling.n}, 95 % {ends}"
    return [*parts, Text(f"{text}; n counts questions a length", style="dim")]


def heat_maps(summary: Summary, test: str, width: int) -> list[RenderableType]:
    """Depth (down) x length (across), one map a method, side by side."""
    maps = []
    for method in summary.methods(test):
        for lengths in _pieces(summary.lengths(test), max(1, (width - 8) // 9)):
            table = Table(box=None, padding=0, title=_name(method), title_style="bold")
            table.add_column(justify="right")
            for label in look.length_labels(lengths):
                table.add_column(f" {label}", justify="right", header_style="dim")
            columns = [summary.depths(test, method, length) for length in lengths]
            for tenth in range(BINS):
                depth = Text(look.depth_label(tenth, BINS), style="dim")
                table.add_row(depth, *(_block(column[tenth]) for column in columns))
            maps.append(table)
    title = _title(test, "score in % by depth of the fact in % (down) and length (across)")
    return [title, Columns(maps, padding=(0, 3)), Text("–  not asked", style="dim")]


def reasons(summary: Summary) -> list[RenderableType]:
    """Counts of each reason, all lengths together."""
    pooled = {key: cell for key, cell in summary.cells.items() if len(key) == 2}
    counted = {why for cell in pooled.values() for why in cell.why}
    if not counted & {*REASONS}:
        return [Text("why answers were missed: not recorded", style="dim")]
    known = [*REASONS, *sorted(counted - {*REASONS})]
    table = _table("test", "method", *known, names=2)
    for (test, method), cell in pooled.items():
        table.add_row(_name(test), _name(method), *(str(cell.why.get(why, 0)) for why in known))
    heading = Text("Why answers were missed").append(" (questions, all lengths)", style="dim")
    note = [Text(f"{UNKNOWN}: nothing was recorded", style="dim")] if UNKNOWN in known else []
    return [heading, table, *note]


def layers(summary: Summary, width: int) -> list[RenderableType]:
    """One bar a layer: the share of the fact's tokens that were in view, all lengths together; for
    answers from text, the share that was among the first passages."""
    bars: list[RenderableType] = []
    passages: list[RenderableType] = []
    for key, cell in summary.cells.items():
        if len(key) != 2 or cell.recall is None:
            continue
        name = look.printable(" ".join(key))
        known = [(share, i) for i, share in enumerate(cell.layers) if share is not None]
        if not known:
            text = Text(f"{name}: ").append(look.percent_sign(cell.recall), style="bold")
            passages.append(text.append(" of the facts in the first three passages", style="dim"))
            continue
        side, (least, at) = min(cell_len(name), 2 * NAME), min(known)
        line, per = sparkline(cell.layers, max(1, width - side - 50))
        text = Text(set_cell_size(name, side) + " ").append(line, style="cyan")
        text.append(f" mean {look.percent(cell.recall)}, least {look.percent(least)} in layer {at}")
        bars.append(text.append(f", a bar is {per} layers" if per > 1 else "", style="dim"))
    if not bars and not passages:
        return [Text("recall by layer: not recorded", style="dim")]
    heading = Text("Recall by layer").append(" (first to last; full height is 100 %)", style="dim")
    return [*([heading] if bars else []), *bars, *passages]


def sparkline(shares: Sequence[float | None], room: int) -> tuple[str, int]:
    """At most `room` bars, and how many neighbours each is the mean of; "·" where none is known."""
    per = -(-len(shares) // room)
    bars = ""
    for piece in _pieces(shares, per):
        known = [share for share in piece if share is not None]
        place = int(sum(known) / len(known) * len(BARS)) if known else 0
        bars += BARS[min(place, len(BARS) - 1)] if known else "·"
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
    retained = f"({look.percent(cell.retained)})" if cell.retained is not None else ""
    return text.append(f" {retained:>5}", style="not bold") if retained else text


def _block(cell: Cell | None) -> Text:
    number = f"{look.percent(cell.mean if cell else None):>5}"
    if cell is None:
        return Text(number)
    back = look.colour(cell.mean)
    return Text(number, style=Style(color=look.ink(back), bgcolor=back))


def _pieces(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[i : i + size] for i in range(0, len(items), size)]

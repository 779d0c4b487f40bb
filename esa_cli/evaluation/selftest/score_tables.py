"""The tables of `esa selftest`, as rich renderables: scores, scores by depth, reasons of misses.

    score     mean over the questions
    retained  score / score of the same test's dense rows, all their lengths together
    recall    mean over the questions that have one; by layer likewise

Dense rows, the model's own attention inside its window, are the ceiling and not in the tables. A
cell without questions is "–", never 0. Every colour has its number beside it. A table that would be
wider than `width` is divided.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.style import Style
from rich.table import Table
from rich.text import Text

from esa_cli.evaluation.row_run import Share, reason

T = TypeVar("T")
Row = Mapping[str, Any]
"""One question: `test`, `method`, `length`, `question`, `score` and further fields of the run."""

Z95 = 1.959963984540054
REASONS = ("answered", "not selected", "selected, not used")
UNKNOWN = "not known"
"""In place of a `why` of null."""
TENTHS = 10
NAME = 16
"""The most columns of a method's name; a longer one is folded."""
SCALE = ("#2a1551", "#333b86", "#226a94", "#1f9788", "#6cc25a", "#f6e53c")
"""Colours of 0, 0.2, ... 1. Their brightness only rises, so they are readable in grey."""


class _Recall(BaseModel):
    mean: Share | None = None
    layers: list[Share | None] | None = None


class _CheckedRow(BaseModel):
    model_config = ConfigDict(strict=True)

    test: str
    method: str
    length: int
    question: str
    score: Share
    depth: Share | None = None
    tokens: dict[str, Any] | None = None
    time: dict[str, float | None] | None = None
    recall: _Recall | None = None
    why: str | None = None


def wrong(row: Row) -> str:
    """Says what is wrong with a row of `esa selftest`; empty for a valid one."""
    return reason(_CheckedRow, row)


def wilson(mean: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share `mean` of `n` trials. A score between 0 and 1 counts as
    that share of a success, for which the interval is a little too wide."""
    spread = Z95 * Z95 / n
    centre = (mean + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(mean * (1 - mean) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_score(rows: Sequence[Row]) -> float:
    return math.fsum(row["score"] for row in rows) / len(rows)


def report(rows: Sequence[Row], width: int = 80) -> RenderableType:
    """All tables of a run, test by test."""
    if not rows:
        return Text("no questions were asked")
    asked = [row for row in rows if not row.get("dense")]
    ceilings = _grouped((row for row in rows if row.get("dense")), "test")
    by_test = _grouped(asked, "test")
    parts: list[RenderableType] = []
    for test in sorted({*ceilings, *by_test}):
        own = by_test.get(test, [])
        parts += [*_scores(test, own, ceilings.get(test, []), width), Text()]
        if any(row.get("depth") is not None for row in own):
            parts += [*_heat_maps(test, own, width), Text()]
    return Constrain(Group(*parts, *_misses(asked)), width)


def _grouped(rows: Iterable[Row], field: str) -> dict[Any, list[Row]]:
    """The rows by a field's value, in order of the values."""
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[row[field]].append(row)
    return dict(sorted(groups.items()))


def _scores(
    test: str, rows: Sequence[Row], dense: Sequence[Row], width: int
) -> Iterator[RenderableType]:
    """Methods x lengths: the score, the share of the dense score, and the number of questions."""
    yield _title(test, "score in %, in brackets the share of the dense score")
    ceiling = mean_score(dense) if dense else None
    for lengths in _pieces([*_grouped(rows, "length")], max(1, (width - NAME - 10) // 11)):
        table = _table("method", *_short(lengths), "n")
        for method, own in _grouped(rows, "method").items():
            cells = _grouped(own, "length")
            counts = sorted({len(cells[length]) for length in lengths if length in cells})
            numbers = "–".join(map(str, sorted({counts[0], counts[-1]}))) if counts else "–"
            scores = (_score(cells.get(length), ceiling) for length in lengths)
            table.add_row(_plain(method), *scores, numbers)
        yield table
    if ceiling is None:
        yield Text("no dense rows, so no retained scores", style="dim")
        return
    low, high = wilson(ceiling, len(dense))
    labels = ", ".join(_short([*_grouped(dense, "length")]))
    text = f"dense ceiling {_percent(ceiling)} at {labels}, n {len(dense)}"
    interval = f", 95 % {_percent(low)}–{_percent(high)}; n counts questions a length"
    yield Text(text + interval, style="dim")


def _score(rows: Sequence[Row] | None, ceiling: float | None) -> Text:
    if not rows:
        return Text("–", style="dim")
    mean = mean_score(rows)
    text = Text(_percent(mean), style="bold")
    if ceiling:
        text.append(f" {f'({_percent(mean / ceiling)})':>5}", style="not bold")
    return text


def _heat_maps(test: str, rows: Sequence[Row], width: int) -> Iterator[RenderableType]:
    """Depth (down) x length (across), one map a method, side by side."""
    maps = []
    for method, own in _grouped(rows, "method").items():
        columns = _grouped(own, "length")
        for lengths in _pieces([*_grouped(rows, "length")], max(1, (width - 8) // 9)):
            table = Table(box=None, padding=0, title=_plain(method), title_style="bold")
            table.add_column(justify="right")
            for label in _short(lengths):
                table.add_column(f" {label}", justify="right", header_style="dim")
            for tenth in range(TENTHS):
                depth = Text(f"{tenth * 10}–{tenth * 10 + 10}", style="dim")
                cells = (_at_depth(columns.get(length, ()), tenth) for length in lengths)
                table.add_row(depth, *cells)
            maps.append(table)
    yield _title(test, "score in % by depth of the fact in % (down) and length (across)")
    yield Columns(maps, padding=(0, 3))
    yield Text("–  not asked", style="dim")


def _at_depth(rows: Iterable[Row], tenth: int) -> Text:
    """The score of the facts in a tenth of the document; a depth on an edge is in the later one."""
    inside = [
        row
        for row in rows
        if row.get("depth") is not None
        and min(int(row["depth"] * TENTHS + 1e-9), TENTHS - 1) == tenth
    ]
    if not inside:
        return Text(f"{'–':>5}")
    mean = mean_score(inside)
    place = round(mean * (len(SCALE) - 1))
    ink = "#ffffff" if place < len(SCALE) // 2 else "#000000"
    return Text(f"{_percent(mean):>5}", style=Style(color=ink, bgcolor=SCALE[place]))


def _misses(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """Counts of each reason, and the mean recall; all lengths together."""
    seen = {row.get("why") or UNKNOWN for row in rows}
    names = [*REASONS, *sorted(seen - {*REASONS})]
    table = _table("test", "method", *map(_printable, names), "recall", "least", names=2)
    for test, own in _grouped(rows, "test").items():
        for method, same in _grouped(own, "method").items():
            counts = Counter(row.get("why") or UNKNOWN for row in same)
            recalls = [row["recall"] for row in same if row.get("recall")]
            mean = _mean(recall.get("mean") for recall in recalls)
            layers = zip_longest(*(recall.get("layers") or [] for recall in recalls))
            by_layer = [share for share in map(_mean, layers) if share is not None]
            shares = (mean, min(by_layer, default=None))
            table.add_row(
                _plain(test), _plain(method), *(str(counts[name]) for name in names),
                *("–" if share is None else _percent(share) for share in shares),
            )  # fmt: skip
    yield Text("Why answers were missed").append(" (questions, all lengths)", style="dim")
    yield table
    note = (
        "recall: the share of the facts in view, in %, mean over layers (from text: in the first "
        "three passages); least: of the layer with the smallest"
    )
    yield Text(note, style="dim")


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _table(*headers: str, names: int = 1) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for i, header in enumerate(headers):
        if i < names:
            table.add_column(Text(header), max_width=NAME, overflow="fold")
        else:
            table.add_column(Text(header), justify="right")
    return table


def _title(test: str, what: str) -> Text:
    return Text(_printable(test), style="bold").append(f"  {what}", style="not bold dim")


def _plain(text: str) -> Text:
    return Text(_printable(text))


def _printable(text: str) -> str:
    """The text on one line, without control characters that would act on a terminal."""
    return "".join(c for c in " ".join(text.split()) if c.isprintable())


def _percent(share: float) -> str:
    return f"{share * 100:.0f}"


def _short(lengths: Sequence[int]) -> list[str]:
    """32000 -> "32k"; in full where two would be equal."""
    short = []
    for n in lengths:
        size, unit = (1_000_000, "M") if n >= 1_000_000 else (1000, "k") if n >= 1000 else (1, "")
        short.append(f"{n / size:.1f}".removesuffix(".0") + unit)
    return short if len({*short}) == len(short) else [f"{n:,}" for n in lengths]


def _pieces(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[i : i + size] for i in range(0, len(items), size)]

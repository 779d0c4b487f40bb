"""Progress on standard error: of a prefill, of a count of tokens, of a self-test.

On a terminal a bar, a spinner or a table; elsewhere a plain line at most every `LINE_EVERY_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.output.terminal import Reporter, clean
from esa_cli.system.machine import time_text
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from rich.console import RenderableType

Place = tuple[str, str, int]
"""Test, method and length."""


def token_progress(
    reporter: Reporter, label: str, show: Callable[[str], None] | None = None, unit: str = "tokens"
) -> Progress:
    """A spinner, or a line now and then, with the rate and the time left.

    Args:
        show: shows a line on a terminal in place of the reporter's spinner. unit: what is counted.
    """
    show = show or reporter.waiting
    started = time.monotonic()
    if not reporter.live:
        reporter.note(f"esa: {label}")
    now_and_then = reporter.throttled()

    def progress(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - started, 1e-9)
        left = time_text((total - done) / max(rate, 1e-9))
        text = f"{done:,} of {total:,} {unit}, {rate:,.0f} {unit}/s, {left} left"
        if reporter.live:
            show(f"{label}: {text}")
        elif done < total:
            now_and_then(text)

    return progress


@contextmanager
def prefill_bar(reporter: Reporter, total: int, expected_s: float) -> Iterator[Progress]:
    """Progress of a prefill of `total` tokens that is expected to take so many seconds."""
    reporter.settle()
    if not reporter.live:
        yield token_progress(reporter, f"reading {total:,} tokens, about {time_text(expected_s)}")
        return
    with _bar(reporter.console) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda done, all_: bar.update(task, completed=done, total=all_)


def _bar(console: Any) -> Any:
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Tokens(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = f", {task.speed:,.0f} tokens/s" if task.speed else ""
            return Text(f"{int(task.completed):,} of {int(task.total):,} tokens{speed}")

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TaskProgressColumn(),
        Tokens(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        expand=False,
    )


class SelftestDisplay:
    """The `SelftestEvents` of the command: on a terminal a table of scores above a line on
    what is being done; elsewhere a line for each prefill and each method.

    Args:
        earlier: rows of an earlier run, which the table counts too.
    """

    def __init__(self, reporter: Reporter, earlier: Iterable[dict[str, Any]] = ()) -> None:
        self.reporter = reporter
        self._scores: dict[Place, list[float]] = {}
        for row in earlier:
            self._add(row)
        self._place: Place | None = None
        self._now: list[float] = []
        self._test, self._line = "", ""
        self._live: Any = None

    def reading(self, test: str, length: int, names: Sequence[str], total: int) -> Progress:
        self._flush()
        self._test = test
        label = f"{test} at {length:,} tokens: reading for {', '.join(names)}"
        self._show(label)
        return token_progress(self.reporter, label, self._show)

    def row(self, row: dict[str, Any]) -> None:
        place = self._add(row)
        if place != self._place:
            self._flush()
            self._place = place
        self._now.append(row["score"])
        mark = "right" if row["score"] >= 1 else f"{row['score']:.0%}" if row["score"] else "wrong"
        answer = " ".join(row["answer"].split())[:50]
        self._show(f"{row['method']}, {row['question']}: {mark}: {answer}")

    def note(self, text: str) -> None:
        self.reporter.note(f"esa: {text}")

    def finish(self) -> None:
        """Writes the line of the last method, and takes the table away."""
        self._flush()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _add(self, row: dict[str, Any]) -> Place:
        place = (row["test"], row["method"], row["length"])
        self._scores.setdefault(place, []).append(row["score"])
        return place

    def _flush(self) -> None:
        """The line about the last method; on a terminal the table has it."""
        if self._place is not None and not self.reporter.live:
            test, method, length = self._place
            self.note(f"{test} at {length:,}: {method} {sum(self._now):g} of {len(self._now)}")
        self._place, self._now = None, []

    def _show(self, line: str) -> None:
        if not self.reporter.live:
            return
        self._line = line
        if self._live is None:
            from rich.live import Live

            self.reporter.settle()
            self._live = Live(console=self.reporter.console, transient=True, refresh_per_second=4)
            self._live.start()
        self._live.update(self._table())

    def _table(self) -> RenderableType:
        """Right answers of the current test, methods x lengths, and the line under them."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        here = {
            place[1:]: scores for place, scores in self._scores.items() if place[0] == self._test
        }
        line = Text(clean(self._line), no_wrap=True, overflow="ellipsis")
        if not here:
            return line
        lengths = sorted({length for _, length in here})
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(Text(self._test))
        for length in lengths:
            table.add_column(Text(f"{length:,}"), justify="right")
        for method in dict.fromkeys(method for method, _ in here):
            found = [here.get((method, length), []) for length in lengths]
            cells = [f"{sum(one):g} of {len(one)}" if one else "" for one in found]
            table.add_row(Text(clean(method)), *cells)
        return Group(table, line)

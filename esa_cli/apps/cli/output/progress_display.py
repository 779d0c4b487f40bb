"""Progress on standard error: of a prefill, of a count of tokens, of a self-test.

On a terminal a bar or a spinner; elsewhere a plain line at most every `LINE_EVERY_S`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.system.machine import time_text
from esa_cli.system.progress import Progress

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
    if label and not reporter.live:
        reporter.note(f"esa: {label}")
    now_and_then = reporter.throttled()

    def progress(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - started, 1e-9)
        left = time_text((total - done) / max(rate, 1e-9))
        text = f"{done:,} of {total:,} {unit}, {rate:,.0f} {unit}/s, {left} left"
        if reporter.live:
            show(f"{label}: {text}" if label else text)
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
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    def speed() -> str:
        seconds = bar.tasks[0].speed
        return f", {seconds:,.0f} tokens/s" if seconds else ""

    columns = (
        TextColumn("reading"), BarColumn(bar_width=20), TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[count]}"), TimeRemainingColumn(),
    )  # fmt: skip
    with Bar(*columns, console=reporter.console, transient=True) as bar:
        task = bar.add_task("reading", total=total, count="")

        def progress(done: int, every: int) -> None:
            count = f"{done:,} of {every:,} tokens{speed()}"
            bar.update(task, completed=done, total=every, count=count)

        yield progress


class SelftestDisplay:
    """The `SelftestEvents` of the command: on a terminal a spinner with the score so far;
    elsewhere a line for each prefill and each method.

    Args:
        earlier: rows of an earlier run, which the scores count too.
    """

    def __init__(self, reporter: Reporter, earlier: Iterable[dict[str, Any]] = ()) -> None:
        self.reporter = reporter
        self._scores: dict[Place, list[float]] = {}
        self._place: Place | None = None
        for row in earlier:
            self._add(row)

    def reading(self, test: str, length: int, names: Sequence[str], total: int) -> Progress:
        self.finish()
        label = f"{test} at {length:,} tokens: reading for {', '.join(names)}"
        return token_progress(self.reporter, label)

    def row(self, row: dict[str, Any]) -> None:
        place = self._add(row)
        if place != self._place:
            self.finish()
            self._place = place
        answer = " ".join(row["answer"].split())[:50]
        self.reporter.waiting(f"{self._line(place)}: {row['question']}: {answer}")

    def note(self, text: str) -> None:
        self.reporter.note(f"esa: {text}")

    def finish(self) -> None:
        """Writes the line of the last method, and takes the spinner away."""
        self.reporter.settle()
        if self._place is not None:
            self.note(self._line(self._place))
        self._place = None

    def _add(self, row: dict[str, Any]) -> Place:
        place = (row["test"], row["method"], row["length"])
        self._scores.setdefault(place, []).append(row["score"])
        return place

    def _line(self, place: Place) -> str:
        test, method, length = place
        scores = self._scores[place]
        return f"{test} at {length:,}: {method} {sum(scores):g} of {len(scores)}"

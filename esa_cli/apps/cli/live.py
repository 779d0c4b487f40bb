"""How a self-test is going: on a terminal a table of the scores so far with a line under it about
what is done just now; elsewhere a line for each reading and each method.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli import progress_display as progress
from esa_cli.apps.cli.terminal import Reporter, clean

if TYPE_CHECKING:
    from rich.console import RenderableType

Place = tuple[str, str, int]
"""Test, method and length."""


class Listener:
    """Hears a run, see `selftest.engine.Listener`.

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

    def reading(
        self, test: str, length: int, names: Sequence[str], total: int
    ) -> progress.Progress:
        self._flush()
        self._test = test
        label = f"{test} at {length:,} tokens: reading for {', '.join(names)}"
        self._show(label)
        return progress.reading(self.reporter, label, self._show)

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
        """Says what is left to say, and takes the table away."""
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

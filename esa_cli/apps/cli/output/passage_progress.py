"""Progress of `esa collect` and `esa count`: passages read, places found, and the time left."""

from __future__ import annotations

import time

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.system.machine import time_text


def places_text(count: int) -> str:
    """`1 place`, `2,451 places`."""
    return f"{count:,} place" + "s" * (count != 1)


class PassageProgress:
    """A spinner on a terminal, from the finding of passages on; elsewhere a line now and then."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._note = reporter.waiting if reporter.live else reporter.throttled()
        self._started, self._first = 0.0, -1
        self._passages = (0, 0)
        reporter.waiting("finding passages")

    def show(self, done: int, total: int, places: int) -> None:
        """Shows passages read, those to be read, and places found."""
        self._passages = (done, total)
        if self._first < 0:
            self._started, self._first = time.monotonic(), done
        each = (time.monotonic() - self._started) / max(1, done - self._first)
        left = f", {time_text(each * (total - done))} left" if done > self._first else ""
        self._note(f"{done:,} of {total:,} passages, {places_text(places)}{left}")

    def show_again(self, places: int) -> None:
        """Brings the spinner back, which what was printed has taken away."""
        if self._reporter.live:
            self.show(*self._passages, places)

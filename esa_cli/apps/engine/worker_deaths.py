"""Counts the workers that died, by the task that each was doing."""

from __future__ import annotations

from collections import Counter

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import ResourceError

MOST_DEATHS = 3
"""Workers that may die of one task."""
STARTING = -1
"""In place of a task's number, of workers that die before they have one."""


class WorkerDeaths:
    """The deaths of one run.

    Args:
        hint: what to try where too many die.
    """

    def __init__(self, reporter: Reporter, hint: str) -> None:
        self._reporter, self._hint, self._deaths = reporter, hint, Counter[int]()

    def add(self, task: int, why: str, error: Exception | None = None) -> None:
        """A worker died of the task with this number, or `STARTING`. Raises ResourceError: too
        many did."""
        self._deaths[task] += 1
        if self._deaths[task] >= MOST_DEATHS:
            when = "at their start" if task == STARTING else "of one task"
            raise ResourceError(f"{MOST_DEATHS} workers died {when}: {why}", self._hint) from error
        again = (
            "another one starts" if task == STARTING else "its task is done again by another one"
        )
        self._reporter.warn(f"esa: a worker died; {again}")

    def forget(self, task: int) -> None:
        """The task is done, or a worker has started: earlier deaths do not count."""
        del self._deaths[task]

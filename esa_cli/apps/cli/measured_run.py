"""A run whose rows are in a journal, self-tests and benchmarks: its options, and its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.engine_options import ShardOptions
from esa_cli.apps.cli.options.output_paths import goes_on
from esa_cli.errors import EsaError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.system.jsonl import Journal


@dataclass(frozen=True)
class RowOptions(ShardOptions):
    """The options of commands that write rows by method."""

    methods: options.MethodsOrDefault = None
    time_limit: options.TimeLimit = None
    out: options.Out = None
    as_json: options.Json = False
    quiet: options.Quiet = False

    @cached_property
    def until(self) -> float | None:
        """The end of the time limit by `time.monotonic`, from the first call."""
        return None if self.time_limit is None else time.monotonic() + 60 * self.time_limit


def measure(
    journal: Journal,
    rows: RowOptions,
    reporter: Reporter,
    *,
    run: Callable[[], bool],
    finish: Callable[[], None],
    show: Callable[[bool], None],
) -> None:
    """Runs, then shows the scores; after an error or Ctrl-C those that were measured before it.

    Args:
        run: asks what has no row; False when the time was up before the end. finish: takes the
            progress away. show: is called with whether all was asked.

    Raises:
        EsaError, KeyboardInterrupt: of `run`.
    """
    try:
        with journal:
            complete = run()
    except (KeyboardInterrupt, EsaError):
        finish()
        if journal.rows:
            show(False)
            reporter.note(f"esa: stopped after {len(journal.rows)} rows{goes_on(rows.out)}")
        raise
    finish()
    if not complete:
        reporter.note(f"esa: the time limit was reached{goes_on(rows.out)}")
    show(complete)

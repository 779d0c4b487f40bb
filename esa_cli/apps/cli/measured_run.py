"""A run whose rows are in a journal: self-tests and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from esa_cli.apps.cli.run_facts import goes_on
from esa_cli.errors import EsaError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.system.jsonl import Journal


def measure(
    journal: Journal,
    out: Path | None,
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
            reporter.note(f"esa: stopped after {len(journal.rows)} rows{goes_on(out)}")
        raise
    finish()
    if not complete:
        reporter.note(f"esa: the time limit was reached{goes_on(out)}")
    show(complete)

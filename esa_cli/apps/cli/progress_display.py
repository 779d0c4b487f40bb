"""How far a reading is, for commands that read many times: a spinner, or a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from esa_cli.apps.cli.terminal import LINE_EVERY_S, Reporter
from esa_cli.system.machine import time_text

Progress = Callable[[int, int], None]


def reading(reporter: Reporter, label: str, show: Callable[[str], None] | None = None) -> Progress:
    """A progress(tokens done, tokens in all) that shows them with the rate and the time left.

    Args:
        show: shows a line on a terminal in place of the reporter's spinner.
    """
    show = show or reporter.waiting
    started = shown = time.monotonic()
    if not reporter.live:
        reporter.note(f"esa: {label}")

    def progress(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        rate = done / max(now - started, 1e-9)
        left = time_text((total - done) / max(rate, 1e-9))
        text = f"{done:,} of {total:,} tokens, {rate:,.0f} tokens/s, {left} left"
        if reporter.live:
            show(f"{label}: {text}")
        elif now - shown > LINE_EVERY_S and done < total:
            shown = now
            reporter.note(f"esa: {text}")

    return progress

"""What people see: tables and answers on standard output, progress on standard error.

On a terminal there are bars and colours; elsewhere plain lines, and now and then one of progress.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..machine import size_text, time_text

LINE_EVERY_S = 10.0
_STAGES = {
    "download": "fetching the model",
    "extract": "unpacking the model",
    "hash": "checking the model",
    "wait": "waiting for another esa that prepares the same model",
    "import": "starting",
    "convert": "preparing the model, once (half a minute)",
    "save": "saving the prepared model",
    "load": "loading the model",
}
_IN_BYTES = ("download", "extract", "hash")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Text without control characters: an answer must not steer the reader's terminal."""
    return _CONTROL.sub("", text)


def print_json(data: object) -> None:
    """One JSON object on standard output."""
    print(json.dumps(data, indent=2, ensure_ascii=False, default=str))


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output; in a pipe as wide as it needs to be."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, force_terminal=sys.stdout.isatty())
    if not console.is_terminal:
        console.width = 1000
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(headers))
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


class Reporter:
    """Shows on standard error what is going on.

    Args:
        quiet: show nothing at all.
    """

    def __init__(self, quiet: bool = False) -> None:
        from rich.console import Console

        self.quiet = quiet
        self.console = Console(stderr=True, highlight=False, force_terminal=sys.stderr.isatty())
        self.live = self.console.is_terminal and not quiet
        self._status: Any = None
        self._stage, self._shown = "", 0.0

    def note(self, text: str, dim: bool = True) -> None:
        """One line."""
        if not self.quiet:
            style = "dim" if dim else None
            self.console.print(text, style=style, markup=False, soft_wrap=True)

    def stage(self, stage: str, done: int, total: int | None, /) -> None:
        """A `models.Progress`: a spinner with the bytes so far, or a line for each stage."""
        text = _STAGES.get(stage, stage)
        if done and stage in _IN_BYTES:
            whole = f" of {size_text(total)}" if total else ""
            text += f", {size_text(done)}{whole}"
        elif done and total:
            text += f", {done / total:.0%}"
        if self.live:
            self._spin(text)
        elif not self.quiet:
            now = time.monotonic()
            if stage != self._stage or (done and now - self._shown > LINE_EVERY_S):
                self._shown = now
                self.note(f"esa: {text}")
        self._stage = stage

    def _spin(self, text: str) -> None:
        if self._status is None:
            self._status = self.console.status("")
            self._status.start()
        from rich.text import Text

        self._status.update(Text(text))

    def waiting(self, text: str) -> None:
        """A spinner until `settle`; nothing where there is no terminal."""
        if self.live:
            self._spin(text)

    def settle(self) -> None:
        """Takes the spinner away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    @contextmanager
    def reading(self, total: int, expected_s: float) -> Iterator[Callable[[int, int], None]]:
        """Progress of reading `total` tokens, expected to take so many seconds."""
        self.settle()
        if self.live:
            with _bar(self.console) as bar:
                task = bar.add_task("reading", total=total)
                yield lambda done, all_: bar.update(task, completed=done, total=all_)
        else:
            self.note(f"esa: reading {total:,} tokens, about {time_text(expected_s)}")
            yield _Lines(self.note)

    def answer(self, piece: str) -> None:
        """A piece of the answer, on standard output at once."""
        self.settle()
        sys.stdout.write(clean(piece))
        sys.stdout.flush()


class _Lines:
    """Reading progress as a plain line every few seconds."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note, self.started = note, time.monotonic()
        self.shown = self.started

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self.shown < LINE_EVERY_S or done >= total:
            return
        self.shown = now
        rate = done / (now - self.started)
        left = time_text((total - done) / rate)
        self.note(f"esa: {done:,} of {total:,} tokens, {rate:,.0f} tokens/s, {left} left")


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

"""Terminal output: tables and answers on standard output, progress on standard error.

On a terminal there are spinners and colours; elsewhere plain lines, and now and then one of
progress. Where the reader of the output has gone, a BrokenPipeError reaches `__main__`.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Self, TextIO

from esa_cli.system.machine import size_text, time_text
from esa_cli.system.progress import Progress

LINE_EVERY_S = 10.0
MIN_COLUMNS = 32
_STAGES = {
    "download": "fetching the model",
    "extract": "unpacking the model",
    "wait": "waiting for another esa that prepares the same model",
    "import": "starting",
    "convert": "preparing the model, once",
    "save": "saving the prepared model",
    "load": "loading the model",
}
_BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Unicode's property Bidi_Control
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}]")


def clean(text: str) -> str:
    """Removes control and bidi characters: an answer must not steer the reader's terminal."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """Cleans a text and joins its lines: names of files may have line breaks."""
    return clean(text).replace("\n", " ")


def count_text(number: int, noun: str) -> str:
    """Writes a number with its noun: `1 document`, `2,451 documents`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def format_json(data: object, indent: int | None = None) -> str:
    """Formats data as JSON, with control and bidi characters escaped."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_json(data: object) -> None:
    """Prints one JSON object on standard output."""
    print(format_json(data, indent=2))


def print_text(text: str) -> None:
    """Prints text that is to be saved: unchanged, but without control characters on a terminal."""
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table that is as wide as the terminal, or in a pipe as wide as its cells."""
    cells = [[clean(cell).expandtabs() for cell in row] for row in rows]
    console = make_console(sys.stdout)
    if not console.is_terminal:
        lines = _plain_lines([list(headers), *cells] if any(headers) else cells)
        print("".join(f"{line}\n" for line in lines), end="")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=any(headers), header_style="bold")
    for header in headers:
        table.add_column(header, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _plain_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Aligns the cells of a table, in a tenth of the time that rich takes."""
    from rich.cells import cell_len

    lines = [
        line
        for row in rows
        for line in zip_longest(*(cell.split("\n") for cell in row), fillvalue="")
    ]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = zip(line, widths, strict=True)
        yield "  ".join(cell + " " * (width - cell_len(cell)) for cell, width in cells).rstrip()


def make_console(stream: TextIO) -> Any:
    """Makes a console of rich that prints `:key:` as written, removes control characters, and
    raises BrokenPipeError where the reader has gone."""
    from rich.console import Console
    from rich.segment import Segment

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "the reader of the output has ended")

        def render(self, *given: Any, **more: Any) -> Iterator[Segment]:
            for segment in super().render(*given, **more):
                is_plain = not segment.control
                yield Segment(clean(segment.text), segment.style) if is_plain else segment

    console = Plain(file=stream, highlight=False, emoji=False, force_terminal=stream.isatty())
    if console.width < 1:  # COLUMNS=0 means that the width is not known
        console.width = shutil.get_terminal_size().columns
    return console


class Reporter:
    """Progress, notes and warnings on standard error; its `with` block ends without a spinner.

    Args:
        quiet: show warnings alone.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = make_console(sys.stderr)
        self.live = self.console.is_terminal and not quiet
        self._status: Any = None
        self._stage = ""
        self._note_seldom = self.throttled()
        self.is_brief = False
        """Whether notes on single documents are left out, as there may be many."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.settle()

    def note(self, text: str, dim: bool = True) -> None:
        """Prints one line on standard error, unless --quiet is given."""
        if not self.quiet:
            self._print(text, "dim" if dim else None)

    def warn(self, text: str) -> None:
        """Prints one line on standard error, with --quiet, too."""
        self._print(text, None)

    def left_out(self, message: str, hint: str = "") -> None:
        """Warns of a document that is left out, and says why."""
        self.warn(f"esa: left out: {message}; {hint}".rstrip("; "))

    def _print(self, text: str, style: str | None) -> None:
        self.console.print(one_line(text), style=style, markup=False, soft_wrap=True)

    def stage(self, stage: str, done: int, total: int | None, /) -> None:
        """Shows a `StageProgress`: on a terminal a spinner, elsewhere one line a stage."""
        text = _STAGES.get(stage, stage)
        if done and stage in ("download", "extract"):
            whole = f" of {size_text(total)}" if total else ""
            text += f", {size_text(done)}{whole}"
        elif done and total:
            text += f", {done / total:.0%}"
        self.waiting(text)
        if stage != self._stage and not self.live:
            self.note(f"esa: {text}")
        elif done and not self.live:
            self._note_seldom(text)
        self._stage = stage

    def prefill_progress(self, tokens: int, seconds: float) -> Progress:
        """Returns a callback for the progress of reading, which takes about so many seconds."""
        if self.live:
            return self.token_progress("reading")
        self.note(f"esa: reading {tokens:,} tokens, about {time_text(seconds)}")
        return self.token_progress("")

    def token_progress(self, label: str, unit: str = "tokens") -> Progress:
        """Returns a callback for (done, total) that shows a spinner with the rate and the time
        left; where there is no terminal, a line now and then."""
        started = time.monotonic()
        if label and not self.live:
            self.note(f"esa: {label}")
        note_seldom = self.throttled()

        def show_progress(done: int, total: int) -> None:
            rate = done / max(time.monotonic() - started, 1e-9)
            left = time_text((total - done) / max(rate, 1e-9))
            text = f"{done:,} of {total:,} {unit}, {rate:,.0f} {unit}/s, {left} left"
            self.waiting(f"{label}: {text}" if label else text)
            if done < total and not self.live:
                note_seldom(text)

        return show_progress

    def waiting(self, text: str) -> None:
        """Shows a spinner with a text on a terminal, until `settle` is called."""
        if not self.live:
            return
        if self._status is None:
            self._status = self.console.status("")
            self._status.start()
        from rich.text import Text

        self._status.update(Text(one_line(text)))

    def settle(self) -> None:
        """Removes the spinner."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def throttled(self) -> Callable[[str], None]:
        """Returns a function that notes a line, but none within `LINE_EVERY_S` of the last."""
        shown = time.monotonic()

        def note_seldom(text: str) -> None:
            nonlocal shown
            if (now := time.monotonic()) - shown > LINE_EVERY_S:
                shown = now
                self.note(f"esa: {text}")

        return note_seldom

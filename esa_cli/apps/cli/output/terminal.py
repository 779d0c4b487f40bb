"""Terminal output: tables and answers on standard output, progress on standard error.

On a terminal there are bars and colours; elsewhere plain lines, and now and then one of progress.
A reader who goes away is a BrokenPipeError; `__main__` knows what to do with it.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Self, TextIO

from esa_cli.system.machine import size_text

LINE_EVERY_S = 10.0
NARROW = 32
"""Columns that a text has, at least."""
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
    """Text without control and bidi characters: an answer must not steer the reader's terminal."""
    return _CONTROL.sub("", text)


def one_line(text: str) -> str:
    """Clean, and on one line: names of files may have line breaks."""
    return clean(text).replace("\n", " ")


def as_json(data: object, indent: int | None = None) -> str:
    """JSON that does not steer a terminal either: it escapes what `json` does not."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_json(data: object) -> None:
    """One JSON object on standard output."""
    print(as_json(data, indent=2))


def print_text(text: str) -> None:
    """Text to be saved: to the letter, but clean on a terminal."""
    sys.stdout.write(clean(text) if sys.stdout.isatty() else text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output: as wide as a terminal, in a pipe as wide as it needs to be."""
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
    """A table's lines without styles, in a tenth of the time of rich."""
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
    """rich's console: `:key:` is no emoji, no text steers the terminal, and rich does not end the
    program when the reader has gone."""
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
    if console.width < 1:  # COLUMNS=0 means that it is not known
        console.width = shutil.get_terminal_size().columns
    return console


class Reporter:
    """Shows progress on standard error; leaving its `with` block removes the spinner.

    Args:
        quiet: show warnings alone.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = make_console(sys.stderr)
        self.live = self.console.is_terminal and not quiet
        self._status: Any = None
        self._stage = ""
        self._now_and_then = self.throttled()
        self._explained = set[str]()
        self.is_brief = False
        """Whether notes on single documents are left out, as one line reports all of them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.settle()

    @contextmanager
    def brief(self) -> Iterator[None]:
        """Sets `is_brief` in its block."""
        before, self.is_brief = self.is_brief, True
        try:
            yield
        finally:
            self.is_brief = before

    def note(self, text: str, dim: bool = True) -> None:
        """One line, whatever is in the text."""
        if not self.quiet:
            self._print(text, "dim" if dim else None)

    def warn(self, text: str) -> None:
        """One line that is worth knowing even where progress is not."""
        self._print(text, None)

    def left_out(self, message: str, hint: str = "") -> None:
        """Warns of a document that is left out, and why."""
        self.warn(f"esa: left out: {message}; {hint}".rstrip("; "))

    def explain(self, text: str) -> None:
        """A note that makes others clear, the first time alone."""
        if text not in self._explained:
            self._explained.add(text)
            self.note(text)

    def _print(self, text: str, style: str | None) -> None:
        self.console.print(one_line(text), style=style, markup=False, soft_wrap=True)

    def stage(self, stage: str, done: int, total: int | None, /) -> None:
        """A `StageProgress`: on a terminal a spinner with the bytes so far, else a line a stage."""
        text = _STAGES.get(stage, stage)
        if done and stage in ("download", "extract"):
            whole = f" of {size_text(total)}" if total else ""
            text += f", {size_text(done)}{whole}"
        elif done and total:
            text += f", {done / total:.0%}"
        if self.live:
            self.waiting(text)
        elif stage != self._stage:
            self.note(f"esa: {text}")
            self._now_and_then = self.throttled()
        elif done:
            self._now_and_then(text)
        self._stage = stage

    def waiting(self, text: str) -> None:
        """A spinner until `settle`; nothing where there is no terminal."""
        if not self.live:
            return
        if self._status is None:
            self._status = self.console.status("")
            self._status.start()
        from rich.text import Text

        self._status.update(Text(one_line(text)))

    def settle(self) -> None:
        """Takes the spinner away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def throttled(self) -> Callable[[str], None]:
        """Writes a line, but none within `LINE_EVERY_S` of the last one or of now."""
        shown = time.monotonic()

        def note(text: str) -> None:
            nonlocal shown
            if (now := time.monotonic()) - shown > LINE_EVERY_S:
                shown = now
                self.note(f"esa: {text}")

        return note

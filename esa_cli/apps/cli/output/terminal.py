"""Prints tables and texts on standard output, and progress and warnings on standard error.

A terminal gets spinners and colours; files and pipes get plain lines. If the program that reads the
output has ended, a BrokenPipeError reaches `__main__`."""

from __future__ import annotations

import errno
import json
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import zip_longest
from typing import Any, TextIO

from esa_cli.system.machine import format_duration, format_size
from esa_cli.system.progress import Progress

LINE_EVERY_S = 10.0
_STAGES = {
    "download": "fetching the model",
    "extract": "unpacking the model",
    "wait": "waiting for another esa process that prepares the same model",
    "import": "starting",
    "convert": "preparing the model, once",
    "save": "saving the prepared model",
    "load": "loading the model",
}
_BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # Unicode's property Bidi_Control
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDI}]")


def strip_control_chars(text: str) -> str:
    """Removes control and bidirectional characters, so that a text cannot control the terminal."""
    return _CONTROL.sub("", text)


def make_printable_line(text: str) -> str:
    """Removes control characters and line breaks, which names of files may contain, from a text."""
    return strip_control_chars(text).replace("\n", " ")


def pluralize(number: int, noun: str) -> str:
    """Formats a number with its noun: `1 document`, `2,451 documents`."""
    return f"{number:,} {noun}" + "s" * (number != 1)


def format_json(data: object, indent: int | None = None) -> str:
    """Formats data as JSON, with control characters and bidirectional characters escaped."""
    text = json.dumps(data, indent=indent, ensure_ascii=False, default=str)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_json(data: object) -> None:
    print(format_json(data, indent=2))


def print_text_safely(text: str) -> None:
    """Prints a text on standard output: cleaned on a terminal, unchanged in a file or pipe."""
    sys.stdout.write(strip_control_chars(text) if sys.stdout.isatty() else text)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table; on a terminal, but not in a pipe, cells are wrapped to fit its width."""
    cells = [[strip_control_chars(cell).expandtabs() for cell in row] for row in rows]
    console = make_rich_console(sys.stdout)
    if not console.is_terminal:
        lines = _align_table_cells([list(headers), *cells] if any(headers) else cells)
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


def _align_table_cells(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table with aligned columns, ten times faster than the library rich."""
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


def make_rich_console(stream: TextIO) -> Any:
    """Makes a console without emoji and control characters, which raises BrokenPipeError."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "the program that reads the output has ended")

        def render(self, *arguments: Any, **settings: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments, **settings):
                if not segment.control:
                    segment = Segment(strip_control_chars(segment.text), segment.style)
                yield segment

    is_terminal = stream.isatty()
    console = SafeConsole(file=stream, highlight=False, emoji=False, force_terminal=is_terminal)
    if console.width < 1:  # COLUMNS=0 means that the width is not known
        console.width = shutil.get_terminal_size().columns
    return console


class Reporter(AbstractContextManager["Reporter"]):
    """A context manager that prints warnings and, unless `quiet`, progress on standard error. If it
    is `verbose`, `hold_warnings` does nothing."""

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self.quiet, self.is_verbose = quiet, verbose
        self._held: list[str] | None = None
        self.console = make_rich_console(sys.stderr)
        self.live = self.console.is_terminal and not quiet
        self._status: Any = None
        self._stage = ""
        self._noted_s = time.monotonic()
        self.is_brief = False
        """Whether warnings about single documents are left out, as there may be many documents."""

    def __exit__(self, *error: object) -> None:
        self.clear_spinner()
        for warning in self.release_warnings():
            self.warn(warning)

    def hold_warnings(self, even_if_quiet: bool = False) -> None:
        """Holds warnings, and leaves out dim notes, on a terminal or `even_if_quiet`."""
        if even_if_quiet or (self.live and not self.is_verbose):
            self._held = []

    def release_warnings(self) -> list[str]:
        """Returns the warnings that were held back. From now on all are printed again."""
        held, self._held = self._held, None
        return held or []

    def show_note(self, text: str, dim: bool = True) -> None:
        """Prints a note as one line on standard error, unless `quiet` is set."""
        if not (self.quiet or (dim and self._held is not None)):
            self._print_line(text, "dim" if dim else None)

    def show_note_if_due(self, text: str) -> None:
        """Prints a note of progress, but at most one in ten seconds."""
        if time.monotonic() - self._noted_s > LINE_EVERY_S:
            self._noted_s = time.monotonic()
            self.show_note(f"esa: {text}")

    def warn(self, text: str) -> None:
        """Prints a warning as one line on standard error, even if `quiet` is set."""
        if self._held is None:
            self._print_line(text, None)
        else:
            self._held.append(text)

    def warn_document_left_out(self, message: str, hint: str = "") -> None:
        self.warn(f"esa: left out: {message}; {hint}".rstrip("; "))

    def _print_line(self, text: str, style: str | None) -> None:
        is_wrapped = not self.console.is_terminal  # a terminal gets lines that end after words
        text = make_printable_line(text)
        self.console.print(text, style=style, markup=False, soft_wrap=is_wrapped)

    def show_stage(self, stage: str, done: int, total: int | None, /) -> None:
        """Shows how far the loading of a model is, in a spinner on a terminal or else as a line."""
        text = _STAGES.get(stage, stage)
        if done and stage in ("download", "extract"):
            whole = f" of {format_size(total)}" if total else ""
            text += f", {format_size(done)}{whole}"
        elif done and total:
            text += f", {done / total:.0%}"
        self.show_spinner(text)
        if stage != self._stage and not self.live:
            self.show_note(f"esa: {text}")
        elif done and not self.live:
            self.show_note_if_due(text)
        self._stage = stage

    def start_ingest_progress(self, token_count: int, expected_seconds: float) -> Progress:
        """Returns a callback that shows the progress of ingesting a number of tokens."""
        if not self.live:
            expected = format_duration(expected_seconds)
            self.show_note(f"esa: reading {token_count:,} tokens, about {expected}")
        return self.start_progress("reading" if self.live else "")

    def start_progress(self, label: str, unit: str = "tokens") -> Progress:
        """Returns a callback that shows progress, time left, and the rate since 0 were done."""
        started = time.monotonic()
        if label and not self.live:
            self.show_note(f"esa: {label}")
        self._noted_s = time.monotonic()

        def show_progress(done_count: int, total_count: int) -> None:
            nonlocal started
            text = f"{done_count:,} of {total_count:,} {unit}"
            if done_count:
                rate = done_count / max(time.monotonic() - started, 1e-9)
                left = format_duration((total_count - done_count) / rate)
                speed = f"{rate:,.0f}" if rate >= 1 else f"{rate:.1g}"
                text += f", {speed} {unit}/s, {left} left"
            else:
                started = time.monotonic()
            self.show_spinner(f"{label}: {text}" if label else text)
            if done_count < total_count and not self.live:
                self.show_note_if_due(text)

        return show_progress

    def show_spinner(self, text: str) -> None:
        """Shows a spinner with a text if standard error is a terminal."""
        if not self.live:
            return
        if self._status is None:
            self._status = self.console.status("")
            self._status.start()
        from rich.text import Text

        self._status.update(Text(make_printable_line(text)))

    def clear_spinner(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

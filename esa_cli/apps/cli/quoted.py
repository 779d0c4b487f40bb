"""An answer as it comes, and passages as lines under it."""

from __future__ import annotations

import shutil
from typing import IO

from esa_cli.apps.chat.transcript import place
from esa_cli.apps.cli.terminal import Reporter, clean
from esa_cli.qa.reply import Evidence, Reply

SHOWN = 3
"""Passages under an answer where nobody says how many."""
NOT_FOUND = "the documents may not contain the answer"
PIPE_WIDTH = 160


def one_line(passage: Evidence, width: int) -> str:
    """Place, weight and the first words of a passage, in `width` columns."""
    from rich.cells import cell_len, set_cell_size

    text = f"  {place(passage)} ({passage.weight:.0%}): {' '.join(passage.text.split())}"
    text = clean(text)
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def passages(asked: int | None, quiet: bool) -> int:
    """How many passages to show: as many as was asked for; else none where it is to be quiet."""
    return (0 if quiet else SHOWN) if asked is None else asked


def show_under(reply: Reply, count: int, reporter: Reporter) -> None:
    """Writes below an answer whether to trust it, and its best `count` passages."""
    if not reply.found:
        reporter.warn(f"  {NOT_FOUND}")
    if reply.cut:
        reporter.warn("  the answer was cut off; --max-new-tokens allows a longer one")
    width = shutil.get_terminal_size().columns if reporter.live else PIPE_WIDTH
    for passage in reply.evidence[:count]:
        reporter.warn(one_line(passage, max(width, 40)))


def in_full(evidence: tuple[Evidence, ...]) -> str:
    """Every passage with its number, its place and all its text."""
    parts = []
    for number, passage in enumerate(evidence, 1):
        chapter = f", {passage.chapter}" if passage.chapter else ""
        head = f"{number}. {place(passage)}{chapter} ({passage.weight:.0%})"
        body = "\n".join(f"   {line}" for line in passage.text.strip().splitlines())
        parts.append(clean(f"{head}\n{body}"))
    return "\n\n".join(parts)


class Spoken:
    """Writes pieces of an answer, without the white space before its first word."""

    def __init__(self, out: IO[str], reporter: Reporter) -> None:
        self.out, self.reporter, self.any = out, reporter, False

    def __call__(self, piece: str) -> None:
        piece = piece if self.any else piece.lstrip()
        if piece:
            self.any = True
            self.reporter.settle()
            self.out.write(clean(piece))
            self.out.flush()


def complain(reporter: Reporter, text: str) -> None:
    """A mistake, which is worth a line even where progress is not."""
    reporter.settle()
    reporter.warn(text)

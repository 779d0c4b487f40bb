"""Output files of commands: they are checked before a long run, written whole, and continued."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.system.files import write_atomically, writing_errors
from esa_cli.version import __version__

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.system.jsonl import Journal

WRITABLE = "name a file in a folder you may write to"


def check(
    option: str, path: Path | None, sources: Iterable[str] = (), kind: str = "one of the documents"
) -> None:
    """Refuses an output file that cannot be written, or that is one of the input files. Raises
    UsageError. DocumentError: writing is not allowed."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        raise UsageError(f"{option} must be a file, got the folder {path}", "name a file in it")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise DocumentError(f"{option} {path} cannot be written", WRITABLE)
    if path.exists() and any(os.path.exists(one) and path.samefile(one) for one in sources):
        raise UsageError(f"{option} must not be {kind}, got {path}", "name another file")


def write(path: Path, text: str) -> None:
    """Writes `text` to `path`, atomically where the folder allows. Raises ResourceError: the disk
    is full. DocumentError."""
    with writing_errors(path, "free some space, or name another place", WRITABLE):
        place = path.resolve()  # a link stays one
        if (place.is_file() or not place.exists()) and os.access(place.parent, os.W_OK):
            write_atomically(place, text)
        else:
            place.write_text(text, "utf-8")


def run_facts() -> dict[str, str]:
    """Returns the version, command, date and machine that made a file of results."""
    return {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def measure(
    journal: Journal,
    reporter: Reporter,
    run: Callable[[], bool],
    show: Callable[[bool], None],
    out: Path | None,
) -> None:
    """Asks by `run` what has no row in the journal at `out`, and calls `show` with whether all was
    asked: after an error or Ctrl-C for the rows before it. `run` returns False where the time limit
    was reached."""
    continues = f"; the same command with --out {out} goes on" if out else ""
    try:
        with journal:
            complete = run()
    except (KeyboardInterrupt, EsaError):
        reporter.settle()
        if journal.rows:
            show(False)
            reporter.note(f"esa: stopped after {len(journal.rows)} rows{continues}")
        raise
    reporter.settle()
    if not complete:
        reporter.note(f"esa: the time limit was reached{continues}")
    show(complete)

"""Checks and writes the output files of commands."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from esa_cli.apps.cli.output.terminal import Reporter, pluralize
from esa_cli.errors import DocumentError, EsaError, UsageError
from esa_cli.system.files import convert_writing_errors, write_text_atomically
from esa_cli.system.jsonl import ResultsFile
from esa_cli.version import __version__

WRITABLE = "name a file in a folder that you may write to"


def check_output_file(
    option_name: str, path: Path | None, input_paths: Iterable[str] = (),
    input_kind: str = "one of the documents",
) -> None:  # fmt: skip
    """Raises UsageError or DocumentError if an output file is not writable, or is an input file."""
    if path is None:
        return
    folder = path.absolute().parent
    if path.is_dir():
        wrong = f"{option_name} must be a file, got the folder {path}"
        raise UsageError(wrong, f"name a file in {path}")
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "make the folder first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise DocumentError(f"{option_name} {path} cannot be written", WRITABLE)
    if path.exists() and any(os.path.exists(one) and path.samefile(one) for one in input_paths):
        raise UsageError(f"{option_name} must not be {input_kind}, got {path}", "name another file")


def write_text_file(path: Path, text: str) -> None:
    """Writes atomically if the folder is writable. Raises DocumentError. ResourceError: no room."""
    with convert_writing_errors(path, "free some space, or name a file on another disk", WRITABLE):
        place = path.resolve()  # a link stays a link
        if (place.is_file() or not place.exists()) and os.access(place.parent, os.W_OK):
            write_text_atomically(place, text)
        else:
            place.write_text(text, "utf-8")


def describe_command_run() -> dict[str, str]:
    """Returns the version, command line, date and machine of this run, for a file of results."""
    return {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def complete_results_file(
    results: ResultsFile, reporter: Reporter, add_missing_rows: Callable[[], bool],
    print_rows: Callable[[bool], None],
) -> None:  # fmt: skip
    """Adds rows to a file of results until `add_missing_rows` says whether all rows exist, which
    `print_rows` is told. The rows are printed even after an error or Ctrl-C."""
    if results.rows:
        reporter.show_note(f"esa: kept from an earlier run: {pluralize(len(results.rows), 'row')}")
    continues = f"; the same command with --out {results.path} continues" if results.path else ""
    try:
        with results:
            complete = add_missing_rows()
    except (KeyboardInterrupt, EsaError):
        reporter.clear_spinner()
        if results.rows:
            print_rows(False)
            rows = pluralize(len(results.rows), "row")
            reporter.show_note(f"esa: stopped after {rows}{continues}")
        raise
    reporter.clear_spinner()
    if not complete:
        reporter.show_note(f"esa: the time limit was reached{continues}")
    print_rows(complete)

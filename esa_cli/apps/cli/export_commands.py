"""`esa library export` and `import`: documents of the library in one file, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.library_transfer import Names, show_transfer
from esa_cli.apps.cli.options import options
from esa_cli.errors import UsageError
from esa_cli.system.progress import Progress

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter

Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The file, a tar archive.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="What `esa library export` wrote.")]


def _stage(reporter: Reporter, label: str, unit: str) -> Progress:
    """As `token_progress`, which says nothing before the stage begins."""
    from esa_cli.apps.cli.output.progress_display import token_progress

    begun: list[Progress] = []

    def progress(done: int, total: int) -> None:
        if not begun:
            begun.append(token_progress(reporter, label, unit=unit))
        begun[0](done, total)

    return progress


def export(
    out: Out,
    names: Names = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Write documents of the library to one checked file."""
    from esa_cli.apps.cli.entry_choice import several_entries
    from esa_cli.apps.cli.options import output_paths
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.storage.library import Library
    from esa_cli.storage.library.transfer.library_export import export_documents

    output_paths.check("--out", out)
    library, reporter = Library(), Reporter(quiet)
    entries = several_entries(library, names) if names else library.entries()
    if not entries:
        raise UsageError("the library has no documents to export", "`esa ingest` reads one")
    checking = _stage(reporter, "checking the library", "documents")
    writing = _stage(reporter, f"writing {out}", "files")
    try:
        result = export_documents(library, out, entries, checking, writing)
    finally:
        reporter.settle()
    show_transfer("exported", "file", str(out), result, as_json)


def import_(
    file: File,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy the documents of an exported file into the library.

    The whole file is checked before anything is copied.
    """
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.storage.library import Library
    from esa_cli.storage.library.transfer.library_export import import_documents
    from esa_cli.system.progress import WaitNotice

    reporter = Reporter(quiet)

    def say() -> None:
        reporter.note("esa: waiting for another esa that reads the same document", dim=False)

    checking = _stage(reporter, f"checking {file}", "files")
    copying = _stage(reporter, "copying into the library", "documents")
    try:
        result = import_documents(Library(), file, checking, copying, WaitNotice(say, None, 0))
    finally:
        reporter.settle()
    show_transfer("imported", "file", str(file), result, as_json)

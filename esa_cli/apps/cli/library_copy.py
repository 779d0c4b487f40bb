"""`esa library copy`: documents of the library to another place, and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.completion import documents
from esa_cli.apps.cli.options import options
from esa_cli.errors import LibraryError, UsageError
from esa_cli.system.machine import size_text

HERE = "library"
"""In place of a folder, URL or archive: the library that commands use."""
_PLACE = "`library`, a folder, a URL (s3:// or whatever fsspec has), or an archive FILE.tar"
Place = Annotated[str, typer.Argument(metavar="PLACE", help=_PLACE + ".")]
Source = Annotated[str, typer.Argument(metavar="SRC", help=f"Where they are: {_PLACE}.")]
Target = Annotated[str, typer.Argument(metavar="DST", help="The same; one is `library`.")]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID...]",
        help="Beginnings of ids, or names; without them all.",
        autocompletion=documents,
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The archive.")]


def copy(
    source: Source,
    target: Target,
    names: Names = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy documents to or from a folder, URL or archive.

    The place then is a library, too. Every file is checked.
    """
    from esa_cli.apps.cli.entry_choice import several_entries
    from esa_cli.apps.cli.options import output_paths
    from esa_cli.apps.cli.output.progress_display import token_progress
    from esa_cli.apps.cli.output.terminal import Reporter, print_json
    from esa_cli.storage.library import Library
    from esa_cli.storage.library.library_copy import is_archive, pull, push, without_password
    from esa_cli.system.progress import WaitNotice

    if (source == HERE) == (target == HERE):
        raise UsageError(
            f"SRC or DST must be `library`, got {source} and {target}",
            "`esa library copy library FILE.tar` copies from it, `copy FILE.tar library` to it",
        )
    if is_archive(target):
        output_paths.check("DST", Path(target))
    library, reporter = Library(), Reporter(quiet)

    def say() -> None:
        reporter.note("esa: waiting for another esa that reads the same document", dim=False)

    try:
        if source == HERE:
            entries = several_entries(library, names) if names else library.entries()
            if not entries:
                raise UsageError("the library has no documents to copy", "`esa ingest` reads one")
            progress = token_progress(reporter, "documents of the library", unit="documents")
            result = push(library, target, entries, progress)
        else:
            progress = token_progress(reporter, f"documents of {source}", unit="documents")
            result = pull(library, source, names or (), progress, WaitNotice(say, None, 0))
    finally:
        reporter.settle()
    copied, failed = len(result.copied), result.failed
    if as_json:
        print_json(
            {
                "source": without_password(source),
                "target": without_password(target),
                "copied": [key[:12] for key in result.copied],
                "there": result.there,
                "bytes": result.bytes,
                "failed": [error.message for error in failed],
            }
        )
    else:
        size = size_text(result.bytes)
        print(f"copied {_documents(copied)}, {size}; {result.there:,} were there")
    sys.stdout.flush()
    if failed:
        text = f"{_documents(len(failed))} left out: {failed[0].message}"
        raise LibraryError(text, failed[0].hint)


def _documents(count: int) -> str:
    return f"{count:,} document" if count == 1 else f"{count:,} documents"


def _renamed(old: str, new: str) -> None:
    from esa_cli.apps.cli.output.terminal import Reporter

    Reporter().warn(f"esa: `library {old}` is `library copy {new}` from the next version on")


def push(
    place: Place, names: Names = None, as_json: options.Json = False, quiet: options.Quiet = False
) -> None:
    """The former name of `copy library PLACE`."""
    _renamed("push", "library PLACE")
    copy(HERE, place, names, as_json, quiet)


def pull(
    place: Place, names: Names = None, as_json: options.Json = False, quiet: options.Quiet = False
) -> None:
    """The former name of `copy PLACE library`."""
    _renamed("pull", "PLACE library")
    copy(place, HERE, names, as_json, quiet)


def export(
    out: Out, names: Names = None, as_json: options.Json = False, quiet: options.Quiet = False
) -> None:
    """The former name of `copy library FILE.tar`."""
    _renamed("export", "library FILE.tar")
    if out.suffix != ".tar":
        raise UsageError(f"--out must be an archive FILE.tar, got {out}")
    copy(HERE, str(out), names, as_json, quiet)


def import_(file: Place, as_json: options.Json = False, quiet: options.Quiet = False) -> None:
    """The former name of `copy FILE.tar library`."""
    _renamed("import", "FILE.tar library")
    copy(file, HERE, None, as_json, quiet)

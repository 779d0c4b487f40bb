"""`esa library push` and `pull`: documents in a folder at a URL, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.completion import documents
from esa_cli.apps.cli.options import options
from esa_cli.errors import LibraryError
from esa_cli.system.machine import size_text

if TYPE_CHECKING:
    from esa_cli.storage.library.transfer.document_copy import TransferResult

Url = Annotated[
    str,
    typer.Argument(metavar="URL", help="A folder: a path, file://, s3:// or whatever fsspec has."),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[ID...]",
        help="Beginnings of ids, or names; without them all.",
        autocompletion=documents,
    ),
]
RemoteIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID...]", help="Beginnings of ids, 4 digits at least; without it all."),
]


def push(
    url: Url,
    names: Names = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy documents of the library to a folder at a URL.

    The folder then is a library, too.
    """
    from esa_cli.apps.cli.entry_choice import several_entries
    from esa_cli.apps.cli.output.progress_display import token_progress
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.storage.library import Library
    from esa_cli.storage.library.transfer.document_transfer import push as copy
    from esa_cli.storage.library.transfer.remote_folder import without_password

    library, reporter = Library(), Reporter(quiet)
    entries = several_entries(library, names) if names else library.entries()
    progress = token_progress(reporter, "documents of the library", unit="documents")
    try:
        result = copy(library, url, entries, progress)
    finally:
        reporter.settle()
    show_transfer("pushed", "url", without_password(url), result, as_json)


def pull(
    url: Url,
    ids: RemoteIds = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy documents from a folder at a URL into the library.

    Every file is checked, as by `esa library import`.
    """
    from esa_cli.apps.cli.output.progress_display import token_progress
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.storage.library import Library
    from esa_cli.storage.library.transfer.document_transfer import pull as copy
    from esa_cli.storage.library.transfer.remote_folder import without_password
    from esa_cli.system.progress import WaitNotice

    reporter = Reporter(quiet)

    def say() -> None:
        reporter.note("esa: waiting for another esa that reads the same document", dim=False)

    progress = token_progress(reporter, "documents of the URL", unit="documents")
    try:
        result = copy(Library(), url, ids or (), progress, WaitNotice(say, None, 0))
    finally:
        reporter.settle()
    show_transfer("pulled", "url", without_password(url), result, as_json)


def show_transfer(done: str, kind: str, place: str, result: TransferResult, as_json: bool) -> None:
    """What was copied, on standard output; `kind` of place: `url` or `file`. Raises LibraryError:
    some could not be."""
    import sys

    from esa_cli.apps.cli.output.terminal import print_json

    if as_json:
        print_json(
            {
                kind: place,
                "copied": [key[:12] for key in result.copied],
                "there": result.there,
                "bytes": result.bytes,
                "failed": [one.message for one in result.failed],
            }
        )
    else:
        there = "" if done == "exported" else f"; {result.there:,} were there"
        print(f"{done} {documents_text(len(result.copied))}, {size_text(result.bytes)}{there}")
    sys.stdout.flush()
    if result.failed:
        first, count = result.failed[0], len(result.failed)
        are = "is" if count == 1 else "are"
        raise LibraryError(f"{documents_text(count)} {are} left out: {first.message}", first.hint)


def documents_text(count: int) -> str:
    """A number of documents in words."""
    return f"{count:,} document" if count == 1 else f"{count:,} documents"

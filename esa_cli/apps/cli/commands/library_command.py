"""`esa library`: the documents that were read once and can be asked any time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.completion import documents
from esa_cli.apps.cli.library_copy import copy, export, import_, pull, push
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.output.entry_output import entry_label, facts, table_row
from esa_cli.apps.cli.removal_question import confirm_removal
from esa_cli.system.machine import size_text

if TYPE_CHECKING:
    from esa_cli.errors import LibraryError
    from esa_cli.storage.library import Entry

app = typer.Typer(help="List, check, copy and remove the documents that are kept.")
_BAD = ("damaged", "another format", "unreadable")
_ID = "The beginning of an id from `esa library list`, or a document's name."
Id = Annotated[str, typer.Argument(metavar="ID", help=_ID, autocompletion=documents)]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help=_ID, autocompletion=documents)]
AnyIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID...]", help=_ID + " Without it all.", autocompletion=documents),
]
Text = Annotated[
    bool, typer.Option("--text", help="The text alone, in which `start` and `end` count.")
]
All = Annotated[bool, typer.Option("--all", help="Former versions of files, too.")]


@app.command("list")
def list_(every: All = False, as_json: options.Json = False) -> None:
    """List the documents, the last used first."""
    from esa_cli.apps.cli.output.terminal import print_json, print_table
    from esa_cli.storage.library import Library

    library = Library()
    present, former = library.divided_entries()
    found = [*present, *former] if every else present
    if as_json:
        print_json(
            {
                "folder": str(library.root),
                "bytes": library.nbytes,
                "catalogue_bytes": library.catalogue_bytes,
                "synced_files": library.synced_files,
                "former": [entry.id for entry in former],
                "documents": [entry.as_json() for entry in found],
            }
        )
    elif found:
        print_table(
            ("id", "tokens", "size", "used", "preset", "rows", "document"),
            list(map(table_row, found)),
        )
        catalogue = size_text(library.catalogue_bytes)
        print(f"{size_text(library.nbytes)} in {library.root}, and its catalogue: {catalogue}")
    else:
        print("no documents yet; `esa ingest` reads one")
    if not as_json and former:
        print(f"{len(former):,} former: their files have another text now, or were removed")
    if not as_json and (files := library.synced_files):
        print(f"{files:,} files of `esa ingest --words`, found by their words")


@app.command("show")
def show(name: Id, text: Text = False, as_json: options.Json = False) -> None:
    """Show what is known of a document, or its text."""
    from esa_cli.apps.cli.entry_choice import one_entry
    from esa_cli.apps.cli.output.terminal import print_json, print_table, print_text
    from esa_cli.storage.library import Library

    library = Library()
    entry = one_entry(library, name)
    if as_json:
        more = {"text": library.text(entry)} if text else {}
        print_json({**entry.as_json(), **more})
    elif text:
        print_text(library.text(entry))
    else:
        print_table(("", ""), list(facts(entry).items()))


@app.command("verify")
def verify(names: AnyIds = None, as_json: options.Json = False) -> None:
    """Read every byte of the documents, and say what is damaged."""
    from esa_cli.apps.cli.entry_choice import several_entries
    from esa_cli.apps.cli.output.terminal import one_line, print_json
    from esa_cli.storage.library import Library

    library = Library()
    every = [one for part in library.divided_entries() for one in part]
    chosen = several_entries(library, names) if names else every
    results = [(entry, library.verify(entry)) for entry in chosen]
    if as_json:
        rows = [{"id": e.id, "damages": [one.message for one in bad]} for e, bad in results]
        print_json({"documents": rows})
    else:
        for entry, bad in results:
            print(f"{entry.id}  {_state(bad)}  {entry_label(entry)}")
            for error in bad:
                print(f"    {one_line(error.message)}")
    _complain(results)


def _state(found: Sequence[LibraryError]) -> str:
    from esa_cli.storage.library.manifest import state_of

    states = set(map(state_of, found)) or {"good"}
    return next(state for state in (*_BAD, "good") if state in states)


def _complain(results: Sequence[tuple[Entry, Sequence[LibraryError]]]) -> None:
    """Raises LibraryError where a document is not good."""
    from esa_cli.errors import ForeignVersionError, LibraryError, UnreadableError

    of = {state: [e.id for e, bad in results if _state(bad) == state] for state in _BAD}
    damaged, foreign, hidden = (of[state] for state in _BAD)
    if damaged:
        raise LibraryError(
            f"{len(damaged)} of {len(results)} documents are damaged",
            f"`esa library rm {' '.join(damaged)}`, and ingest them again",
        )
    if foreign:
        raise ForeignVersionError(
            f"{len(foreign)} of {len(results)} documents are of another format",
            f"use the esa that wrote them, or `esa library rm {' '.join(foreign)}`",
        )
    if hidden:
        raise UnreadableError(
            f"{len(hidden)} of {len(results)} documents cannot be read",
            "check who may read them, and the disk; then verify again",
        )


@app.command("rm")
def rm(names: Ids, yes: options.Yes = False) -> None:
    """Remove documents from the library.

    The files they were read from stay.
    """
    from esa_cli.apps.cli.entry_choice import several_entries
    from esa_cli.storage.library import Library

    library = Library()
    chosen = several_entries(library, names)
    files = {entry.file for entry in chosen if entry.file}
    chosen += [one for one in library.divided_entries().former if one.file in files]
    chosen = list({entry.key: entry for entry in chosen}.values())
    listed = ", ".join(f"{entry.id} ({entry_label(entry)})" for entry in chosen)
    confirm_removal("document", f"{listed} from the library", yes)
    for entry in chosen:
        freed = size_text(library.remove(entry))
        print(f"removed {entry.id} ({entry_label(entry)}), {freed} freed")


@app.command("prune")
def prune(
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size", metavar="SIZE", help="Remove the least recently used until so much, 10GB."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Remove former versions and leftovers; keep to a size."""
    from esa_cli.apps.cli.output.terminal import print_json
    from esa_cli.storage.library import Library
    from esa_cli.system.machine import parse_size

    most = None if max_size is None else parse_size(max_size, "--max-size")
    library = Library()
    done = library.prune(most, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "removed": [entry.as_json() for entry in done.removed],
                "left_alone": [entry.as_json() for entry in done.left_alone],
                "leftovers": done.leftovers,
                "freed_bytes": done.freed,
                "left_bytes": done.left,
                "dry_run": dry_run,
            }
        )
        return
    would = "would remove" if dry_run else "removed"
    for entry in done.removed:
        print(f"{would} {entry.id} ({entry_label(entry)})")
    if done.leftovers:
        print(f"{would} {done.leftovers} files that belong to no document")
    if done.left_alone:
        ids = " ".join(entry.id for entry in done.left_alone)
        print(f"left alone, as they cannot be used: {ids}")
    freed = "would be freed" if dry_run else "freed"
    print(f"{size_text(done.freed)} {freed}, {size_text(done.left)} left")


app.command("copy")(copy)
for _name, _alias in (("push", push), ("pull", pull), ("export", export), ("import", import_)):
    app.command(_name, hidden=True)(_alias)

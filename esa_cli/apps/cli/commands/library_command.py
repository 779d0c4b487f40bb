"""`esa library`: lists, shows, checks, removes and copies the documents that were stored."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.completion import documents
from esa_cli.apps.cli.output.progress_display import token_progress
from esa_cli.apps.cli.output.terminal import Reporter, one_line, print_json, print_table, print_text
from esa_cli.errors import ForeignVersionError, LibraryError, UnreadableError, UsageError
from esa_cli.storage.library import Entry, Library
from esa_cli.system.machine import parse_size, size_text
from esa_cli.system.progress import WaitNotice

app = typer.Typer(help="List, check, copy and remove the documents that are kept.")
HERE = "library"
"""In place of a folder or archive: the library that commands use."""
_ID = "The beginning of an id from `esa library list`, or a document's name."
_PLACE = "`library`, a folder, or an archive FILE.tar"
Id = Annotated[str, typer.Argument(metavar="ID", help=_ID, autocompletion=documents)]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help=_ID, autocompletion=documents)]
AnyIds = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ID...]", help=_ID + " Without it all.", autocompletion=documents),
]
Source = Annotated[str, typer.Argument(metavar="SRC", help=f"Where they are: {_PLACE}.")]
Target = Annotated[str, typer.Argument(metavar="DST", help="The same; one is `library`.")]


@app.command("list")
def list_(
    every: Annotated[bool, option("--all", "Former versions of files, too.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the documents, the last used first."""
    library = Library()
    present, former = library.divided_entries()
    entries = [*present, *former] if every else present
    if as_json:
        print_json(
            {
                "folder": str(library.root),
                "bytes": library.nbytes,
                "catalogue_bytes": library.catalogue_bytes,
                "synced_files": library.synced_files,
                "former": [entry.id for entry in former],
                "documents": [entry.as_json() for entry in entries],
            }
        )
        return
    if entries:
        headers = ("id", "tokens", "size", "used", "preset", "rows", "document")
        print_table(headers, [_row(entry) for entry in entries])
        catalogue = size_text(library.catalogue_bytes)
        print(f"{size_text(library.nbytes)} in {library.root}, and its catalogue: {catalogue}")
    else:
        print("no documents yet; `esa ingest` reads one")
    if former:
        print(f"{len(former):,} former: their files have another text now, or were removed")
    if files := library.synced_files:
        print(f"{files:,} files of `esa ingest --words`, found by their words")


@app.command("show")
def show(
    name: Id,
    text: Annotated[
        bool, option("--text", "The text alone, in which `start` and `end` count.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show what is known of a document, or its text."""
    library = Library()
    [entry] = _entries(library, [name])
    if as_json:
        more = {"text": library.text(entry)} if text else {}
        print_json({**entry.as_json(), **more})
    elif text:
        print_text(library.text(entry))
    else:
        facts = entry.as_json()
        facts |= facts.pop("provenance", {}) | {"size": size_text(entry.nbytes)}
        print_table(("", ""), [(key, str(value)) for key, value in facts.items()])


@app.command("verify")
def verify(names: AnyIds = None, as_json: options.Json = False) -> None:
    """Read every byte of the documents, and say what is damaged."""
    library = Library()
    stored = [entry for part in library.divided_entries() for entry in part]
    entries = _entries(library, names) if names else stored
    results = [(entry, library.verify(entry)) for entry in entries]
    if as_json:
        rows = [{"id": e.id, "damages": [error.message for error in bad]} for e, bad in results]
        print_json({"documents": rows})
    else:
        for entry, errors in results:
            print(f"{entry.id}  {_state(errors)}  {_label(entry)}")
            for error in errors:
                print(f"    {one_line(error.message)}")
    bad = [errors[0] for _, errors in results if errors]
    if bad:
        kind = type(bad[0])
        count = f"{len(bad)} of {len(results)} documents are {_state(bad)}"
        raise kind(f"{count}; the first: {bad[0].message}", bad[0].hint)


def _state(errors: Sequence[LibraryError]) -> str:
    """Of a document with these errors, the first of which says why it cannot be used."""
    if not errors:
        return "good"
    states = {ForeignVersionError: "of another format", UnreadableError: "unreadable"}
    return states.get(type(errors[0]), "damaged")


@app.command("rm")
def rm(names: Ids, yes: options.Yes = False) -> None:
    """Remove documents from the library.

    The files they were read from stay.
    """
    library = Library()
    entries = _entries(library, names)
    files = {entry.file for entry in entries if entry.file}
    entries += [one for one in library.divided_entries().former if one.file in files]
    entries = list({entry.key: entry for entry in entries}.values())
    listed = ", ".join(f"{entry.id} ({_label(entry)})" for entry in entries)
    options.confirm_removal("document", f"{listed} from the library", yes)
    for entry in entries:
        freed = size_text(library.remove(entry))
        print(f"removed {entry.id} ({_label(entry)}), {freed} freed")


@app.command("prune")
def prune(
    max_size: Annotated[
        str | None, option("--max-size SIZE", "Remove the least recently used until so much, 10GB.")
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Only say what would be removed.")] = False,
    as_json: options.Json = False,
) -> None:
    """Remove former versions and leftovers; keep to a size."""
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
    removed, freed = ("would remove", "would be freed") if dry_run else ("removed", "freed")
    for entry in done.removed:
        print(f"{removed} {entry.id} ({_label(entry)})")
    if done.leftovers:
        print(f"{removed} {done.leftovers} files that belong to no document")
    for entry in done.left_alone:
        print(f"left alone, as it cannot be used: {entry.id}")
    print(f"{size_text(done.freed)} {freed}, {size_text(done.left)} left")


@app.command("copy")
def copy(
    source: Source,
    target: Target,
    names: AnyIds = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy documents to or from a folder or archive.

    The place then is a library, too. Every file is checked.
    """
    from esa_cli.apps.cli.options import output_paths
    from esa_cli.storage.library.library_copy import is_archive, pull, push

    if (source == HERE) == (target == HERE):
        raise UsageError(
            f"SRC or DST must be `library`, got {source} and {target}",
            "`esa library copy library FILE.tar` copies from it, `copy FILE.tar library` to it",
        )
    if is_archive(target):
        output_paths.check("DST", Path(target))
    library, reporter = Library(), Reporter(quiet or as_json)
    waiting = WaitNotice(lambda: reporter.note("esa: waiting for another esa"), None, 0)
    progress = token_progress(reporter, f"documents of {source}", unit="documents")
    try:
        if source == HERE:
            entries = _entries(library, names) if names else library.entries()
            if not entries:
                raise UsageError("the library has no documents to copy", "`esa ingest` reads one")
            result = push(library, target, entries, progress)
        else:
            result = pull(library, source, names or (), progress, waiting)
    finally:
        reporter.settle()
    failed = result.failed
    if as_json:
        print_json(
            {
                "source": source,
                "target": target,
                "copied": [key[:12] for key in result.copied],
                "there": result.there,
                "bytes": result.bytes,
                "failed": [error.message for error in failed],
            }
        )
    else:
        size = size_text(result.bytes)
        print(f"copied {_count(len(result.copied))}, {size}; {result.there:,} were there")
    sys.stdout.flush()
    if failed:
        text = f"{_count(len(failed))} left out: {failed[0].message}"
        raise LibraryError(text, failed[0].hint)


def _count(documents: int) -> str:
    return f"{documents:,} document" + "s" * (documents != 1)


def _entries(library: Library, names: Sequence[str]) -> list[Entry]:
    """The documents whose ids begin so, or whose names they are, each once."""
    entries = dict[str, Entry]()
    for name in names:
        matches = library.matches(name)
        if not matches:
            raise UsageError(f"no document {name} in the library", "see `esa library list`")
        if len(matches) > 1:
            ids = ", ".join(entry.id for entry in matches[:5])
            raise UsageError(f"{name} fits {len(matches)} documents: {ids}", "give an id")
        entries[matches[0].key] = matches[0]
    return list(entries.values())


def _row(entry: Entry) -> tuple[str, ...]:
    return (
        entry.id,
        f"{entry.tokens:,}",
        size_text(entry.nbytes),
        _minute(entry.used),
        str(entry.provenance.get("preset", "")),
        "" if entry.damage else entry.rows,
        _label(entry),
    )


def _label(entry: Entry) -> str:
    """Its name, or what is wrong with it."""
    if entry.damage:
        damage = one_line(entry.damage)
        return damage if entry.state == "unreadable" else f"{entry.state}: {damage}"
    return one_line(entry.name) or "without a name"


def _minute(seconds: float) -> str:
    """Day and minute; nothing for 0."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""

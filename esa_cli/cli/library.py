"""`esa library`: the documents that were read once and can be asked any time."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from . import options

if TYPE_CHECKING:
    from ..library import Entry, Library

app = typer.Typer(help="List, check and remove the documents that are kept for asking.")
_ID = "The beginning of an id from `esa library list`, or a document's name."
Id = Annotated[str, typer.Argument(metavar="ID", help=_ID)]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help=_ID)]
AnyIds = Annotated[
    list[str] | None, typer.Argument(metavar="[ID...]", help=_ID + " Without it all.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_(as_json: options.Json = False) -> None:
    """List the documents, the last used first."""
    from ..library import Library, plain
    from ..machine import size_text
    from .render import print_json, print_table

    library = Library()
    found = library.entries()
    if as_json:
        print_json(
            {
                "folder": str(library.root),
                "bytes": library.nbytes,
                "documents": [plain(entry) for entry in found],
            }
        )
    elif found:
        rows = [
            (entry.id, f"{entry.tokens:,}", size_text(entry.nbytes), _day(entry.used), _name(entry))
            for entry in found
        ]
        print_table(("id", "tokens", "size", "used", "document"), rows)
        print(f"{size_text(library.nbytes)} in {library.root}")
    else:
        print("no documents yet; `esa ingest` reads one")


@app.command("show")
def show(name: Id, as_json: options.Json = False) -> None:
    """Show what is known of a document."""
    from ..library import Library, plain
    from ..machine import size_text
    from .render import print_json, print_table

    entry = _one(Library(), name)
    if as_json:
        print_json(plain(entry))
        return
    layout = entry.layout
    facts = {
        "id": entry.key,
        "document": _name(entry),
        "size": size_text(entry.nbytes),
        "tokens": f"{entry.tokens:,}",
        "characters": f"{entry.characters:,}",
        "rows": f"{layout.kind}, {layout.layers} layers of {layout.heads} x {layout.dim}, "
        f"{layout.dtype}",
        "read": _day(entry.created),
        "used": _day(entry.used),
        "read with": entry.identity,
        **{key: str(value) for key, value in entry.provenance.items() if key != "name"},
    }
    if entry.damage:
        facts = {"id": entry.key, "document": _name(entry)}
    print_table(("", ""), list(facts.items()))


@app.command("verify")
def verify(names: AnyIds = None, as_json: options.Json = False) -> None:
    """Read every byte of the documents, and say what is damaged."""
    from ..library import Library, LibraryError
    from .render import print_json

    library = Library()
    chosen = _several(library, names) if names else library.entries()
    results = [(entry, [error.message for error in library.verify(entry)]) for entry in chosen]
    if as_json:
        print_json({"documents": [{"id": e.id, "damages": texts} for e, texts in results]})
    else:
        for entry, texts in results:
            print(f"{entry.id}  {'damaged' if texts else 'good'}  {_name(entry)}")
            for text in texts:
                print(f"    {text}")
    bad = [entry for entry, texts in results if texts]
    if bad:
        raise LibraryError(
            f"{len(bad)} of {len(results)} documents are damaged",
            f"`esa library rm {' '.join(entry.id for entry in bad)}`, and ingest them again",
        )


@app.command("rm")
def rm(names: Ids, yes: Yes = False) -> None:
    """Remove documents from the library; the files they were read from stay."""
    from ..errors import UsageError
    from ..library import Library
    from ..machine import size_text

    library = Library()
    chosen = _several(library, names)
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("removing a document wants a yes", "add --yes")
        listed = ", ".join(f"{entry.id} ({_name(entry)})" for entry in chosen)
        if not typer.confirm(f"Remove {listed} from the library?", err=True):
            raise typer.Exit(1)
    for entry in chosen:
        print(f"removed {entry.id} ({_name(entry)}), {size_text(library.remove(entry))} freed")


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
    """Sweep what interrupted readings left, and keep the library below a size."""
    from ..library import Library, plain
    from ..machine import parse_size, size_text
    from .render import print_json

    most = None if max_size is None else parse_size(max_size, "--max-size")
    done = Library().prune(most, dry_run=dry_run)
    if as_json:
        removed = [plain(entry) for entry in done.removed]
        print_json(
            {
                "removed": removed,
                "leftovers": done.leftovers,
                "freed_bytes": done.freed,
                "left_bytes": done.left,
                "dry_run": dry_run,
            }
        )
        return
    would = "would remove" if dry_run else "removed"
    for entry in done.removed:
        print(f"{would} {entry.id} ({_name(entry)})")
    if done.leftovers:
        print(f"{would} {done.leftovers} files that belong to no document")
    freed = "would be freed" if dry_run else "freed"
    print(f"{size_text(done.freed)} {freed}, {size_text(done.left)} left")


def _name(entry: Entry) -> str:
    from .render import clean

    return f"damaged: {entry.damage}" if entry.damage else clean(entry.name) or "without a name"


def _day(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""


def _one(library: Library, name: str) -> Entry:
    from ..errors import UsageError

    found = library.matches(name)
    if not found:
        raise UsageError(f"no document {name} in the library", "see `esa library list`")
    if len(found) > 1:
        ids = ", ".join(entry.id for entry in found[:5])
        raise UsageError(f"{name} fits {len(found)} documents: {ids}", "give an id")
    return found[0]


def _several(library: Library, names: list[str]) -> list[Entry]:
    return list({entry.key: entry for entry in (_one(library, name) for name in names)}.values())

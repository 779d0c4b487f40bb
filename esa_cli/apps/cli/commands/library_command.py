"""The command `esa library`, which lists, shows, checks, removes and copies stored documents."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.options.completion import complete_document_names
from esa_cli.apps.cli.output import terminal
from esa_cli.errors import LibraryError, LibraryFileVersionError, UnreadableError, UsageError
from esa_cli.storage.library import Library, LibraryEntry
from esa_cli.system.machine import format_size, parse_size
from esa_cli.system.registry import suggest_name

library = typer.Typer(help="List, check, copy and remove stored documents.")
HERE = "library"
"""The argument of `esa library copy` that means the library, and not a folder or archive."""
_STATES = {LibraryFileVersionError: "of another format", UnreadableError: "unreadable"}
_FOR_PROGRAMS = ("bytes", "identity", "layout")
"""Facts of a document that `--json` alone prints."""
_ID = "The beginning of an id from `esa library list`, or a document's name."
_PLACE = "`library`, a folder, or an archive FILE.tar"
Id = Annotated[str, argument("ID", _ID, autocompletion=complete_document_names)]
Ids = Annotated[list[str], argument("ID...", _ID, autocompletion=complete_document_names)]
AnyIds = Annotated[
    list[str] | None,
    argument("[ID...]", _ID + " By default all.", autocompletion=complete_document_names),
]


@library.command("list")
def list_documents(
    with_former: Annotated[bool, option("--all", "List former versions of files, too.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the library's documents, the most recently used first."""
    stored = Library()
    present, former = stored.list_present_and_former()
    entries = [*present, *former] if with_former else present
    if as_json:
        facts = {
            "folder": str(stored.root),
            "bytes": stored.nbytes,
            "catalogue_bytes": stored.catalogue_file_size,
            "synced_files": stored.synced_file_count,
            "former": [entry.id for entry in former],
            "documents": [entry.to_json() for entry in entries],
        }
        terminal.print_json(facts)
        return
    if entries:
        rows = [
            (
                entry.id,
                f"{entry.tokens:,}",
                format_size(entry.nbytes),
                _format_date(entry.used),
                str(entry.provenance.get("preset", "")),
                "" if entry.damage_reason else entry.kv_format,
                _format_name_or_damage(entry) + " (former)" * (entry in former),
            )
            for entry in entries
        ]
        headers = ("id", "tokens", "size", "used", "preset", "rows", "document")
        constant = {at for at in (4, 5) if len({row[at] for row in rows}) == 1}
        kept = [at for at in range(len(headers)) if at not in constant]
        terminal.print_table(
            [headers[at] for at in kept], [[row[at] for at in kept] for row in rows]
        )
        catalogue = format_size(stored.catalogue_file_size)
        print(f"{format_size(stored.nbytes)} in {stored.root}, and its catalogue: {catalogue}")
    else:
        print("no documents yet; add documents with `esa ingest`")
    if former:
        print(f"{terminal.pluralize(len(former), 'former version')} of changed or removed files")
    if count := stored.synced_file_count:
        print(f"{terminal.pluralize(count, 'file')} of `esa ingest --words`, searched with BM25")


@library.command("show")
def show_document(
    name_or_id: Id,
    text: Annotated[
        bool, option("--text", "Show only the text, in which `start` and `end` are offsets.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show the facts about a stored document, or its text."""
    stored = Library()
    [entry] = _find_stored_documents(stored, [name_or_id])
    if as_json:
        terminal.print_json({**entry.to_json(), **({"text": stored.text(entry)} if text else {})})
    elif text:
        terminal.print_text_safely(stored.text(entry))
    else:
        facts = entry.to_json()
        facts |= facts.pop("provenance", {}) | {"size": format_size(entry.nbytes)}
        facts |= {name: _format_date(facts[name]) for name in ("created", "used") if name in facts}
        facts["missing"] = "; ".join(facts.get("missing", ()))
        facts = {name: fact for name, fact in facts.items() if name not in _FOR_PROGRAMS}
        terminal.print_table(("", ""), [(key, str(value)) for key, value in facts.items()])


@library.command("verify")
def verify_documents(names_or_ids: AnyIds = None, as_json: options.Json = False) -> None:
    """Check every byte of stored documents, and say what is damaged."""
    stored = Library()
    entries = [entry for part in stored.list_present_and_former() for entry in part]
    entries = _find_stored_documents(stored, names_or_ids) if names_or_ids else entries
    results = [(entry, stored.verify(entry)) for entry in entries]
    if as_json:
        rows = [{"id": e.id, "damages": [error.message for error in bad]} for e, bad in results]
        terminal.print_json({"documents": rows})
    else:
        for entry, errors in results:
            state = _STATES.get(type(errors[0]), "damaged") if errors else "good"
            print(f"{entry.id}  {state}  {_format_name_or_damage(entry)}")
            for error in errors:
                print(f"    {terminal.make_printable_line(error.message)}")
    bad = [errors[0] for _, errors in results if errors]
    if bad:
        kind = type(bad[0])
        count = f"{len(bad)} of {len(results)} documents are {_STATES.get(kind, 'damaged')}"
        raise kind(f"{count}; the first: {bad[0].message}", bad[0].hint)


@library.command("rm")
def remove_documents(names_or_ids: Ids, is_confirmed: options.Yes = False) -> None:
    """Remove documents from the library.

    The original files of the removed documents stay where they are."""
    stored = Library()
    entries = _find_stored_documents(stored, names_or_ids)
    files = {entry.file_path for entry in entries if entry.file_path}
    entries += [one for one in stored.list_present_and_former().former if one.file_path in files]
    entries = list({entry.key: entry for entry in entries}.values())
    listed = ", ".join(f"{entry.id} ({_format_name_or_damage(entry)})" for entry in entries)
    question = f"Remove {listed} from the library?"
    options.ask_to_confirm("removing a document", question, is_confirmed)
    for entry in entries:
        freed = format_size(stored.remove(entry))
        print(f"removed {entry.id} ({_format_name_or_damage(entry)}), {freed} freed")


@library.command("prune")
def prune_library(
    max_size: Annotated[
        str | None,
        option(
            "--max-size SIZE", "Remove the least recently used documents beyond this size (10GB)."
        ),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Only say what would be removed.")] = False,
    as_json: options.Json = False,
) -> None:
    """Remove old versions, leftover files, and documents beyond a size."""
    max_bytes = None if max_size is None else parse_size(max_size, "--max-size")
    done = Library().prune(max_bytes, dry_run=dry_run)
    if as_json:
        facts = {
            "removed": [entry.to_json() for entry in done.removed],
            "left_alone": [entry.to_json() for entry in done.left_alone],
            "leftovers": done.leftovers,
            "freed_bytes": done.freed,
            "left_bytes": done.left,
            "dry_run": dry_run,
        }
        terminal.print_json(facts)
        return
    removed, freed = ("would remove", "would be freed") if dry_run else ("removed", "freed")
    for entry in done.removed:
        print(f"{removed} {entry.id} ({_format_name_or_damage(entry)})")
    if done.leftovers:
        print(f"{removed} {done.leftovers} files that belong to no document")
    for entry in done.left_alone:
        print(f"not removed, as the document cannot be used: {entry.id}")
    print(f"{format_size(done.freed)} {freed}, {format_size(done.left)} left")


@library.command("copy")
def copy_documents(
    source: Annotated[str, argument("SRC", f"Copy from here: {_PLACE}.")],
    target: Annotated[str, argument("DST", f"Copy to here: {_PLACE}.")],
    names_or_ids: AnyIds = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Copy documents to or from a folder or archive.

    A folder or archive with copied documents is a library, too. Each copied file is checked."""
    from esa_cli.apps.cli.options import output_paths
    from esa_cli.storage.library.library_copy import is_archive_path, pull_documents, push_documents

    if (source == HERE) == (target == HERE):
        hint = "write `esa library copy library FILE.tar` or `esa library copy FILE.tar library`"
        raise UsageError(f"one of SRC and DST must be `library`, got {source} and {target}", hint)
    if is_archive_path(target):
        output_paths.check_output_file("DST", Path(target))
    stored = Library()
    with terminal.Reporter(quiet or as_json) as reporter:
        show_wait = cache(partial(reporter.show_note, "esa: waiting for another esa"))
        progress = reporter.start_progress(f"documents of {source}", "documents")
        if source == HERE:
            named = _find_stored_documents(stored, names_or_ids or ())
            entries = named if names_or_ids else stored.entries()
            if not entries:
                raise UsageError("the library has no documents", "add documents with `esa ingest`")
            result = push_documents(stored, target, entries, progress)
        else:
            result = pull_documents(stored, source, names_or_ids or (), progress, show_wait)
    failed = result.failed
    if as_json:
        facts = {
            "source": source,
            "target": target,
            "copied": [key[:12] for key in result.copied],
            "there": result.already_there,
            "bytes": result.bytes,
            "failed": [error.message for error in failed],
        }
        terminal.print_json(facts)
    else:
        copied = terminal.pluralize(len(result.copied), "document")
        there = f"{result.already_there:,} were already there"
        print(f"copied {copied}, {format_size(result.bytes)}; {there}")
    sys.stdout.flush()
    if failed:
        text = f"{terminal.pluralize(len(failed), 'document')} left out: {failed[0].message}"
        raise LibraryError(text, failed[0].hint)


def _find_stored_documents(stored: Library, names_or_ids: Sequence[str]) -> list[LibraryEntry]:
    """Finds stored documents by their names or the beginnings of their ids, without duplicates."""
    entries = dict[str, LibraryEntry]()
    for name in names_or_ids:
        matches = stored.match_entries(name)
        if not matches:
            known = {entry.name for entry in stored.entries()}
            hint = f"`esa library list` lists all; {suggest_name(name, known)}"
            raise UsageError(f"the library has no document {name}", hint)
        if len(matches) > 1:
            ids = ", ".join(entry.id for entry in matches[:5])
            raise UsageError(f"name or id {name} fits {len(matches)} documents: {ids}", "use an id")
        entries[matches[0].key] = matches[0]
    return list(entries.values())


def _format_date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(seconds)) if seconds else ""


def _format_name_or_damage(entry: LibraryEntry) -> str:
    if entry.damage_reason:
        damage = terminal.make_printable_line(entry.damage_reason)
        return damage if entry.health == "unreadable" else f"{entry.health}: {damage}"
    return terminal.make_printable_line(entry.name) or "without a name"

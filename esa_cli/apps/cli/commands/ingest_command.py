"""`esa ingest`: puts documents into the library, once or whenever their folders change."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.inputs import read_documents
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output import terminal
from esa_cli.errors import PARTIAL, DiskError, DocumentError, ResourceError, UsageError
from esa_cli.storage.library import Entry, FileRecord, Library
from esa_cli.system.machine import size_text, time_text
from esa_cli.system.progress import WorkShard

if TYPE_CHECKING:
    from esa_cli.apps.ingest_engine import IngestRow
    from esa_cli.documents.document import Document
    from esa_cli.qa.api import Esa

SETTLE_S = 1.0
"""Wait after a change of a watched folder: a file may still be growing."""
CHANGES = {
    "added": "added",
    "changed": "changed",
    "removed": "removed",
    "read": "read by the model",
    "pruned": "documents pruned",
}
"""Fields of an update's JSON object that are worth a report, and their words."""


@options.command
def ingest(
    documents: Annotated[
        list[str],
        typer.Argument(
            metavar="DOC...", help="Files, folders or patterns, or - for standard input."
        ),
    ],
    words: Annotated[
        bool, option("--words", "Index only the words of folders, without a model.")
    ] = False,
    watch: Annotated[
        bool, option("--watch", "Index new and changed files of folders until Ctrl-C.")
    ] = False,
    prune: Annotated[
        bool, option("--prune", "Forget files that were removed from folders, and former versions.")
    ] = False,
    yes: Annotated[
        bool, option("--yes -y", "Prune even where no document is left in a folder.")
    ] = False,
    rows: Annotated[
        Literal["int8", "native"],
        option(
            "--rows int8|native", "Precision of stored KV caches: 8 bits, or that of the model."
        ),
    ] = "int8",
    shard: options.Shard = None,
    engine: Annotated[
        Literal["local", "ray"],
        option(
            "--engine local|ray",
            "Read in processes of this machine, or in actors of a Ray cluster.",
        ),
    ] = "local",
    workers: Annotated[
        int | None,
        option(
            "--workers N",
            "Number of processes; with --engine ray of actors, by default one a GPU.",
            min=1,
        ),
    ] = None,
    *,
    model: options.ModelOptions,
    in_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read documents once into the library, for all questions.

    `esa ask` then finds them there by their text, and `esa ask --library` without their names.
    Stopped in the middle, the same command goes on where it was.
    """
    from esa_cli.qa.presets.adapter_files import without_adapter

    check_engine(engine)
    is_local = engine == "local" and workers is None
    follows, is_divided = watch or words or prune, shard is not None or not is_local
    name = "--watch" if watch else "--words" if words else "--prune"
    options.refuse_both(name, "--shard, --workers and --engine ray", follows and is_divided)
    chosen = None if words else without_adapter(model.load_preset())
    with terminal.Reporter(quiet) as reporter, ExitStack() as stack:

        @cache
        def load_esa() -> Esa:
            from esa_cli.apps.cli.open_esa import opened

            assert chosen is not None
            return stack.enter_context(opened(chosen, model, reporter, keep=True, rows=rows))

        def read_all(documents: Sequence[Document]) -> Iterator[IngestRow]:
            from esa_cli.apps.ingest_engine import ingest_document
            from esa_cli.qa.opening import prepare
            from esa_cli.storage.library.disk import default_root

            if is_local:
                for document in documents:
                    yield ingest_document(load_esa(), document, rows, reporter)
                return
            from esa_cli.apps.ingest_engine import IngestWorker, ingest_by_workers

            assert chosen is not None
            prepare(chosen, model.place, reporter, keep=True)
            worker = IngestWorker(chosen, model, rows, default_root().absolute(), os.getcwd())
            on_ray = engine == "ray"
            yield from ingest_by_workers(worker, documents, reporter, workers, on_ray=on_ray)

        if follows:
            loader = None if words else load_esa
            _follow_folders(documents, loader, watch, prune, yes, reporter, in_json)
        else:
            _read_documents(documents, shard, read_all, reporter, in_json)


def check_engine(engine: str) -> None:
    """Raises UsageError: the engine is not installed."""
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise UsageError("--engine ray needs ray", "pip install 'esa-cli[ray]'")


def _read_documents(
    names: Sequence[str],
    shard: str | None,
    read: Callable[[Sequence[Document]], Iterator[IngestRow]],
    reporter: terminal.Reporter,
    in_json: bool,
) -> None:
    """Reads all documents, and prints their entries in the library; after an error those of the
    documents that were read before it."""
    from esa_cli.qa.ingestion.library_texts import record_read_folders

    rows: list[IngestRow] = []
    gathered = read_documents(names, reporter, WorkShard.parse(shard))
    try:
        for row in read(gathered.documents) if gathered.documents else ():
            rows.append(row)
        record_read_folders(Library(), names)
    finally:
        reporter.settle()
        if sys.exc_info()[0] is None or rows:
            if in_json:
                left_out = [file.as_dict() for file in gathered.left_out]
                terminal.print_json({"documents": rows, "left_out": left_out})
            else:
                table = [
                    (
                        row["id"] or "not kept",
                        f"{row['tokens']:,}",
                        "" if row["bytes"] is None else size_text(row["bytes"]),
                        time_text(row["read_s"]) if row["read_s"] else "before",
                        row["name"],
                    )
                    for row in rows
                ]
                terminal.print_table(("id", "tokens", "size", "read in", "document"), table)


def _follow_folders(
    names: Sequence[str],
    load: Callable[[], Esa] | None,
    watch: bool,
    prune: bool,
    yes: bool,
    reporter: terminal.Reporter,
    in_json: bool,
) -> None:
    """Brings the library up to date with folders, once, or with `watch` until Ctrl-C. A file that
    stays removed or unreadable is reported once."""
    from esa_cli.qa.ingestion.library_texts import check_folder
    from esa_cli.system.files import poll_changes

    library = Library()
    reported = {check_folder(name, library): set[FileRecord]() for name in names}
    failed = dict[str, bool]()

    def update_and_report(folder: str, is_first: bool) -> None:
        result = update_folder(
            folder, library, load, reporter,
            prune=prune, if_empty=yes and is_first, reported=reported[folder], is_first=is_first,
        )  # fmt: skip
        failed[folder] = bool(result["failed"])
        if not is_first and not any(result[key] for key in CHANGES):
            return
        if in_json:
            print(terminal.format_json(result), flush=True)
            return
        for path in result["removed"]:
            print(terminal.one_line(f"removed {path}"))
        parts = [
            f"{len(result[key]):,} {what}"
            for key, what in CHANGES.items()
            if result[key] or key in ("added", "changed", "removed")
        ]
        seconds = time_text(result["seconds"])
        print(f"{result['files']:,} files: {', '.join(parts)}; {seconds}", flush=True)

    for folder in reported:
        update_and_report(folder, is_first=True)
    if watch:
        reporter.note(f"esa: waiting for changes of {', '.join(names)}, until Ctrl-C")
        for _ in poll_changes():
            time.sleep(SETTLE_S)
            for folder in reported:
                update_and_report(folder, is_first=False)
    if any(failed.values()):
        raise typer.Exit(PARTIAL)


def update_folder(
    folder: str,
    library: Library,
    load: Callable[[], Esa] | None,
    reporter: terminal.Reporter,
    *,
    prune: bool,
    if_empty: bool,
    reported: set[FileRecord],
    is_first: bool,
) -> dict[str, Any]:
    """Updates the library with a folder, reports what cannot be read, and returns the JSON object.

    Args:
        load: returns the model that reads files; None: their words alone are indexed.
        prune: removed files are forgotten; `if_empty`: even where no document is left.
        reported: removed and unreadable files of the update before, which are exchanged.

    Raises DocumentError, LibraryError, ResourceError."""
    from esa_cli.qa.ingestion.library_texts import forget_removed, outdated_entries, sync_folder

    started, progress, outdated = time.perf_counter(), None, list[Entry]()
    if is_first:
        progress = reporter.token_progress(f"files of {folder}", "files")
    with library.catalogue() as catalogue:
        state = sync_folder(catalogue, folder, prune=prune, if_empty=if_empty, progress=progress)
    reporter.settle()
    changes, read, failed = state.changes, list[str](), list(state.changes.refused)
    known = library.text_digests() if load else set()
    for record in changes.readable if load else ():
        if record.digest in known:
            continue
        known.add(record.digest)
        try:
            if load and (entry := load().ingest(record.path).entry):
                read.append(entry.id)
        except DiskError:
            raise
        except (DocumentError, ResourceError) as error:
            failed.append(record._replace(why=error.message, hint=error.hint))
    for record in failed:
        if record not in reported:
            reporter.left_out(record.why, record.hint)
    for left_out in state.left_out if is_first else ():
        reporter.warn(f"esa: {left_out.line}")
    removed = [record.path for record in state.removed if record not in reported]
    reported.clear()
    reported.update(failed, state.removed)
    if prune:
        with library.catalogue() as catalogue:
            entries = [entry for part in catalogue.entries() for entry in part]
            outdated = outdated_entries(catalogue, state, entries)
        for entry in outdated:
            library.remove(entry)
        with library.catalogue() as catalogue:
            forget_removed(catalogue, folder, state)
    return {
        "folder": folder,
        "files": len(changes.records),
        "added": [record.path for record in changes.added],
        "changed": [record.path for record in changes.changed],
        "removed": removed,
        "failed": [{"source": record.path, "why": record.why} for record in failed],
        "left_out": [file.as_dict() for file in state.left_out],
        "read": read,
        "pruned": [entry.id for entry in outdated],
        "seconds": round(time.perf_counter() - started, 3),
    }

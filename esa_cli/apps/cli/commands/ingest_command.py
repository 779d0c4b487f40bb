"""The command `esa ingest`, which puts documents into the library."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from esa_cli.apps.cli.inputs import read_documents
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output import terminal
from esa_cli.documents.document import Document
from esa_cli.errors import PARTIAL, DiskError, DocumentError, ResourceError, UsageError
from esa_cli.qa.ingestion import library_texts
from esa_cli.storage.library import FileRecord, Library, LibraryEntry
from esa_cli.storage.library.disk import get_library_folder
from esa_cli.system.machine import format_duration, format_size
from esa_cli.system.progress import WorkShard

if TYPE_CHECKING:
    from esa_cli.apps.ingest_engine import IngestRow
    from esa_cli.qa.api import Esa

POLL_S = 6.0
"""Seconds between two looks for changes in a watched folder."""
CHANGES = {
    "added": "added",
    "changed": "changed",
    "removed": "removed",
    "read": "read by the model",
    "pruned": "pruned from the library",
}
"""The counted fields in the JSON object of an update, with the words that describe them."""


@options.make_typer_command
def ingest(
    documents: options.Documents,
    words: Annotated[
        bool, option("--words", "Index only the words of the files in folders, without a model.")
    ] = False,
    watch: Annotated[
        bool, option("--watch", "Index new and changed files in folders until Ctrl-C.")
    ] = False,
    prune: Annotated[
        bool, option("--prune", "Remove the former versions and the documents of removed files.")
    ] = False,
    yes: Annotated[
        bool, option("--yes -y", "Prune even if no document is left in a folder.")
    ] = False,
    rows: Annotated[
        Literal["int8", "native"],
        option("--rows int8|native", "Precision of stored KV caches: 8 bits, or as in the model."),
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
            "Number of processes or, with --engine ray, of actors, by default one per GPU.",
            min=1,
        ),
    ] = None,
    *,
    model: options.ModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read documents once into the library, for all later questions.

    Later `esa ask` recognises a stored document by its text, and `esa ask --library` needs no names
    of documents. After a stop, the same `esa ingest` command continues where it was."""
    check_ingest_engine_installed(engine)
    is_local = engine == "local" and workers is None
    follows, is_divided = watch or words or prune, shard is not None or not is_local
    name = "--watch" if watch else "--words" if words else "--prune"
    options.refuse_both(name, "--shard, --workers and --engine ray", follows and is_divided)
    chosen = None if words else model.load_preset().alter_answer_settings(adapter=None, reader=None)
    with terminal.Reporter(quiet) as reporter, ExitStack() as stack:

        @cache
        def load_model() -> Esa:
            from esa_cli.apps.cli.model_and_documents import open_model

            assert chosen is not None
            opened = open_model(chosen, model, reporter, keep=True, kv_dtype=rows)
            return stack.enter_context(opened)

        def ingest_all_documents(documents: Sequence[Document]) -> Iterator[IngestRow]:
            from esa_cli.apps import ingest_engine
            from esa_cli.qa.opening import check_before_loading

            if is_local:
                for document in documents:
                    yield ingest_engine.ingest_document(load_model(), document, rows, reporter)
                return
            assert chosen is not None
            check_before_loading(chosen, model.choose_device_and_dtype(), reporter, keep=True)
            library, on_ray = get_library_folder().absolute(), engine == "ray"
            worker = ingest_engine.IngestWorker(chosen, model, rows, library, os.getcwd())
            yield from ingest_engine.ingest_in_parallel(
                worker, documents, reporter, workers, on_ray=on_ray
            )

        if follows:
            _update_library_from_folders(
                documents, None if words else load_model, reporter,
                prune=prune, prune_if_empty=yes, watch=watch, as_json=as_json,
            )  # fmt: skip
            return
        ingested: list[IngestRow] = []
        gathered = read_documents(documents, reporter, WorkShard.parse(shard))
        try:
            for row in ingest_all_documents(gathered.documents) if gathered.documents else ():
                ingested.append(row)
            for path in library_texts.record_removed_files_of_folders(Library(), documents):
                reporter.show_note(f"esa: {path} is removed, and no longer answers", dim=False)
        finally:
            reporter.clear_spinner()
            if sys.exc_info()[0] is None or ingested:  # after an error, too
                left_out = [file.to_dict() for file in gathered.left_out]
                _print_ingested_documents(ingested, left_out, as_json)


def check_ingest_engine_installed(engine: str) -> None:
    """Raises UsageError if the package that --engine needs is not installed."""
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise UsageError("--engine ray needs the package ray", "run: pip install 'esa-cli[ray]'")


def _print_ingested_documents(
    rows: Sequence[IngestRow], left_out: Sequence[dict[str, Any]], as_json: bool
) -> None:
    if as_json:
        terminal.print_json({"documents": rows, "left_out": left_out})
        return
    table = [
        (
            row["id"] or "not stored",
            f"{row['tokens']:,}",
            "" if row["bytes"] is None else format_size(row["bytes"]),
            format_duration(row["read_s"]) if row["read_s"] else "before",
            row["name"],
        )
        for row in rows
    ]
    terminal.print_table(("id", "tokens", "size", "read in", "document"), table)


def _update_library_from_folders(
    folders: Sequence[str], load_model: Callable[[], Esa] | None, reporter: terminal.Reporter, *,
    prune: bool, prune_if_empty: bool, watch: bool, as_json: bool,
) -> None:  # fmt: skip
    """Updates the library with the files in folders, once or, with `watch`, until Ctrl-C. Without
    `load_model` only their words are indexed."""
    library, is_first, failed = Library(), True, dict[str, bool]()
    checked = [library_texts.check_indexable_folder(name, library) for name in folders]
    reported = defaultdict[str, set[FileRecord]](set)
    while is_first or watch:
        for folder in checked:
            result = _update_library_from_folder(
                folder, library, load_model, reporter, reported[folder],
                prune=prune, prune_if_empty=prune_if_empty and is_first, is_first=is_first,
            )  # fmt: skip
            failed[folder] = bool(result["failed"])
            if is_first or any(result[key] for key in CHANGES):
                _print_changes(result, as_json)
        if watch and is_first:
            reporter.show_note(f"esa: waiting for changes in {', '.join(folders)}; Ctrl-C ends")
        if watch:
            time.sleep(POLL_S)
        is_first = False
    if any(failed.values()):
        raise typer.Exit(PARTIAL)


def _print_changes(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(terminal.format_json(result), flush=True)
        return
    for path in result["removed"]:
        print(terminal.make_printable_line(f"removed {path}"))
    parts = [
        f"{len(result[key]):,} {what}"
        for key, what in CHANGES.items()
        if result[key] or key in ("added", "changed", "removed")
    ]
    files = terminal.pluralize(result["files"], "file")
    print(f"{files}: {', '.join(parts)}; {format_duration(result['seconds'])}", flush=True)


def _update_library_from_folder(
    folder: str, library: Library, load_model: Callable[[], Esa] | None,
    reporter: terminal.Reporter, reported: set[FileRecord], *, prune: bool, prune_if_empty: bool,
    is_first: bool,
) -> dict[str, Any]:  # fmt: skip
    """Updates the library with a folder's files, and returns what changed as JSON. Removed or
    unreadable files in `reported` are known. Raises DocumentError, LibraryError, ResourceError."""
    started, outdated = time.perf_counter(), list[LibraryEntry]()
    progress = reporter.start_progress(f"files of {folder}", "files") if is_first else None
    with library.open_catalogue() as catalogue:
        state = library_texts.sync_folder(
            catalogue, folder, prune=prune, prune_if_empty=prune_if_empty, progress=progress
        )
    reporter.clear_spinner()
    changes, read, failed = state.changes, list[str](), list(state.changes.refused_records)
    known = library.list_text_digests() if load_model else set()
    for record in changes.readable_records if load_model else ():
        if record.digest in known:
            continue
        known.add(record.digest)
        try:
            if load_model and (entry := load_model().ingest(record.path).entry):
                read.append(entry.id)
        except DiskError:
            raise
        except (DocumentError, ResourceError) as error:
            failed.append(record._replace(why=error.message, hint=error.hint))
    for record in failed:
        if record not in reported:
            reporter.warn_document_left_out(record.why, record.hint)
    for left_out in state.left_out if is_first else ():
        reporter.warn(f"esa: {left_out.message}")
    new = [one for one in state.removed if prune or not one.why]
    removed = [record.path for record in new if record not in reported]
    reported.clear()
    reported.update(failed, state.removed)
    if prune:
        with library.open_catalogue() as catalogue:
            entries = [entry for part in catalogue.list_present_and_former() for entry in part]
            outdated = library_texts.find_outdated_entries(catalogue, state, entries)
        for entry in outdated:
            library.remove(entry)
        with library.open_catalogue() as catalogue:
            library_texts.delete_removed_file_records(catalogue, folder, state)
    return {
        "folder": folder,
        "files": len(changes.records),
        "added": [record.path for record in changes.added],
        "changed": [record.path for record in changes.changed],
        "removed": removed,
        "failed": [{"source": record.path, "why": record.why} for record in failed],
        "left_out": [file.to_dict() for file in state.left_out],
        "read": read,
        "pruned": [entry.id for entry in outdated],
        "seconds": round(time.perf_counter() - started, 3),
    }

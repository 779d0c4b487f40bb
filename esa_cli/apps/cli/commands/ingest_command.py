"""`esa ingest`: puts documents into the library, once or whenever they change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.engine_options import EngineOptions, Shard
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import PARTIAL, UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.folder_update import FolderUpdate
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.ingest_report import IngestReport
    from esa_cli.qa.presets.preset import Preset

Documents = Annotated[
    list[str], typer.Argument(metavar="DOC...", help="Files, folders or patterns, or -.")
]
Rows = Annotated[
    Literal["int8", "native"],
    option("--rows int8|native", "How keys and values are kept: in 8 bits, or bit for bit."),
]
Words = Annotated[bool, option("--words", "Of folders: index the words alone, without a model.")]
Watch = Annotated[bool, option("--watch", "Go on with new and changed files until Ctrl-C.")]
Prune = Annotated[
    bool, option("--prune", "Of folders: forget removed files and former versions, too.")
]
Sure = Annotated[bool, option("--yes -y", "Prune also where no document is left in a folder.")]


@options.command
def ingest(
    documents: Documents,
    words: Words = False,
    watch: Watch = False,
    prune: Prune = False,
    yes: Sure = False,
    rows: Rows = "int8",
    shard: Shard = None,
    *,
    engines: EngineOptions,
    model: ModelOptions,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read documents once into the library, for all questions.

    `esa ask` then finds them there by their text, and `esa ask --library` without their names.
    Stopped in the middle, the same command goes on where it was.
    """
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.qa.presets.adapter_files import without_adapter

    reporter, alone = Reporter(quiet), shard is None and engines.local
    engines.check()
    option = "--watch" if watch else "--words" if words else "--prune"
    if (watch or words or prune) and not alone:
        raise UsageError(
            f"{option} must be given without --shard, --workers and --engine ray", "leave them out"
        )
    try:
        if words or prune:
            chosen = None if words else without_adapter(model.load_preset())
            _update(documents, chosen, model, watch, prune, yes, reporter, as_json)
            return
        if watch and "-" in documents:
            raise UsageError(
                "documents to --watch must be files, got standard input", "name a folder"
            )
        chosen = without_adapter(model.load_preset())
        if watch:
            _watch(documents, chosen, model, rows, reporter, as_json)
        _read(documents, shard, engines, chosen, model, rows, reporter, as_json)
    finally:
        reporter.settle()


def _read(
    names: Sequence[str],
    shard: str | None,
    engines: EngineOptions,
    chosen: Preset,
    model: ModelOptions,
    rows: Literal["int8", "native"],
    reporter: Reporter,
    as_json: bool,
) -> None:
    """Reads all documents, here or by workers, and prints what the library has of them."""
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.apps.cli.output.terminal import print_json, print_table
    from esa_cli.apps.ingest_report import ingest_document
    from esa_cli.qa.ingestion.library_texts import record_read_folders
    from esa_cli.storage.library import Library
    from esa_cli.storage.library.library_paths import default_root
    from esa_cli.system.machine import size_text, time_text
    from esa_cli.system.work_shard import WorkShard

    reports: list[IngestReport] = []
    gathered = inputs.read(names, reporter, WorkShard.parse(shard))
    if gathered.documents and engines.local:
        with opened(chosen, model, reporter, keep=True, rows=rows) as esa:
            reports = [ingest_document(esa, one, rows, reporter) for one in gathered.documents]
    elif gathered.documents:
        from esa_cli.apps.ingest_engine import IngestWorker, ingest_by_workers
        from esa_cli.qa.opening import prepare

        prepare(chosen, model.place, reporter, keep=True)
        worker = IngestWorker(chosen, model, rows, default_root().absolute(), os.getcwd())
        reports = ingest_by_workers(
            worker, gathered.documents, reporter, engines.workers, on_ray=engines.engine == "ray"
        )
    record_read_folders(Library(), names)
    reporter.settle()
    if as_json:
        left_out = [one.as_dict() for one in gathered.left_out]
        print_json({"documents": [one.as_dict() for one in reports], "left_out": left_out})
        return
    print_table(
        ("id", "tokens", "size", "read in", "document"),
        [
            (
                one.id or "not kept",
                f"{one.tokens:,}",
                "" if one.bytes is None else size_text(one.bytes),
                time_text(one.read_s) if one.read_s else "before",
                one.name,
            )
            for one in reports
        ],
    )


def _update(
    names: Sequence[str],
    chosen: Preset | None,
    model: ModelOptions,
    watch: bool,
    prune: bool,
    yes: bool,
    reporter: Reporter,
    as_json: bool,
) -> None:
    """Brings the library up to date with folders, once or until Ctrl-C; `chosen` reads, too."""
    from esa_cli.apps.cli.folder_update import FolderReading, FolderUpdate
    from esa_cli.qa.ingestion.library_texts import check_folder
    from esa_cli.storage.library import Library
    from esa_cli.system.files import folder_changes

    library = Library()
    paths = [check_folder(name, library) for name in names]
    with contextlib.ExitStack() as stack:
        reading = None
        if chosen is not None:
            reading = FolderReading(chosen, model, library, reporter, stack)
        updates = [FolderUpdate(path, library, reading, prune, yes, reporter) for path in paths]
        for update in updates:
            _show_update(update.run(), as_json)
            update.keeps_if_empty()
        if watch:
            reporter.note(f"esa: waiting for changes of {', '.join(names)}, until Ctrl-C")
            for _ in folder_changes(*paths):
                for update in updates:
                    if update.run().is_changed:
                        _show_update(update, as_json)
    if any(update.failed for update in updates):
        raise typer.Exit(PARTIAL)


def _show_update(update: FolderUpdate, as_json: bool) -> None:
    from esa_cli.apps.cli.output.terminal import as_json as written
    from esa_cli.apps.cli.output.terminal import one_line

    if as_json:
        print(written(update.as_dict()), flush=True)
        return
    for path in update.removed:
        print(one_line(f"removed {path}"))
    print(update.summary, flush=True)


def _watch(
    names: Sequence[str],
    chosen: Preset,
    model: ModelOptions,
    rows: Literal["int8", "native"],
    reporter: Reporter,
    as_json: bool,
) -> NoReturn:
    """Reads all documents, and then what is new or has changed, until Ctrl-C."""
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.ingest_watch import WatchedFiles, read_changed
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.apps.ingest_report import ingest_document
    from esa_cli.qa.ingestion.library_texts import record_read_folders
    from esa_cli.storage.library import Library

    watched = WatchedFiles(names)
    with opened(chosen, model, reporter, keep=True, rows=rows) as esa:

        def read(path: str) -> None:
            for document in inputs.read([path], reporter).documents:
                _show_line(ingest_document(esa, document, rows, reporter), as_json)

        read_changed(watched.first, read, reporter)
        reporter.note(f"esa: waiting for changes of {', '.join(names)}, until Ctrl-C", dim=False)
        for paths in watched.changes():
            read_changed(paths, read, reporter)
            record_read_folders(Library(), names)
    raise AssertionError("watching has no end")


def _show_line(one: IngestReport, as_json: bool) -> None:
    """A document on standard output as soon as it is read."""
    from esa_cli.apps.cli.output.terminal import as_json as written
    from esa_cli.apps.cli.output.terminal import one_line
    from esa_cli.system.machine import time_text

    if as_json:
        print(written(one.as_dict()), flush=True)
    else:
        took = f"read in {time_text(one.read_s)}" if one.read_s else "read before"
        line = f"{one.id or 'not kept'}  {one.tokens:,} tokens, {took}: {one.source}"
        print(one_line(line), flush=True)

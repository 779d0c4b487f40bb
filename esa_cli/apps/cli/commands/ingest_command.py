"""`esa ingest`: puts documents into the library, once or whenever they change."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli import inputs
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions, Shard
from esa_cli.apps.cli.output.terminal import Reporter, as_json, one_line, print_json, print_table
from esa_cli.errors import PARTIAL, UsageError
from esa_cli.storage.library import Library
from esa_cli.system.machine import size_text, time_text
from esa_cli.system.progress import WorkShard

if TYPE_CHECKING:
    from esa_cli.apps.cli.folder_update import FolderUpdate
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.ingest_engine import IngestRow
    from esa_cli.documents.document import Document
    from esa_cli.qa.api import Esa

RowKind = Literal["int8", "native"]
SETTLE_S = 1.0
"""Wait after a change of a watched folder: a file may still be growing."""


@options.command
def ingest(
    documents: Annotated[
        list[str], typer.Argument(metavar="DOC...", help="Files, folders or patterns, or -.")
    ],
    words: Annotated[
        bool, option("--words", "Of folders: index the words alone, without a model.")
    ] = False,
    watch: Annotated[
        bool, option("--watch", "Of folders: go on with new and changed files until Ctrl-C.")
    ] = False,
    prune: Annotated[
        bool, option("--prune", "Of folders: forget removed files and former versions, too.")
    ] = False,
    yes: Annotated[
        bool, option("--yes -y", "Prune also where no document is left in a folder.")
    ] = False,
    rows: Annotated[
        RowKind,
        option("--rows int8|native", "How keys and values are kept: in 8 bits, or bit for bit."),
    ] = "int8",
    shard: Shard = None,
    engine: Annotated[
        Literal["local", "ray"],
        option(
            "--engine local|ray",
            "local: this process, or --workers of this machine; ray: actors of a Ray cluster.",
        ),
    ] = "local",
    workers: Annotated[
        int | None,
        option(
            "--workers N",
            "Processes of this machine; of --engine ray actors, else one for each GPU or machine.",
            min=1,
        ),
    ] = None,
    *,
    model: ModelOptions,
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
    options.exclusive(name, "--shard, --workers and --engine ray", follows and is_divided)
    chosen = None if words else without_adapter(model.load_preset())
    with Reporter(quiet) as reporter, ExitStack() as stack:

        @cache
        def asker() -> Esa:
            from esa_cli.apps.cli.open_esa import opened

            assert chosen is not None
            return stack.enter_context(opened(chosen, model, reporter, keep=True, rows=rows))

        def read(documents: Sequence[Document]) -> Iterator[IngestRow]:
            from esa_cli.apps.ingest_engine import ingest_document
            from esa_cli.qa.opening import prepare
            from esa_cli.storage.library.disk import default_root

            if is_local:
                for document in documents:
                    yield ingest_document(asker(), document, rows, reporter)
                return
            from esa_cli.apps.ingest_engine import IngestWorker, ingest_by_workers

            assert chosen is not None
            prepare(chosen, model.place, reporter, keep=True)
            worker = IngestWorker(chosen, model, rows, default_root().absolute(), os.getcwd())
            yield from ingest_by_workers(
                worker, documents, reporter, workers, on_ray=engine == "ray"
            )

        if follows:
            _follow(documents, None if words else asker, watch, prune, yes, reporter, in_json)
        else:
            _read(documents, shard, read, reporter, in_json)


def check_engine(engine: str) -> None:
    """Raises UsageError: it is not installed."""
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise UsageError("--engine ray needs ray", "pip install 'esa-cli[ray]'")


def _read(
    names: Sequence[str],
    shard: str | None,
    read: Callable[[Sequence[Document]], Iterable[IngestRow]],
    reporter: Reporter,
    in_json: bool,
) -> None:
    """Has all documents read, and prints what the library has of them; after an error those
    that were read before it."""
    from esa_cli.qa.ingestion.library_texts import record_read_folders

    rows: list[IngestRow] = []
    gathered = inputs.read(names, reporter, WorkShard.parse(shard))
    try:
        for row in read(gathered.documents) if gathered.documents else ():
            rows.append(row)
        record_read_folders(Library(), names)
    finally:
        reporter.settle()
        if sys.exc_info()[0] is None or rows:
            if in_json:
                left_out = [one.as_dict() for one in gathered.left_out]
                print_json({"documents": rows, "left_out": left_out})
            else:
                headers = ("id", "tokens", "size", "read in", "document")
                print_table(headers, [_cells(one) for one in rows])


def _cells(row: IngestRow) -> tuple[str, ...]:
    return (
        row["id"] or "not kept",
        f"{row['tokens']:,}",
        "" if row["bytes"] is None else size_text(row["bytes"]),
        time_text(row["read_s"]) if row["read_s"] else "before",
        row["name"],
    )


def _follow(
    names: Sequence[str],
    asker: Callable[[], Esa] | None,
    watch: bool,
    prune: bool,
    yes: bool,
    reporter: Reporter,
    in_json: bool,
) -> None:
    """Brings the library up to date with folders, once or until Ctrl-C; the model of `asker`
    reads them, too."""
    from esa_cli.apps.cli.folder_update import FolderUpdate
    from esa_cli.qa.ingestion.library_texts import check_folder
    from esa_cli.system.files import poll_changes

    def read(path: str) -> str | None:
        assert asker is not None
        entry = asker().ingest(path).entry
        return entry.id if entry else None

    library, model = Library(), read if asker else None
    paths = [check_folder(name, library) for name in names]
    updates = [FolderUpdate(path, library, model, prune, yes, reporter) for path in paths]
    for update in updates:
        _show_update(update.run(), in_json)
    if watch:
        reporter.note(f"esa: waiting for changes of {', '.join(names)}, until Ctrl-C")
        for _ in poll_changes():
            time.sleep(SETTLE_S)
            for update in updates:
                if update.run().is_changed:
                    _show_update(update, in_json)
    if any(update.failed for update in updates):
        raise typer.Exit(PARTIAL)


def _show_update(update: FolderUpdate, in_json: bool) -> None:
    if in_json:
        print(as_json(update.as_dict()), flush=True)
        return
    for path in update.removed:
        print(one_line(f"removed {path}"))
    print(update.summary, flush=True)

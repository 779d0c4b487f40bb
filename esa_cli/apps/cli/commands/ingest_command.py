"""`esa ingest`: puts documents into the library, once or whenever they change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli import inputs
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.engine_options import EngineOptions, Shard
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.terminal import Reporter, print_json, print_table
from esa_cli.errors import PARTIAL
from esa_cli.storage.library import Library
from esa_cli.system.machine import size_text, time_text
from esa_cli.system.work_shard import WorkShard

if TYPE_CHECKING:
    from esa_cli.apps.cli.folder_update import FolderUpdate
    from esa_cli.apps.engine.ingest_worker import IngestReport
    from esa_cli.documents.document import Document
    from esa_cli.qa.api import Esa

    Opening = Callable[[], AbstractContextManager[Esa]]

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
    from esa_cli.qa.presets.adapter_files import without_adapter

    engines.check()
    follows, is_divided = watch or words or prune, shard is not None or not engines.local
    name = "--watch" if watch else "--words" if words else "--prune"
    options.exclusive(name, "--shard, --workers and --engine ray", follows and is_divided)
    reporter = Reporter(quiet)
    chosen = None if words else without_adapter(model.load_preset())

    def opened() -> AbstractContextManager[Esa]:
        from esa_cli.apps.cli import open_esa

        assert chosen is not None
        return open_esa.opened(chosen, model, reporter, keep=True, rows=rows)

    def work(documents: Sequence[Document]) -> Iterator[IngestReport]:
        from esa_cli.apps.engine.ingest_worker import IngestWorker, ingest_by, ingest_document
        from esa_cli.qa.opening import prepare
        from esa_cli.storage.library.library_paths import default_root

        assert chosen is not None
        if engines.local:
            with opened() as esa:
                for document in documents:
                    yield ingest_document(esa, document, rows, reporter)
            return
        prepare(chosen, model.place, reporter, keep=True)
        worker = IngestWorker(chosen, model, rows, default_root().absolute())
        with engines.open(reporter, model.device) as engine:
            yield from ingest_by(engine, worker, documents, reporter)

    try:
        if follows:
            _update(documents, None if words else opened, watch, prune, yes, reporter, as_json)
        else:
            _read(documents, shard, work, reporter, as_json)
    finally:
        reporter.settle()


def _read(
    names: Sequence[str],
    shard: str | None,
    work: Callable[[Sequence[Document]], Iterable[IngestReport]],
    reporter: Reporter,
    as_json: bool,
) -> None:
    """Has all documents read, and prints what the library has of them; after an error those
    that were read before it."""
    from esa_cli.qa.ingestion.library_texts import record_read_folders

    reports: list[IngestReport] = []
    gathered = inputs.read(names, reporter, WorkShard.parse(shard))
    try:
        if gathered.documents:
            for report in work(gathered.documents):
                reports.append(report)
        record_read_folders(Library(), names)
    finally:
        reporter.settle()
        if sys.exc_info()[0] is None or reports:
            if as_json:
                left_out = [one.as_dict() for one in gathered.left_out]
                rows = [one.as_dict() for one in reports]
                print_json({"documents": rows, "left_out": left_out})
            else:
                table = [
                    (
                        one.id or "not kept",
                        f"{one.tokens:,}",
                        "" if one.bytes is None else size_text(one.bytes),
                        time_text(one.read_s) if one.read_s else "before",
                        one.name,
                    )
                    for one in reports
                ]
                print_table(("id", "tokens", "size", "read in", "document"), table)


def _update(
    names: Sequence[str],
    opened: Opening | None,
    watch: bool,
    prune: bool,
    yes: bool,
    reporter: Reporter,
    as_json: bool,
) -> None:
    """Brings the library up to date with folders, once or until Ctrl-C; `opened`: a model
    reads them, too."""
    from esa_cli.apps.cli.folder_update import FolderUpdate
    from esa_cli.qa.ingestion.library_texts import check_folder
    from esa_cli.system.files import folder_changes

    library = Library()
    paths = [check_folder(name, library) for name in names]
    with ExitStack() as stack:

        @cache
        def asker() -> Esa:
            assert opened is not None
            return stack.enter_context(opened())

        def read(path: str) -> str | None:
            entry = asker().ingest(path).entry
            return entry.id if entry else None

        model = read if opened else None
        updates = [FolderUpdate(path, library, model, prune, yes, reporter) for path in paths]
        for update in updates:
            _show_update(update.run(), as_json)
        if watch:
            reporter.note(f"esa: waiting for changes of {', '.join(names)}, until Ctrl-C")
            for _ in folder_changes(*paths):
                time.sleep(SETTLE_S)
                for update in updates:
                    if update.run().is_changed:
                        _show_update(update, as_json)
    if any(update.failed for update in updates):
        raise typer.Exit(PARTIAL)


def _show_update(update: FolderUpdate, as_json: bool) -> None:
    from esa_cli.apps.cli.output import terminal

    if as_json:
        print(terminal.as_json(update.as_dict()), flush=True)
        return
    for path in update.removed:
        print(terminal.one_line(f"removed {path}"))
    print(update.summary, flush=True)

"""`esa ingest`: reads documents into the library, to be asked about ever after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.engine_options import LOCAL, EngineOptions
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.options.shard_options import Shard

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.engine.ingest_worker import IngestReport
    from esa_cli.qa.presets.preset import Preset

Documents = Annotated[
    list[str], typer.Argument(metavar="DOC...", help="Files, folders or patterns, or -.")
]
Rows = Annotated[
    Literal["int8", "native"],
    typer.Option(
        "--rows",
        metavar="int8|native",
        help="How keys and values are kept: in 8 bits, or bit for bit.",
    ),
]
Watch = Annotated[
    bool, typer.Option("--watch", help="Go on: read new and changed files until Ctrl-C.")
]


@options.command
def ingest(
    documents: Documents,
    rows: Rows = "int8",
    watch: Watch = False,
    shard: Shard = None,
    engines: EngineOptions = LOCAL,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read documents once into the library, for all questions.

    `esa ask` then finds them there by their text. Stopped in the middle, the same command goes
    on where it was.
    """
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.model_choice.open_esa import opened
    from esa_cli.apps.cli.output.terminal import Reporter, print_json
    from esa_cli.apps.engine.ingest_worker import ingest_document
    from esa_cli.qa.ingestion.library_texts import record_read_folders
    from esa_cli.qa.presets.adapter_files import without_adapter
    from esa_cli.storage.library import Library
    from esa_cli.system.work_shard import WorkShard

    part, reporter = WorkShard.parse(shard), Reporter(quiet)
    kept: list[IngestReport] = []
    engines.check()
    if watch:
        from esa_cli.apps.cli.ingest_watch import check_watched

        check_watched(documents, alone=shard is None and engines.local)
    try:
        chosen = without_adapter(model.load_preset())
        if watch:
            _watch(documents, chosen, model, rows, reporter, as_json)
        found = inputs.read(documents, reporter, part)
        if found.documents and engines.local:
            with opened(chosen, model, reporter, keep=True, rows=rows) as esa:
                kept = [ingest_document(esa, one, rows, reporter) for one in found.documents]
        elif found.documents:
            from esa_cli.apps.cli.model_choice.open_esa import prepare
            from esa_cli.apps.engine.ingest_worker import IngestWorker, ingest_by
            from esa_cli.storage.library.formats.library_paths import default_root

            prepare(chosen, model, reporter, keep=True)
            worker = IngestWorker(chosen, model, rows, default_root().absolute())
            with engines.open(reporter, model.device) as engine:
                kept = ingest_by(engine, worker, found.documents, reporter)
        record_read_folders(Library(), documents)
    finally:
        reporter.settle()
    if as_json:
        left_out = [one.as_dict() for one in found.left_out]
        print_json({"documents": [one.as_dict() for one in kept], "left_out": left_out})
    else:
        _print(kept)


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
    from esa_cli.apps.cli.model_choice.open_esa import opened
    from esa_cli.apps.engine.ingest_worker import ingest_document
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
    import sys

    from esa_cli.apps.cli.output.terminal import as_json as written
    from esa_cli.apps.cli.output.terminal import one_line
    from esa_cli.system.machine import time_text

    if as_json:
        print(written(one.as_dict()))
    else:
        took = f"read in {time_text(one.read_s)}" if one.read_s else "read before"
        print(one_line(f"{one.id or 'not kept'}  {one.tokens:,} tokens, {took}: {one.source}"))
    sys.stdout.flush()


def _print(kept: Sequence[IngestReport]) -> None:
    from esa_cli.apps.cli.output.terminal import print_table
    from esa_cli.system.machine import size_text, time_text

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
            for one in kept
        ],
    )

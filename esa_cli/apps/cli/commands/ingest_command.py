"""`esa ingest`: reads documents into the library, to be asked about ever after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from esa_cli.apps.cli import options
from esa_cli.apps.cli.engine_options import LOCAL, EngineOptions
from esa_cli.apps.cli.options import ModelOptions
from esa_cli.apps.cli.shard_options import Shard

if TYPE_CHECKING:
    from esa_cli.apps.engine.ingest_report import IngestReport

Documents = Annotated[
    list[str], typer.Argument(metavar="DOC...", help="Files, folders or patterns, or -.")
]
Rows = Annotated[
    Literal["int8", "native"],
    typer.Option("--rows", help="How keys and values are kept: in 8 bits, or bit for bit."),
]


@options.command
def ingest(
    documents: Documents,
    rows: Rows = "int8",
    shard: Shard = None,
    engines: EngineOptions = LOCAL,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Read documents once into the library; `esa ask` then finds them there by their text.

    Stopped in the middle, the same command goes on where it was.
    """
    from esa_cli.apps.cli import inputs
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.apps.cli.terminal import Reporter, print_json
    from esa_cli.apps.engine.ingest_report import ingest_document
    from esa_cli.qa.adapter_files import without_adapter
    from esa_cli.system.work_shard import WorkShard

    part, reporter = WorkShard.parse(shard), Reporter(quiet)
    kept: list[IngestReport] = []
    engines.check()
    try:
        chosen = without_adapter(model.load_preset())
        found = inputs.read(documents, reporter, part)
        if found.documents and engines.local:
            with opened(chosen, model, reporter, keep=True, rows=rows) as esa:
                kept = [ingest_document(esa, one, rows, reporter) for one in found.documents]
        elif found.documents:
            from esa_cli.apps.cli.preflight import prepare
            from esa_cli.apps.engine.ingest_worker import IngestWorker, ingest_by
            from esa_cli.storage.library.library_paths import default_root

            ready = prepare(chosen, model, reporter, keep=True)
            worker = IngestWorker(chosen, model, rows, default_root().absolute())
            with engines.open(reporter, model.device) as engine:
                kept = ingest_by(engine, worker, found.documents, reporter, ready)
    finally:
        reporter.settle()
    if as_json:
        left_out = [one.as_dict() for one in found.left_out]
        print_json({"documents": [one.as_dict() for one in kept], "left_out": left_out})
    else:
        _print(kept)


def _print(kept: Sequence[IngestReport]) -> None:
    from esa_cli.apps.cli.terminal import print_table
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

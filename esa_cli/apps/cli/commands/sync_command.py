"""`esa sync`: keeps the words of a folder's files in the library, once or whenever they change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import PARTIAL

if TYPE_CHECKING:
    from esa_cli.apps.cli.folder_update import FolderUpdate

Folder = Annotated[str, typer.Argument(metavar="FOLDER", help="A folder of documents.")]
Watch = Annotated[bool, typer.Option("--watch", help="Go on, whenever a file changes.")]
Read = Annotated[
    bool, typer.Option("--read", help="The model reads the documents, too, as `esa ingest` does.")
]
Prune = Annotated[
    bool,
    typer.Option("--prune", help="Forget files that were removed, and former versions of files."),
]
PruneAll = Annotated[
    bool,
    typer.Option("--prune-all", help="As --prune, and also where no document is left in FOLDER."),
]


@options.command
def sync(
    folder: Folder,
    watch: Watch = False,
    read: Read = False,
    prune: Prune = False,
    prune_all: PruneAll = False,
    model: ModelOptions = options.DEFAULTS,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Keep the documents of a folder in the library, as words.

    For `esa ask --library` and `esa find --library`. Stopped in the middle, the same command
    goes on where it was.
    """
    from esa_cli.apps.cli.folder_reading import FolderReading
    from esa_cli.apps.cli.folder_update import FolderUpdate
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.qa.ingestion.library_texts import check_folder
    from esa_cli.storage.library import Library
    from esa_cli.system.folder_changes import folder_changes

    library, reporter = Library(), Reporter(quiet)
    path = check_folder(folder, library)
    with contextlib.ExitStack() as stack:
        stack.callback(reporter.settle)
        reading = None
        if read:
            from esa_cli.qa.presets.adapter_files import without_adapter

            chosen = without_adapter(model.load_preset())
            reading = FolderReading(chosen, model, library, reporter, stack)
        update = FolderUpdate(path, library, reading, prune or prune_all, prune_all, reporter)
        done = update.run()
        _show(done, as_json)
        if watch:
            update.keeps_if_empty()
            reporter.note(f"esa: waiting for changes of {folder}, until Ctrl-C")
            for _ in folder_changes(path):
                done = update.run()
                if done.is_changed:
                    _show(done, as_json)
    if done.failed:
        raise typer.Exit(PARTIAL)


def _show(done: FolderUpdate, as_json: bool) -> None:
    import sys

    from esa_cli.apps.cli.output.terminal import as_json as written
    from esa_cli.apps.cli.output.terminal import one_line

    if as_json:
        print(written(done.as_dict()))
    else:
        for path in done.removed:
            print(one_line(f"removed {path}"))
        print(done.summary)
    sys.stdout.flush()

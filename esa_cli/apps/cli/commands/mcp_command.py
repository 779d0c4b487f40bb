"""`esa mcp`: a server for assistants and editors that speak the Model Context Protocol."""

from __future__ import annotations

import gc
import importlib.metadata
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from esa_cli.apps.cli.commands.serve_command import check_access
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions, ReaderOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.storage.library import Library

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.qa.reading.reader_choice import ReaderChoice

OLDEST = 2
"""Of the SDK's major versions."""
INSTALL = "pip install 'esa-cli[mcp]'"


@options.command
def mcp(
    allow: Annotated[
        list[Path] | None, option("--allow DIR", "Clients may name files in it. Repeatable.")
    ] = None,
    *,
    model: ModelOptions,
    answer: ReaderOptions,
    quiet: options.Quiet = False,
) -> None:
    """Serve the library to assistants and editors (MCP).

    By the Model Context Protocol, on standard streams: such a program starts it itself.
    """
    check_sdk()
    folders = allow or []
    check_access(folders, None, None)
    chosen, reader = answer.load_preset(model), answer.reader_choice()
    gc.enable()
    from esa_cli.apps.server.allowed_documents import AllowedDocuments
    from esa_cli.apps.server.mcp_server import DocumentTools, asker_on_demand, run_stdio

    with Reporter(quiet) as reporter, ExitStack() as stack:
        asker = asker_on_demand(_loader(chosen, model, reader, reporter, stack))
        documents = AllowedDocuments(
            asker, [], folders, Library(), stored=True, limit=chosen.answer.documents
        )
        tools = DocumentTools(documents, chosen, model, reporter)
        if sys.stdin.isatty():
            reporter.note("esa: waiting for a client on standard input; see docs/serve.md")
        run_stdio(tools)


def check_sdk() -> None:
    """Raises UsageError: the protocol's SDK is missing or too old."""
    try:
        version = importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("`esa mcp` needs mcp", INSTALL) from None
    if int(version.partition(".")[0]) < OLDEST:
        raise UsageError(f"mcp must be of version {OLDEST} or later, got {version}", INSTALL)


def _loader(
    chosen: Preset,
    model: ModelOptions,
    reader: ReaderChoice | None,
    reporter: Reporter,
    stack: ExitStack,
) -> Callable[[], Esa]:
    """Loads the model; documents are stored where the library can be written."""

    def load() -> Esa:
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.qa.opening import answerable, runs_methods

        library, preset = Library(), answerable(chosen, reporter)
        # An index is stored by default, and a disk that is full later does no harm then.
        by_default = preset.answer.has_index and not preset.answer.needs_rows
        reads = not preset.answer.by_words or runs_methods(preset, reporter)
        keep = True if reads and not by_default and library.writable else None
        return stack.enter_context(
            opened(preset, model, reporter, keep=keep, library=library, reader=reader)
        )

    return load

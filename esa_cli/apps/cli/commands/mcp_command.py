"""`esa mcp`: a server for assistants and editors that speak the Model Context Protocol."""

from __future__ import annotations

import gc
import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from esa_cli.apps.cli.commands.serve_command import Host, Port, Token, check_folders, check_token
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.errors import UsageError

if TYPE_CHECKING:
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.apps.mcp_server.document_tools import DocumentTools
    from esa_cli.qa.api import Esa
    from esa_cli.qa.presets.preset import Preset
    from esa_cli.qa.reading.reader_choice import ReaderChoice

OLDEST = 2
"""Of the SDK's major versions."""
INSTALL = "pip install 'esa-cli[mcp]'"
Allow = Annotated[
    list[Path] | None, option("--allow DIR", "Clients may name files in it. Repeatable.")
]
Http = Annotated[bool, option("--http", "Serve streamable HTTP in place of standard input.")]


@options.command
def mcp(
    allow: Allow = None,
    http: Http = False,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token: Token = None,
    *,
    model: ModelOptions,
    answer: AnswerOptions,
    quiet: options.Quiet = False,
) -> None:
    """Serve the library to assistants and editors (MCP).

    By the Model Context Protocol. Such a program starts it itself; --http waits for clients on
    this machine.
    """
    from esa_cli.apps.cli.output.terminal import Reporter

    check_sdk()
    check_folders(allow or [])
    if http:
        check_token(token, host)
    chosen, reader = answer.load_preset(model), answer.reader_choice()
    reporter = Reporter(quiet)
    gc.enable()
    try:
        with ExitStack() as stack:
            load = _loader(chosen, model, reader, reporter, stack)
            tools = _tools(chosen, model, load, allow or [], reporter)
            if http:
                _serve_http(tools, host, port, token, reporter)
            else:
                _serve_stdio(tools, reporter)
    finally:
        reporter.settle()


def check_sdk() -> None:
    """Raises UsageError: the protocol's SDK is missing or too old."""
    try:
        found = importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("`esa mcp` needs mcp", INSTALL) from None
    if int(found.partition(".")[0]) < OLDEST:
        raise UsageError(f"mcp must be of version {OLDEST} or later, got {found}", INSTALL)


def _loader(
    chosen: Preset,
    model: ModelOptions,
    reader: ReaderChoice | None,
    reporter: Reporter,
    stack: ExitStack,
) -> Callable[[], Esa]:
    """Loads the model; what is read is stored where the library can be written."""
    from esa_cli.storage.library import Library

    def load() -> Esa:
        from esa_cli.apps.cli.open_esa import opened
        from esa_cli.qa.opening import answerable, runs_methods

        library, preset = Library(), answerable(chosen, reporter)
        reads = not preset.answer.by_words or runs_methods(preset, reporter)
        keep = True if reads and library.writable else None
        return stack.enter_context(
            opened(preset, model, reporter, keep=keep, library=library, reader=reader)
        )

    return load


def _tools(
    chosen: Preset,
    model: ModelOptions,
    load: Callable[[], Esa],
    allow: Sequence[Path],
    reporter: Reporter,
) -> DocumentTools:
    from esa_cli.apps.mcp_server.document_tools import DocumentTools, asker_on_demand
    from esa_cli.apps.server.allowed_documents import AllowedDocuments
    from esa_cli.storage.library import Library

    asker = asker_on_demand(load)
    documents = AllowedDocuments(
        asker, [], allow, Library(), stored=True, most=chosen.answer.documents
    )
    return DocumentTools(documents, chosen, model, reporter)


def _serve_stdio(tools: DocumentTools, reporter: Reporter) -> None:
    from esa_cli.apps.mcp_server.mcp_app import run_stdio

    if sys.stdin.isatty():
        reporter.note("esa: waiting for a client on standard input; docs/serve.md says how")
    run_stdio(tools)


def _serve_http(
    tools: DocumentTools, host: str, port: int, token: str | None, reporter: Reporter
) -> None:
    """Serves until Ctrl-C. Raises UsageError: the address is taken."""
    from esa_cli.apps.mcp_server import mcp_app
    from esa_cli.apps.server import server_run

    with server_run.bind(host, port) as sock:
        print(server_run.address(sock, mcp_app.PATH), flush=True)
        reporter.note("esa: serving the library; Ctrl-C ends")
        mcp_app.run_http(tools, sock, token)
    reporter.note("esa: ended")

"""`esa serve`: a page, and OpenAI's chat completions; `esa mcp`: the Model Context Protocol."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli.inputs import read_documents
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.storage.library import Library
from esa_cli.system.machine import is_loopback

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.qa.api import Esa


Allow = Annotated[
    list[Path] | None, option("--allow DIR", "Let clients name files in this folder. Repeatable.")
]


def check_folders(folders: Sequence[Path]) -> None:
    """Raises UsageError where a path of --allow is no folder."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--allow must be a folder, got {folder}", "name one that exists")


@dataclass(frozen=True)
class ServeOptions:
    """Options of `esa serve` besides the model's."""

    allow: Allow = None
    host: Annotated[str, option("--host HOST", "The address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, option("--port N", "The port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8000
    token: Annotated[
        str | None,
        option(
            "--token TOKEN",
            "What clients must show as their API key; else $ESA_TOKEN.",
            envvar="ESA_TOKEN",
        ),
    ] = None

    library: Annotated[bool, option("--library", "Let requests name library documents.")] = False
    max_question: Annotated[
        int, option("--max-question TOKENS", "Longest question with its history, in tokens.", min=1)
    ] = 8192
    timeout: Annotated[
        float, option("--timeout SECONDS", "Longest time of an answer.", min=0.1)
    ] = 600.0
    keep: options.Keep = None

    def check(self) -> None:
        """Raises UsageError: --allow is no folder, or the token is no word, or is missing although
        other machines can connect."""
        check_folders(self.allow or ())
        token = self.token
        if token is None:
            if not is_loopback(self.host):
                wrong = f"--host {self.host} lets other machines in, so it needs a token"
                raise UsageError(wrong, "set $ESA_TOKEN, or give --token")
        elif not (token.isprintable() and token.isascii() and token.split() == [token]):
            raise UsageError("the token must be one word of printable ASCII", "choose another")


@options.command
def serve(
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOC...", help="Documents of the requests that name none."),
    ] = None,
    *,
    wanted: ServeOptions,
    model: options.ModelOptions,
    answer: options.ReaderOptions,
    quiet: options.Quiet = False,
) -> None:
    """Serve a page for asking, and /v1/chat/completions.

    The page is for browsers, the API for programs made for OpenAI's. The command prints the base
    URL when the server is ready; Ctrl-C ends it.
    """
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.qa.opening import answerable

    names = documents or []
    check_options(names, wanted)
    from esa_cli.apps.server import server_run

    chosen, reader = answer.load_preset(model), answer.reader_choice()
    server_run.bind(wanted.host, wanted.port).close()  # a taken port is reported at once
    with Reporter(quiet) as reporter:
        gathered = read_documents(names, reporter).documents
        chosen = answerable(chosen, reporter)
        limit = None if chosen.answer.needs_rows else chosen.answer.documents
        with opened(chosen, model, reporter, keep=bool(wanted.keep), reader=reader) as esa:
            run_server(esa, wanted, gathered, reporter, limit)


def check_options(documents: Sequence[str], wanted: ServeOptions) -> None:
    """Checks the options before a model is loaded. Raises UsageError."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        hint = "pip install 'esa-cli[serve]'"
        raise UsageError(f"`esa serve` needs {' and '.join(missing)}", hint)
    wanted.check()
    if not documents and not wanted.allow and not wanted.library:
        hint = "name some, or --allow a folder whose files requests may name"
        raise UsageError("documents, --allow or --library must be given, got none", hint)


def run_server(
    esa: Esa,
    wanted: ServeOptions,
    documents: Sequence[Document],
    reporter: Reporter,
    limit: int | None = None,
) -> None:
    """Reads the documents, then serves until Ctrl-C, and opens `limit` of the documents that a
    request names. Raises UsageError: the address is taken. ResourceError, LibraryError."""
    from esa_cli.apps.server import server_run
    from esa_cli.apps.server.allowed_documents import AllowedDocuments
    from esa_cli.apps.server.server_app import ServerLimits, make_app

    with server_run.bind(wanted.host, wanted.port) as sock:
        fixed = [esa.ingest(document) for document in documents]
        reporter.settle()
        allowed = AllowedDocuments(
            esa, fixed, wanted.allow or [], Library(), stored=wanted.library, limit=limit
        )
        limits = ServerLimits(max_question=wanted.max_question, timeout_s=wanted.timeout)
        app = make_app(
            esa, allowed, wanted.token, limits,
            lambda text: reporter.note(f"esa: {text}"), lambda text: reporter.warn(f"esa: {text}"),
        )  # fmt: skip
        address = server_run.address(sock)
        print(address, flush=True)
        page = address.removesuffix("v1")
        reporter.note(f"esa: serving {esa.name}, with a page at {page}; Ctrl-C ends")
        server_run.run(app, sock)
    reporter.note("esa: ended")


MIN_SDK_VERSION = 2
"""The oldest major version of the protocol's SDK that works."""
INSTALL_SDK = "pip install 'esa-cli[mcp]'"


@options.command
def mcp(
    allow: Allow = None,
    *,
    model: options.ModelOptions,
    answer: options.ReaderOptions,
    quiet: options.Quiet = False,
) -> None:
    """Serve the library to assistants and editors (MCP).

    Programs that speak the Model Context Protocol start the command themselves, and talk to it on
    standard streams.
    """
    check_sdk()
    check_folders(allow or [])
    chosen, reader = answer.load_preset(model), answer.reader_choice()
    gc.enable()
    from esa_cli.apps.server.allowed_documents import AllowedDocuments
    from esa_cli.apps.server.mcp_server import DocumentTools, asker_on_demand, run_stdio

    with Reporter(quiet) as reporter, ExitStack() as stack:

        def load_esa() -> Esa:
            from esa_cli.apps.cli.open_esa import opened
            from esa_cli.qa.opening import answerable, runs_methods

            library, preset = Library(), answerable(chosen, reporter)
            # A token index is stored by default; a disk that is full later is no error then.
            has_rows = preset.answer.needs_rows or not preset.answer.has_index
            stores = has_rows and (not preset.answer.by_words or runs_methods(preset, reporter))
            keep = True if stores and library.writable else None
            return stack.enter_context(
                opened(preset, model, reporter, keep=keep, library=library, reader=reader)
            )

        documents = AllowedDocuments(
            asker_on_demand(load_esa), [], allow or [], Library(),
            stored=True, limit=chosen.answer.documents,
        )  # fmt: skip
        tools = DocumentTools(documents, chosen, model, reporter)
        if sys.stdin.isatty():
            reporter.note("esa: waiting for a client on standard input; see docs/serve.md")
        run_stdio(tools)


def check_sdk() -> None:
    """Raises UsageError: the protocol's SDK is missing or too old."""
    try:
        version = importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("`esa mcp` needs mcp", INSTALL_SDK) from None
    if int(version.partition(".")[0]) < MIN_SDK_VERSION:
        raise UsageError(
            f"mcp must be of version {MIN_SDK_VERSION} or later, got {version}", INSTALL_SDK
        )

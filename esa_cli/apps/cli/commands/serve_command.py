"""`esa serve`: a server for programs that speak OpenAI's chat completions."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from esa_cli.apps.cli import inputs
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.options import ModelOptions, ReaderOptions
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import UsageError
from esa_cli.storage.library import Library
from esa_cli.system.machine import is_loopback

if TYPE_CHECKING:
    from esa_cli.documents.document import Document
    from esa_cli.qa.api import Esa

Host = Annotated[str, option("--host HOST", "The address to listen on.")]
Port = Annotated[int, option("--port N", "0 takes a free one.", min=0, max=65535)]
Token = Annotated[
    str | None,
    option(
        "--token TOKEN",
        "What clients must show as their API key; else $ESA_TOKEN.",
        envvar="ESA_TOKEN",
    ),
]


@dataclass(frozen=True)
class ServeOptions:
    """Options of `esa serve` besides the model's."""

    allow: Annotated[
        list[Path] | None, option("--allow DIR", "Requests may name files in it. Repeatable.")
    ] = None
    library: Annotated[
        bool, option("--library", "Requests may name what the library has stored.")
    ] = False
    host: Host = "127.0.0.1"
    port: Port = 8000
    token: Token = None
    max_question: Annotated[
        int, option("--max-question TOKENS", "The longest question, with its history.", min=1)
    ] = 8192
    timeout: Annotated[
        float, option("--timeout SECONDS", "The longest an answer takes.", min=0.1)
    ] = 600.0
    keep: options.Keep = None


@options.command
def serve(
    documents: Annotated[
        list[str] | None,
        typer.Argument(metavar="DOC...", help="What requests are about that name no documents."),
    ] = None,
    *,
    wanted: ServeOptions,
    model: ModelOptions,
    answer: ReaderOptions,
    quiet: options.Quiet = False,
) -> None:
    """Serve a page for asking, and /v1/chat/completions.

    On this machine: in a browser, or for programs made for OpenAI's. Prints the base URL when
    it is ready; Ctrl-C ends it.
    """
    from esa_cli.apps.cli.open_esa import opened
    from esa_cli.qa.opening import answerable

    named = documents or []
    check(named, wanted)
    from esa_cli.apps.server import server_run

    chosen, reader = answer.load_preset(model), answer.reader_choice()
    server_run.bind(wanted.host, wanted.port).close()  # a taken port is reported at once
    with Reporter(quiet) as reporter:
        gathered = inputs.read(named, reporter).documents
        chosen = answerable(chosen, reporter)
        with opened(chosen, model, reporter, keep=bool(wanted.keep), reader=reader) as asker:
            most = None if chosen.answer.needs_rows else chosen.answer.documents
            run(asker, wanted, gathered, reporter, most)


def check(documents: Sequence[str], wanted: ServeOptions) -> None:
    """Checks the options before a model is loaded. Raises UsageError."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"`esa serve` needs {' and '.join(missing)}", "pip install 'esa-cli[serve]'"
        )
    check_access(wanted.allow or [], wanted.token, wanted.host)
    if not documents and not wanted.allow and not wanted.library:
        raise UsageError(
            "documents, --allow or --library must be given, got none",
            "name some, or --allow a folder whose files requests may name",
        )


def check_access(folders: Sequence[Path], token: str | None, host: str | None) -> None:
    """Raises UsageError where one of --allow is no folder, or the token cannot be one, or is
    missing where other machines can connect; `host` is None where none can."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"--allow must be a folder, got {folder}", "name one that exists")
    if host is not None and token is None and not is_loopback(host):
        raise UsageError(
            f"--host {host} lets other machines in, so it needs a token",
            "set $ESA_TOKEN, or give --token",
        )
    is_word = token is None or (
        token.isascii() and token.isprintable() and token.split() == [token]
    )
    if host is not None and not is_word:
        raise UsageError("the token must be one word of printable ASCII", "choose another")


def run(
    asker: Esa,
    wanted: ServeOptions,
    documents: Sequence[Document],
    reporter: Reporter,
    most: int | None = None,
) -> None:
    """Has the documents read, then serves until Ctrl-C.

    Args:
        most: how many of the documents that a request names are opened; None: all.

    Raises:
        UsageError: the address is taken. ResourceError, LibraryError.
    """
    from esa_cli.apps.server import server_run as server
    from esa_cli.apps.server.allowed_documents import AllowedDocuments
    from esa_cli.apps.server.server_app import ServerLimits, make_app

    with server.bind(wanted.host, wanted.port) as sock:
        fixed = [asker.ingest(document) for document in documents]
        reporter.settle()
        allowed = AllowedDocuments(
            asker, fixed, wanted.allow or [], Library(), stored=wanted.library, limit=most
        )
        limits = ServerLimits(max_question=wanted.max_question, timeout_s=wanted.timeout)
        app = make_app(
            asker, allowed, wanted.token, limits,
            lambda text: reporter.note(f"esa: {text}"), lambda text: reporter.warn(f"esa: {text}"),
        )  # fmt: skip
        print(server.address(sock), flush=True)
        page = server.address(sock).removesuffix("v1")
        reporter.note(f"esa: serving {asker.name}, with a page at {page}; Ctrl-C ends")
        server.run(app, sock)
    reporter.note("esa: ended")

"""The command `esa serve`, an HTTP server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from esa_cli.apps.cli.inputs import read_documents
from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.errors import UsageError
from esa_cli.storage.library import Library
from esa_cli.system.machine import is_loopback_host

if TYPE_CHECKING:
    from starlette.middleware import Middleware

    from esa_cli.apps.server.mcp_server import McpDocumentTools
    from esa_cli.qa.api import Esa
    from esa_cli.qa.presets.preset import Preset

Allow = Annotated[
    list[Path] | None,
    option(
        "--allow DIR", "Let clients name files in this folder. Repeatable.",
        exists=True, file_okay=False,
    ),
]  # fmt: skip


@dataclass(frozen=True)
class ServeCommandOptions:
    allow: Allow = None
    host: Annotated[str, option("--host HOST", "The address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, option("--port N", "The port to listen on; 0 means any free port.", min=0, max=65535)
    ] = 8000
    token: Annotated[
        str | None,
        option(
            "--token TOKEN",
            "The API key that clients must send; by default $ESA_TOKEN.",
            envvar="ESA_TOKEN",
        ),
    ] = None
    library: Annotated[bool, option("--library", "Let requests name library documents.")] = False
    max_question: Annotated[
        int, option("--max-question TOKENS", "Maximum tokens of question and history.", min=1)
    ] = 8192
    timeout: Annotated[
        float, option("--timeout SECONDS", "Maximum time for an answer.", min=0.1)
    ] = 600.0
    log: Annotated[
        Path | None, option("--log FILE", "Add a line of JSON for each request to this file.")
    ] = None
    log_questions: Annotated[
        bool, option("--log-questions", "Write the questions into the file of --log, too.")
    ] = False
    keep: options.Keep = None

    @contextmanager
    def open_access_log(self, reporter: Reporter) -> Iterator[Middleware | None]:
        """Opens the file of --log; only its owner may read a new one. Raises UsageError."""
        from starlette.middleware import Middleware

        from esa_cli.apps.server.access_log import AccessLogMiddleware

        if self.log is None:
            yield None
            return
        try:
            private = partial(os.open, mode=0o600)
            file = open(self.log, "a", encoding="utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            wrong = f"--log {self.log} cannot be written: {error.strerror}"
            raise UsageError(wrong, "name a file in a folder that you may write to") from error
        with file:
            yield Middleware(
                AccessLogMiddleware, file=file, with_questions=self.log_questions,
                warn=reporter.warn,
            )  # fmt: skip


@options.make_typer_command
def serve(
    documents: Annotated[
        list[str] | None,
        argument(
            "DOC...",
            "Documents for requests that name none; without these and --allow the library.",
        ),
    ] = None,
    *,
    opts: ServeCommandOptions,
    model: options.AnswerModelOptions,
    quiet: options.Quiet = False,
) -> None:
    """Serve a web page for questions, and an API like OpenAI's.

    Browsers show the page, and programs made for OpenAI's API use /v1/chat/completions. `esa serve`
    prints the base URL when the server is ready; Ctrl-C ends the server."""
    from esa_cli.apps.cli.model_and_documents import open_model
    from esa_cli.qa.opening import choose_answer_source

    names = documents or []
    check_serve_options(opts)
    from esa_cli.apps.server import server_app

    chosen, reader = model.load_preset(), model.choose_reader()
    server_app.open_listening_socket(opts.host, opts.port).close()  # reports a taken port early
    with Reporter(quiet) as reporter:
        gathered = read_documents(names, reporter).documents
        chosen = choose_answer_source(chosen, reporter)
        with open_model(chosen, model, reporter, keep=bool(opts.keep), reader=reader) as esa:
            serve_over_http(esa, opts, gathered, reporter, chosen, model)


def check_serve_options(opts: ServeCommandOptions) -> None:
    """Checks the options of `esa serve` before a model is loaded. Raises UsageError."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        hint = "run: pip install 'esa-cli[serve]'"
        raise UsageError(f"`esa serve` needs the packages {' and '.join(missing)}", hint)
    token = opts.token
    if token is None:
        if not is_loopback_host(opts.host):
            wrong = f"--host {opts.host} lets other machines connect, so a token is needed"
            raise UsageError(wrong, "set $ESA_TOKEN, or add --token TOKEN")
    elif not (token.isprintable() and token.isascii() and token.split() == [token]):
        raise UsageError(
            "the API token must be one word of printable ASCII", "choose another token"
        )
    if opts.log_questions and opts.log is None:
        raise UsageError("--log-questions must be given with --log", "add --log FILE")


def serve_over_http(
    esa: Esa, opts: ServeCommandOptions, documents: Sequence[Document], reporter: Reporter,
    preset: Preset, model: options.ModelOptions,
) -> None:  # fmt: skip
    """Ingests documents, then serves HTTP, and MCP if its SDK is installed, until Ctrl-C. Raises
    ResourceError, LibraryError. UsageError: the address is in use."""
    from esa_cli.apps.server import server_app
    from esa_cli.apps.server.allowed_documents import AllowedDocuments

    with (
        server_app.open_listening_socket(opts.host, opts.port) as sock,
        opts.open_access_log(reporter) as access_log,
    ):
        fixed = [esa.ingest(document) for document in documents]
        reporter.clear_spinner()
        answer, with_library = preset.answer, opts.library or not (documents or opts.allow)
        allowed = AllowedDocuments(
            esa, fixed, opts.allow or [], Library(), with_library=with_library,
            max_opened=None if answer.needs_kv_cache else answer.documents,
        )  # fmt: skip
        mcp_tools: McpDocumentTools | None = None
        with suppress(UsageError):
            check_mcp_sdk_version()
            from esa_cli.apps.server.mcp_server import McpDocumentTools

            mcp_tools = McpDocumentTools(allowed, preset, model, reporter)
        limits = server_app.ServerLimits(max_question=opts.max_question, timeout_s=opts.timeout)
        app = server_app.make_asgi_app(
            allowed, opts.token, limits, reporter, mcp_tools=mcp_tools, access_log=access_log
        )
        address = server_app.make_base_url(sock)
        print(address, flush=True)
        page = address.removesuffix("v1")
        reporter.show_note(f"esa: serving {esa.name}, with a page at {page}; Ctrl-C ends")
        server_app.serve_asgi_app(app, sock)
    reporter.show_note("esa: ended")


MIN_SDK_VERSION = 2
"""The oldest major version of the Model Context Protocol's SDK that works."""
INSTALL_SDK = "run: pip install 'esa-cli[mcp]'"


def check_mcp_sdk_version() -> None:
    """Raises UsageError if the Model Context Protocol's SDK is missing or too old."""
    try:
        version = importlib.metadata.version("mcp")
    except importlib.metadata.PackageNotFoundError:
        raise UsageError("`esa mcp` needs the package mcp", INSTALL_SDK) from None
    if int(version.partition(".")[0]) < MIN_SDK_VERSION:
        wrong = f"the package mcp needs version {MIN_SDK_VERSION} or later, got {version}"
        raise UsageError(wrong, INSTALL_SDK)

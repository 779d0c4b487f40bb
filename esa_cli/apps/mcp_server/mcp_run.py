"""Runs the server of the protocol on standard input and output, or on a socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
from anyio import create_memory_object_stream, create_task_group
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter
from pydantic import ValidationError
from starlette.types import ASGIApp

from esa_cli.apps.mcp_server.document_tools import DocumentTools
from esa_cli.apps.mcp_server.mcp_app import make_mcp_server
from esa_cli.apps.server import server_run
from esa_cli.apps.server.access import AccessCheck, WholeBody
from esa_cli.apps.server.worker import Worker
from esa_cli.system.text import without_lone_surrogates

PATH = "/mcp"
MAX_WAITING = 8
"""Calls that may wait besides the one that runs."""
MAX_BODY = 1_000_000
"""Bytes of a request over HTTP."""
END_WITHIN_S = 30.0


def run_stdio(tools: DocumentTools) -> None:
    """Returns when the client closes standard input. Meanwhile whatever else is written to standard
    output goes to standard error: the SDK sees to it."""

    async def serve(server: Server[Any]) -> None:
        async with stdio_server() as (incoming, outgoing), create_task_group() as tasks:
            readable, repaired = create_memory_object_stream[SessionMessage | Exception](0)

            async def repair() -> None:
                async with readable:
                    async for message in incoming:
                        await readable.send(_repaired(message))

            tasks.start_soon(repair)
            await server.run(repaired, outgoing, server.create_initialization_options())

    with served(tools) as server:
        anyio.run(serve, server)


def _repaired(message: SessionMessage | Exception) -> SessionMessage | Exception:
    """A message with half of a character's two escapes, as of a cut emoji: such a call could not be
    answered, and its client would wait."""
    if isinstance(message, ValidationError):
        line = str(message.errors()[0]["input"])
        with suppress(ValidationError, ValueError):
            whole = json.dumps(without_lone_surrogates(json.loads(line)))
            return SessionMessage(jsonrpc_message_adapter.validate_json(whole, by_name=False))
    return message


def run_http(tools: DocumentTools, sock: socket.socket, token: str | None) -> None:
    """Returns after Ctrl-C or SIGTERM."""
    with served(tools) as server:
        server_run.run(http_app(server, token), sock)


def http_app(server: Server[Any], token: str | None) -> ASGIApp:
    """The server over streamable HTTP, with the access control of `esa serve`.

    Args:
        token: what clients must send, or None.
    """
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    return AccessCheck(WholeBody(app, MAX_BODY), token)


def address(sock: socket.socket) -> str:
    """The URL for clients."""
    return server_run.address(sock, PATH)


@contextmanager
def served(tools: DocumentTools) -> Iterator[Server[Any]]:
    """The server, whose running job is cancelled at the end."""
    worker = Worker(MAX_WAITING)
    try:
        yield make_mcp_server(tools, worker)
    finally:
        worker.close(END_WITHIN_S)

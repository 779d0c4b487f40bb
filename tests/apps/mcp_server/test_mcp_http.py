"""The MCP tools at /mcp of `esa serve`, with the access rules of the server."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from esa_cli.apps.server import server_app
from esa_cli.apps.server.mcp_server import McpDocumentTools
from esa_cli.apps.server.server_app import ServerLimits, make_asgi_app

TOKEN = "let-me-in"
HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}  # fmt: skip


@contextmanager
def served(tools: McpDocumentTools, token: str | None = None) -> Iterator[int]:
    """The port of a server in a thread."""
    notes = list[str]()
    app = make_asgi_app(
        tools.esa, tools.documents, token, ServerLimits(), notes.append, notes.append, tools
    )
    with server_app.open_listening_socket("127.0.0.1", 0) as sock:
        server = server_app.make_uvicorn_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        yield sock.getsockname()[1]
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def post(port: int, body: Any, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    kinds = {
        "content-type": "application/json", "accept": "application/json, text/event-stream"
    }  # fmt: skip
    connection.request("POST", "/mcp", json.dumps(body), {**kinds, **headers})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_calls_over_http(tools: McpDocumentTools, mode: Any) -> None:
    with served(tools) as port:

        async def ask() -> Any:
            url = f"http://127.0.0.1:{port}/mcp"
            async with Client(url, mode=mode, read_timeout_seconds=20) as client:
                found = await client.call_tool("find", {"query": "the northern gate"})
                return found, await client.call_tool("ask", {"question": "who?"})

        found, said = anyio.run(ask)
    assert "Captain Ahab" in found.structured_content["passages"][0]["text"]
    assert said.structured_content["answer"] == "You asked: who?"


def test_the_token_and_foreign_pages(tools: McpDocumentTools) -> None:
    with served(tools) as port:
        assert post(port, HELLO) == 200
        assert post(port, HELLO, origin="https://example.org") == 403
        assert post(port, HELLO, host="example.org") == 403
        assert post(port, {"x": "y" * 2_000_000}) == 413
    with served(tools, TOKEN) as port:
        assert post(port, HELLO) == 401
        assert post(port, HELLO, authorization="Bearer wrong") == 401

        async def look() -> int:
            headers = {"authorization": f"Bearer {TOKEN}"}
            url = f"http://127.0.0.1:{port}/mcp"
            async with (
                httpx2.AsyncClient(headers=headers) as connection,
                Client(streamable_http_client(url, http_client=connection)) as client,
            ):
                return len((await client.list_tools()).tools)

        assert anyio.run(look) == 5

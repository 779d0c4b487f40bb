"""The tools over streamable HTTP, with the access control of `esa serve`."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from esa_cli.apps.server import mcp_server, server_run
from esa_cli.apps.server.mcp_server import DocumentTools

TOKEN = "let-me-in"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


class McpHttpServer:
    """A server in a thread."""

    def __init__(self, tools: DocumentTools, token: str | None = None) -> None:
        self.sock = server_run.bind("127.0.0.1", 0)
        self.url, self.port = (
            server_run.address(self.sock, mcp_server.PATH),
            self.sock.getsockname()[1],
        )
        self._served = mcp_server.served(tools)
        app = mcp_server.http_app(self._served.__enter__(), token)
        self._server = server_run.make_server(app)
        run = {"sockets": [self.sock]}
        self._thread = threading.Thread(target=self._server.run, kwargs=run)
        self._thread.start()

    def post(self, body: Any, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        kinds = {"content-type": "application/json"}
        accept = {"accept": "application/json, text/event-stream"}
        data = body if isinstance(body, str) else json.dumps(body)
        connection.request("POST", "/mcp", data, {**kinds, **accept, **headers})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._served.__exit__(None, None, None)


@pytest.fixture
def running(tools: DocumentTools) -> Iterator[McpHttpServer]:
    server = McpHttpServer(tools)
    yield server
    server.close()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_calls_over_http(running: McpHttpServer, mode: Any) -> None:
    assert running.url == f"http://127.0.0.1:{running.port}/mcp"

    async def ask() -> Any:
        async with Client(running.url, mode=mode, read_timeout_seconds=20) as client:
            return await client.call_tool("ask", {"question": "who?"})

    said = anyio.run(ask)
    assert said.structured_content["answer"] == "You asked: who?"


def test_the_token(tools: DocumentTools) -> None:
    guarded = McpHttpServer(tools, TOKEN)
    assert guarded.post(HELLO)[0] == 401
    assert guarded.post(HELLO, authorization="Bearer wrong")[0] == 401

    async def look() -> int:
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers) as connection,
            Client(streamable_http_client(guarded.url, http_client=connection)) as client,
        ):
            return len((await client.list_tools()).tools)

    assert anyio.run(look) == 5
    guarded.close()

"""Progress, cancellation and the queue of calls."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from live_server import until
from mcp import Client
from mcp_client import FakeDocumentAsker, fail, talk

from esa_cli.apps.mcp_server import mcp_app
from esa_cli.apps.mcp_server.document_tools import DocumentTools
from esa_cli.apps.mcp_server.mcp_app import ProgressSum

LOOM = {"documents": ["loom.txt"]}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_progress_of_a_reading(tools: DocumentTools, asker: FakeDocumentAsker, mode: str) -> None:
    asker.words, asker.delay = 60, 0.02
    told: list[tuple[float, float | None, str | None]] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        told.append((done, total, message))

    async def read(client: Client) -> Any:
        return await client.call_tool("ingest", LOOM, progress_callback=report)

    assert not talk(tools, read, mode).is_error
    counts = [done for done, _, _ in told]
    assert 2 <= len(counts) < 20, "now and then"
    assert counts == sorted(set(counts))
    assert told[-1] == (60, 60, "read 60 of 60 tokens")


def test_progress_only_grows() -> None:
    progress = ProgressSum()
    told = [progress.add(done, total) for done, total in ((5, 5), (5, 5), (0, 9), (9, 9), (9, 9))]
    assert told == [(5, 5), None, None, (14, 14), None]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("tool", ["ingest", "ask"])
def test_a_cancelled_call_stops_the_reading(
    tools: DocumentTools, asker: FakeDocumentAsker, mode: str, tool: str
) -> None:
    asker.words, asker.delay = 500, 0.02
    given: dict[str, Any] = {"ask": {"question": "who?", "read": True, **LOOM}, "ingest": LOOM}

    async def give_up(client: Client) -> Any:
        with anyio.move_on_after(0.3):
            await client.call_tool(tool, given[tool])
        await anyio.to_thread.run_sync(until, lambda: asker.stopped)
        asker.words = 0
        return await client.call_tool("ask", {"question": "next"})

    started = time.monotonic()
    assert not talk(tools, give_up, mode).is_error, "it lives on"
    assert time.monotonic() - started < 9, "ten seconds are a whole reading"
    assert asker.stopped == 1
    assert 0 < asker.read < 400


def test_a_client_that_goes_stops_the_reading(
    tools: DocumentTools, asker: FakeDocumentAsker
) -> None:
    asker.words, asker.delay = 500, 0.02

    async def leave(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "ingest", LOOM)
            await anyio.to_thread.run_sync(until, lambda: asker.read > 2)
            group.cancel_scope.cancel()

    talk(tools, leave)
    until(lambda: asker.stopped)
    assert asker.read < 400


def test_calls_that_wait_too_many(
    tools: DocumentTools, asker: FakeDocumentAsker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_app, "MAX_WAITING", 0)
    asker.gate.clear()
    asked = {"question": "who?"}

    async def crowd(client: Client) -> tuple[Any, Any]:
        found: list[Any] = []

        async def first() -> None:
            found.append(await client.call_tool("ask", asked))

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await anyio.to_thread.run_sync(asker.running.wait, 10)
            second = await client.call_tool("ask", asked)
            listed = await client.call_tool("list")
            assert not listed.is_error, "what needs no model does not wait"
            asker.gate.set()
        return found[0], second

    first, second = talk(tools, crowd)
    assert not first.is_error
    fail(second, "too many calls wait already")

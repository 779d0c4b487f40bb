"""`esa mcp` itself: its options, and a process that a client starts."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from cli_fixtures import esa
from command import ROOT, TINY, Esa, fail
from mcp import Client, StdioServerParameters
from mcp_client import text_of

from esa_cli.storage.library import Library

__all__ = ["esa"]
FROM_TEXT = ("--set", "answer.from=text")


def no_sdk(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_what_cannot_be_served(
    surroundings: None, esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(esa("mcp", "--allow", "nowhere"), 2, "nowhere")
    fail(esa("mcp", "--http", "--host", "0.0.0.0"), 2, "needs a token")
    fail(esa("mcp", "--preset", "nothing"), 4, "nothing")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.30.0")
    fail(esa("mcp"), 2, "esa-cli[mcp]")
    monkeypatch.setattr(importlib.metadata, "version", no_sdk)
    fail(esa("mcp"), 2, "esa-cli[mcp]")


def environment(library: Library) -> dict[str, str]:
    return {
        **os.environ,
        "ESA_LIBRARY": str(library.root),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.process
def test_half_of_an_emoji_gets_an_answer(library: Library, tmp_path: Path) -> None:
    """Which JavaScript's clients send where a text is cut."""
    about = {"protocolVersion": "2025-06-18", "capabilities": {}}
    about["clientInfo"] = {"name": "test", "version": "1"}
    call = {"name": "find", "arguments": {"query": "northern gate \ud83d"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": about},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "esa_cli", "mcp", *TINY, *FROM_TEXT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(library), cwd=tmp_path,
        text=True,
    ) as server:  # fmt: skip
        assert server.stdin is not None
        assert server.stdout is not None
        for message in messages:
            server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
            server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(2)]
        server.stdin.close()
    assert answers[1]["id"] == 2
    assert "Captain Ahab" in str(answers[1]["result"])


@pytest.mark.process
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_process_over_standard_streams(library: Library, tmp_path: Path, mode: Any) -> None:
    """The SDK's client refuses whatever else is on standard output."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open/loom.txt").write_text("The loom stands in Basel.\n" * 200, "utf-8")
    command = ["-m", "esa_cli", "mcp", *TINY, *FROM_TEXT, "--allow", str(tmp_path / "open")]
    server = StdioServerParameters(
        command=sys.executable, args=command, env=environment(library), cwd=tmp_path
    )
    told = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        told.append((done, total))

    async def ask() -> None:
        async with Client(server, mode=mode, read_timeout_seconds=90) as client:
            listed = await client.call_tool("list")
            assert listed.structured_content["total"] == 4
            found = await client.call_tool("find", {"query": "northern gate"})
            assert "Captain Ahab" in text_of(found)
            given = {"documents": ["loom.txt"]}
            read = await client.call_tool("ingest", given, progress_callback=report)
            assert read.structured_content["documents"][0]["stored"], text_of(read)
            said = await client.call_tool("ask", {"question": "Where is the loom?", **given})
            assert said.structured_content["passages"][0]["document"] == "loom.txt"
            refused = await client.call_tool("show", {"document": "/etc/passwd"})
            assert refused.is_error

    anyio.run(ask)
    assert all(done < total for done, total in told)
    assert len(library.matches("loom.txt")) == 1


@pytest.mark.process
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_process_over_http_ends_with_a_signal(library: Library, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "esa_cli", "mcp", *TINY, "--http", "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
        env=environment(library),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)

        async def leave() -> float:
            async with Client(url, mode="legacy", read_timeout_seconds=60) as client:
                assert (await client.call_tool("list")).structured_content["total"] == 3
                process.send_signal(signal.SIGINT)
                started = time.monotonic()
                await anyio.to_thread.run_sync(process.wait, 30)
                return time.monotonic() - started

        anyio.run(leave)
        assert process.returncode == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()

"""`esa mcp` itself: its options, and a process that a client starts."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from command import TINY, Esa, environment, fail
from mcp import Client, StdioServerParameters
from mcp_client import text_of

from esa_cli.storage.library import Library

FROM_TEXT = ("--set", "answer.from=text")


def no_sdk(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_what_cannot_be_served(
    surroundings: None, esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(esa("mcp", "--allow", "nowhere"), 2, "nowhere")
    fail(esa("mcp", "--preset", "nothing"), 4, "nothing")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.30.0")
    fail(esa("mcp"), 2, "esa-cli[mcp]")
    monkeypatch.setattr(importlib.metadata, "version", no_sdk)
    fail(esa("mcp"), 2, "esa-cli[mcp]")


@pytest.mark.process
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_process_over_standard_streams(library: Library, tmp_path: Path, mode: Any) -> None:
    """The SDK's client refuses whatever else is on standard output."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open/loom.txt").write_text("The loom stands in Basel.\n" * 200, "utf-8")
    command = ["-m", "esa_cli", "mcp", *TINY, *FROM_TEXT, "--allow", str(tmp_path / "open")]
    variables = environment(ESA_LIBRARY=str(library.root))
    server = StdioServerParameters(
        command=sys.executable, args=command, env=variables, cwd=tmp_path
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
    assert len(library.match_entries("loom.txt")) == 1

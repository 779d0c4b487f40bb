"""The tools of `esa mcp`, called by the SDK's client in memory; progress, cancellation, queue."""

from __future__ import annotations

import http.client
import io
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from fake_asker import FakeAsker
from hypothesis import example, given
from hypothesis import strategies as st
from live_server import until
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import jsonrpc_message_adapter
from mcp_client import FakeDocumentAsker, book_of, call, fail, talk, text_of, tools_of
from properties import NUMBERS, trees

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.server import mcp_server, server_app, worker
from esa_cli.apps.server.mcp_server import ABSENT, BUG, McpDocumentTools, McpMessageLines
from esa_cli.apps.server.server_app import ServerLimits, make_asgi_app
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, ResourceError
from esa_cli.qa.answering.reply import CheckedSentence
from esa_cli.storage.library import Library
from esa_cli.system.text import replace_lone_surrogates

LOOM = {"documents": ["loom.txt"]}
modes = pytest.mark.parametrize("mode", ["auto", "legacy"])


@modes
def test_the_tools_are_listed(tools: McpDocumentTools, mode: str) -> None:
    async def look(client: Client) -> Any:
        return client.server_info, client.instructions, (await client.list_tools()).tools

    info, instructions, listed = talk(tools, look, mode)
    assert info.name == "esa"
    assert "never instructions" in instructions
    assert [one.name for one in listed] == ["find", "ask", "ingest", "list", "show"]
    for one in listed:
        assert one.description
        assert one.input_schema["additionalProperties"] is False
    assert [one.name for one in listed if one.annotations.read_only_hint] == [
        *("find", "list", "show")
    ]


def test_passages_have_places_that_can_be_shown(
    tools: McpDocumentTools, gate: str, filled: Path
) -> None:
    found = call(tools, "find", query="the key of the northern gate", limit=2)
    best = found.structured_content["passages"][0]
    assert "Captain Ahab" in best["text"]
    assert (best["document"], best["id"], best["line"]) == ("gate.txt", gate, 3)
    assert os.path.basename(best["file"]) == "gate.txt"
    assert json.loads(text_of(found)) == found.structured_content
    shown = call(tools, "show", document=gate, offset=best["start"], before=0, after=20)
    assert shown.structured_content["text"] == best["text"][:20]
    assert shown.structured_content["end"] == best["start"] + 20
    assert call(tools, "find", query="zebra").structured_content == {"passages": []}
    (best, *_) = call(tools, "find", query="kiln Ulm").structured_content["passages"]
    path = str(filled / "synced/kiln.md")
    assert (best["document"], best["file"]) == ("kiln.md", path)
    for name in (best["id"], path, "kiln.md"):
        assert call(tools, "show", document=name).structured_content["text"].startswith("The kiln")


def test_files_of_allowed_folders(
    tools: McpDocumentTools, asker: FakeDocumentAsker, library: Library, tmp_path: Path
) -> None:
    for name in ("loom.txt", str(tmp_path / "open/loom.txt")):
        found = call(tools, "find", query="Basel", documents=[name])
        assert found.structured_content["passages"][0]["file"] == str(tmp_path / "open/loom.txt")
    for name in ("../secret.txt", str(tmp_path / "secret.txt"), str(tmp_path / "no.txt")):
        for tool in ("show", "find", "ask", "ingest"):
            given: dict[str, Any] = {
                "show": {"document": name},
                "find": {"query": "x", "documents": [name]},
                "ask": {"question": "x", "documents": [name]},
                "ingest": {"documents": [name]},
            }
            fail(call(tools, tool, **given[tool]), "is not in an allowed folder")
    fail(call(tools, "show", document="no.txt"), "there is no document no.txt")
    closed = tools_of(asker, library)
    for name in ("secret.txt", str(tmp_path / "secret.txt"), "b.txt"):
        fail(call(closed, "show", document=name), "requests to this server may not name files")


def test_an_answer_with_its_passages(
    tools: McpDocumentTools, asker: FakeDocumentAsker, gate: str
) -> None:
    asker.answers["who?"] = "Ahab"
    said = call(tools, "ask", question="who?", documents=["gate.txt"], passages=1)
    data = said.structured_content
    assert (data["answer"], data["found"], data["model"]) == ("Ahab", True, "fake-model")
    assert [one["id"] for one in data["passages"]] == [gate]
    assert json.loads(text_of(said)) == data
    assert asker.ingested == [], "its words are enough"
    asker.found = False
    data = call(tools, "ask", question="who?", documents=[gate]).structured_content
    assert data["note"].startswith(ABSENT)
    asker.found, asker.sentences = True, (CheckedSentence(0, 4, False, None, ("Ahab",)),)
    data = call(tools, "ask", question="who?", documents=[gate]).structured_content
    assert data["answer"] == "Ahab [? not in the passages: Ahab]"
    assert not call(tools, "ask", question="Where do ships sail?").is_error
    names = [book.document.name for book in asker.calls[-1]["books"]]
    assert set(names) == {"gate.txt", "pages.html", "kiln.md"}, "the library"


def test_the_list(tools: McpDocumentTools, tmp_path: Path) -> None:
    (tmp_path / "open/.hidden").write_text("x", "utf-8")
    data = call(tools, "list").structured_content
    assert {one["document"]: one["how"] for one in data["documents"]} == {
        "pages.html": "read", "gate.txt": "read", "kiln.md": "words", "loom.txt": "file",
    }  # fmt: skip
    assert data["folders"] == [str(tmp_path / "open")]
    assert data["note"] == "open: 1 file to read; left out: 1 hidden"
    folders = {one["document"]: one["folder"] for one in data["documents"]}
    assert folders["kiln.md"] == "synced"
    part = call(tools, "list", limit=1, skip=1).structured_content
    assert (part["documents"], part["total"]) == ([data["documents"][1]], 4)
    listed = call(tools, "list", containing="LOOM").structured_content
    assert [one["document"] for one in listed["documents"]] == ["loom.txt"]


def test_arguments_that_do_not_fit(tools: McpDocumentTools, gate: str) -> None:
    fail(call(tools, "find"), "query: field required")
    fail(call(tools, "find", query="x", limit=0), "limit: ")
    fail(call(tools, "find", query="x", top=3), "top: extra inputs are not permitted")
    fail(call(tools, "show", document=gate, offset=10**9), "offset must be below")
    with pytest.raises(MCPError, match="no tool delete"):
        call(tools, "delete")


def test_the_model_is_loaded_when_it_is_needed(library: Library) -> None:
    loads = [ModelError("no model here", "try --preset tiny-random")]
    asker = FakeDocumentAsker(library)

    def load() -> FakeAsker:
        if loads:
            raise loads.pop()
        return asker

    tools = tools_of(load, library)
    assert not call(tools, "find", query="kiln").is_error
    assert not call(tools, "list").is_error
    assert loads, "words alone need none"
    fail(call(tools, "ask", question="who?"), "no model here\ntry --preset tiny-random")
    assert not call(tools, "ask", question="who?").is_error, "it is tried again"


def test_errors_of_an_answer(
    tools: McpDocumentTools, asker: FakeDocumentAsker, library: Library, gate: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for question, error, message in (
        ("big", ResourceError("no room", "ask less"), "no room\nask less"),
        ("much", MemoryError(), "the memory ran out"),
        ("end", SystemExit(3), mcp_server.BUG),
        ("bug", ZeroDivisionError("inside"), mcp_server.BUG),
    ):
        asker.failures[question] = error
        failed = call(tools, "ask", question=question)
        fail(failed, message)
        assert "inside" not in text_of(failed)
    assert "ZeroDivisionError: inside" in capsys.readouterr().err
    for path in library.root.rglob("*.text"):
        path.write_bytes(b"broken")
    fail(call(tools_of(asker, library), "show", document=gate), "damaged")


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes")
def test_names_that_are_not_utf8_end_no_server(
    asker: FakeDocumentAsker, library: Library, tmp_path: Path
) -> None:
    """JSON cannot have them: such a message would end the transport."""
    (tmp_path / "sold").mkdir()
    name = tmp_path / "sold" / os.fsdecode(b"caf\xe9.txt")
    name.write_text("Nobody sold the harp.", "utf-8")
    tools = tools_of(asker, library, [tmp_path / "sold"])
    listed = call(tools, "list", limit=500)
    assert "caf" not in str(listed.structured_content["documents"])
    refused = call(tools, "show", document="loom.txt", **{"\udce9": 1})
    book = Document(name.name, "Nobody sold the harp.", str(name), "utf-8", 21)
    asker.open = lambda source: book_of(book)  # type: ignore[method-assign]
    found = call(tools, "ask", question="harp")
    assert "caf\ufffd.txt" in str(found.structured_content)
    for one in (listed, refused, found):
        assert one.model_dump_json()


@modes
def test_progress_of_a_reading(
    tools: McpDocumentTools, asker: FakeDocumentAsker, mode: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(worker, "READING_EVERY_S", 0.2)
    asker.words, asker.delay = 40, 0.02
    (tmp_path / "open/second.txt").write_text("a second text", "utf-8")
    reports: list[tuple[float, float | None]] = []

    async def report(done: float, total: float | None, message: str | None) -> None:
        reports.append((done, total))

    async def read(client: Client) -> Any:
        given = {"documents": ["loom.txt", "second.txt"]}
        return await client.call_tool("ingest", given, progress_callback=report)

    assert not talk(tools, read, mode).is_error
    counts = [done for done, _ in reports]
    assert 4 <= len(counts) < 20, "now and then"
    assert counts == sorted(set(counts)), "it only grows"
    assert counts[-1] > 40, "of both documents"
    assert all(total and done < total for done, total in reports)


@modes
@pytest.mark.parametrize("tool", ["ingest", "ask"])
def test_a_cancelled_call_stops_the_reading(
    tools: McpDocumentTools, asker: FakeDocumentAsker, mode: str, tool: str
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


NAMES = ["query", "question", "documents", "document", "limit", "offset", "containing", "skip"]


@given(trees(NAMES))
@example({"query": "half an emoji: \ud83d"})
@example({"\ud800": ["\udfff", "\\ud800", "\U0001f600"]})
def test_the_sdk_parses_each_line(arguments: Any) -> None:
    params = {"name": "find", "arguments": {"query": arguments}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    line = McpMessageLines(io.BytesIO(json.dumps(message).encode() + b"\n")).readline()
    found = jsonrpc_message_adapter.validate_json(line, by_name=False)
    expected = json.dumps(replace_lone_surrogates(params), sort_keys=True)
    assert json.dumps(found.params, sort_keys=True) == expected  # type: ignore[union-attr]


@given(
    st.text(max_size=20) | st.sampled_from([r'{"\ud800', r"\ud800" * 9, "[" * 100_000 + r"\ud8"])
)
def test_lines_that_are_no_json_stay(line: str) -> None:
    data = line.encode("utf-8") + b"\n"
    lines = McpMessageLines(io.BytesIO(data), encoding="utf-8", newline="")
    assert "".join(iter(lines.readline, "")) == data.decode()


ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    name: trees(NAMES) | NUMBERS | st.lists(st.text(max_size=5)) for name in NAMES
}


def test_any_arguments_have_a_result(tools: McpDocumentTools) -> None:
    @given(
        st.sampled_from(["find", "ask", "ingest", "list", "show"]),
        st.fixed_dictionaries({}, optional=ARGUMENTS),
    )
    @example("show", {"document": "loom.txt", "offset": 10**400})
    @example("find", {"query": "\0", "documents": ["\0", "../x", "a" * 4096]})
    def ask(name: str, arguments: dict[str, Any]) -> None:
        result = call(tools, name, **replace_lone_surrogates(arguments))
        assert BUG not in text_of(result)

    ask()


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
    reporter = Reporter(quiet=True)
    app = make_asgi_app(tools.documents, token, ServerLimits(), reporter, tools)
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

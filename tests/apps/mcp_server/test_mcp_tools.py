"""The tools of `esa mcp`, called by the SDK's client in memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_asker import FakeAsker
from mcp import Client, MCPError
from mcp_client import FakeDocumentAsker, book_of, call, fail, talk, text_of, tools_of

from esa_cli.apps.mcp_server import document_tools, named_documents
from esa_cli.apps.mcp_server.document_tools import DocumentTools
from esa_cli.apps.mcp_server.tool_results import ABSENT, PassageResult
from esa_cli.documents.document import Document
from esa_cli.errors import ModelError, ResourceError
from esa_cli.storage.library import Library


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_tools_are_listed(tools: DocumentTools, mode: str) -> None:
    async def look(client: Client) -> Any:
        return client.server_info, client.instructions, (await client.list_tools()).tools

    info, instructions, listed = talk(tools, look, mode)
    assert info.name == "esa"
    assert "never instructions" in instructions
    assert [one.name for one in listed] == ["find", "ask", "ingest", "list", "show"]
    for one in listed:
        assert one.description
        assert one.input_schema["additionalProperties"] is False
        assert "title" not in one.input_schema
        assert one.output_schema["type"] == "object"
    assert [one.name for one in listed if one.annotations.read_only_hint] == [
        *("find", "list", "show")
    ]


def test_passages_have_places_that_can_be_shown(tools: DocumentTools, gate: str) -> None:
    found = call(tools, "find", query="the key of the northern gate", limit=2)
    best = found.structured_content["passages"][0]
    assert "Captain Ahab" in best["text"]
    assert (best["document"], best["id"], best["line"]) == ("gate.txt", gate, 1)
    assert os.path.basename(best["file"]) == "gate.txt"
    assert f"[1] gate.txt, line 1 (id {gate}, characters {best['start']}-" in text_of(found)
    shown = call(tools, "show", document=gate, offset=best["start"], before=0, after=20)
    assert shown.structured_content["text"] == best["text"][:20]
    assert text_of(shown).endswith(f"[next: offset {best['start'] + 20}, before 0]")


def test_no_passage(tools: DocumentTools) -> None:
    found = call(tools, "find", query="zebra")
    assert found.structured_content == {"passages": []}
    assert text_of(found) == "No passage fits; try other words."


def test_synchronised_files_are_of_the_library(tools: DocumentTools, filled: Path) -> None:
    path = str(filled / "synced/kiln.md")
    (best, *_) = call(tools, "find", query="kiln Ulm").structured_content["passages"]
    assert (best["document"], best["id"], best["file"]) == ("kiln.md", path, path)
    for name in (path, "kiln.md"):
        assert call(tools, "show", document=name).structured_content["text"].startswith("The kiln")


def test_files_of_allowed_folders(tools: DocumentTools, tmp_path: Path) -> None:
    for name in ("loom.txt", str(tmp_path / "open/loom.txt")):
        found = call(tools, "find", query="Basel", documents=[name])
        assert found.structured_content["passages"][0]["id"] == str(tmp_path / "open/loom.txt")
    for name in ("../secret.txt", str(tmp_path / "secret.txt"), str(tmp_path / "no.txt")):
        for tool in ("show", "find", "ask", "ingest"):
            given: dict[str, Any] = {
                "show": {"document": name},
                "find": {"query": "x", "documents": [name]},
                "ask": {"question": "x", "documents": [name]},
                "ingest": {"documents": [name]},
            }
            fail(call(tools, tool, **given[tool]), "is not in a folder that requests may read")
    fail(call(tools, "show", document="no.txt"), "there is no document no.txt")


def test_a_file_is_read_as_it_is_now(
    tools: DocumentTools, filled: Path, library: Library, gate: str, tmp_path: Path
) -> None:
    """A stored document of the same name is found by its id, and where no such file is allowed."""
    assert call(tools, "show", document="gate.txt").structured_content["id"] == gate
    path = tmp_path / "open/gate.txt"
    path.write_text("Ahab has lost the key.", "utf-8")
    shown = call(tools, "show", document="gate.txt").structured_content
    assert (shown["id"], shown["text"]) == (str(path), "Ahab has lost the key.")
    assert call(tools, "show", document=gate).structured_content["text"].startswith("A grey boat")
    stored = str(filled / "gate.txt")
    assert call(tools, "show", document=stored).structured_content["id"] == gate


def test_without_allow_no_file_outside_the_library(
    asker: FakeDocumentAsker, library: Library, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("text", "utf-8")
    tools = tools_of(asker, library)
    for name in ("a.txt", str(tmp_path / "a.txt"), "b.txt"):
        fail(call(tools, "show", document=name), "no other file may be read here", "--allow FOLDER")


def test_an_answer_with_its_passages(
    tools: DocumentTools, asker: FakeDocumentAsker, gate: str
) -> None:
    asker.answers["who?"] = "Ahab"
    said = call(tools, "ask", question="who?", documents=["gate.txt"], passages=1)
    data = said.structured_content
    assert (data["answer"], data["found"], data["model"]) == ("Ahab", True, "fake-model")
    assert [one["id"] for one in data["passages"]] == [gate]
    assert text_of(said).startswith("Answer of fake-model: Ahab\n\nPassages it rests on:\n\n[1] ga")
    assert asker.ingested == [], "its words are enough"
    asker.found = False
    absent = text_of(call(tools, "ask", question="who?", documents=[gate]))
    assert f"{ABSENT}\n\nThe nearest passages:" in absent


def test_places_in_a_text() -> None:
    passage = PassageResult(
        document="a.pdf", id="12", page=4, line=7, chapter="One\nTwo", start=1, end=9, score=2.5,
        text=" said ",
    )  # fmt: skip
    place = "a.pdf, page 4, line 7, One Two (id 12, characters 1-9, score 2.5)"
    assert passage.as_text(3) == f"[3] {place}\nsaid"


def test_the_library_is_asked(tools: DocumentTools, asker: FakeDocumentAsker) -> None:
    said = call(tools, "ask", question="Where do ships sail?")
    names = [book.document.name for book in asker.calls[0]["books"]]
    assert set(names) == {"gate.txt", "pages.html", "kiln.md"}
    assert not said.is_error


def test_documents_are_read_first_where_told(
    tools: DocumentTools, asker: FakeDocumentAsker, tmp_path: Path
) -> None:
    call(tools, "ask", question="who?", documents=["loom.txt"], read=True)
    assert asker.ingested == [str(tmp_path / "open/loom.txt")]
    asker.answers_unread = False
    call(tools, "ask", question="who?", documents=["loom.txt"])
    assert len(asker.ingested) == 2
    read = call(tools, "ingest", documents=["loom.txt"])
    assert read.structured_content["documents"][0]["document"] == "loom.txt"
    assert text_of(read).startswith("loom.txt: ")


def test_the_list(tools: DocumentTools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "open/.hidden").write_text("x", "utf-8")
    data = call(tools, "list").structured_content
    names = ["pages.html", "gate.txt", "kiln.md", "loom.txt"]
    assert [one["document"] for one in data["documents"]] == names
    assert [one["how"] for one in data["documents"]] == ["read", "read", "words", "file"]
    assert data["folders"] == [str(tmp_path / "open")]
    data = call(tools, "list", limit=1, skip=1).structured_content
    assert ([one["document"] for one in data["documents"]], data["total"]) == (["gate.txt"], 4)
    assert data["note"] == "open: 1 file to read; left out: 1 hidden"
    monkeypatch.setattr(named_documents, "MOST_FILES", 1)
    monkeypatch.setattr(document_tools, "MOST_FILES", 1)
    listed = call(tools, "list", containing="LOOM")
    assert text_of(listed).startswith("1 document:\n")
    assert text_of(listed).endswith("at most 1 files of the folders are listed")


def test_an_empty_library(asker: FakeDocumentAsker, tmp_path: Path) -> None:
    tools = tools_of(asker, Library(tmp_path / "none"))
    assert text_of(call(tools, "list")) == "0 documents"
    for tool, word in (("find", "query"), ("ask", "question")):
        fail(call(tools, tool, **{word: "x"}), "the library has no document\n`list` shows files")
    assert not (tmp_path / "none").exists()


def test_arguments_that_do_not_fit(tools: DocumentTools, gate: str) -> None:
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
    tools: DocumentTools, asker: FakeDocumentAsker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.failures["big"] = ResourceError("no room", "ask less")
    fail(call(tools, "ask", question="big"), "no room\nask less")
    asker.failures["much"] = MemoryError()
    fail(call(tools, "ask", question="much"), "the memory ran out\n`esa plan` shows")
    asker.failures["end"] = SystemExit(3)
    fail(call(tools, "ask", question="end"), "a bug in esa; its log has more")
    capsys.readouterr()
    fail(call(tools, "ask", question="big"), "no room\nask less")
    assert "Traceback" not in capsys.readouterr().err
    asker.failures["bug"] = ZeroDivisionError("inside")
    failed = call(tools, "ask", question="bug")
    fail(failed, "a bug in esa; its log has more")
    assert "inside" not in text_of(failed)
    assert "ZeroDivisionError: inside" in capsys.readouterr().err


def test_damage_is_told(tools: DocumentTools, library: Library, gate: str) -> None:
    for path in library.root.rglob("*.text"):
        path.write_bytes(b"broken")
    fail(call(tools, "show", document=gate), "damaged")


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
    assert "sold" not in str(listed.structured_content["documents"])
    refused = call(tools, "show", document="loom.txt", **{"\udce9": 1})
    book = Document(name.name, "Nobody sold the harp.", str(name), "utf-8", 21)
    asker.stored = lambda entry: book_of(book)  # type: ignore[method-assign]
    found = call(tools, "ask", question="harp")
    assert "caf\ufffd.txt" in str(found.structured_content)
    for one in (listed, refused, found):
        assert one.model_dump_json()

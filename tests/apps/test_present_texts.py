"""What a file says now answers: after a change or a removal no command, server or object shows the
former text. One table of all of them, each asked about the same library."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from command import TINY, Esa
from forked import killed, taken
from mcp_client import FakeDocumentAsker, call, tools_of
from properties import seeds

import esa_cli
from esa_cli.__main__ import main
from esa_cli.apps.server.allowed_documents import AllowedDocuments, make_documents_json
from esa_cli.qa.ingestion.library_texts import load_library_texts
from esa_cli.storage.library import Library

BY_TEXT = (*TINY, "--set", "answer.from=text")
QUESTION = "Which restaurant is the client dinner at?"
FORMER, PRESENT = "Gilded Pike", "Crooked Billet"
LIBRARY_FORMS = {
    "words": [("ingest", "--words", "town")],
    "read": [("ingest", "town", *TINY, "--set", "answer.from=rows")],
    "both": [("ingest", "town", *TINY, "--set", "answer.from=rows"), ("ingest", "--words", "town")],
}


def write(name: str, text: str) -> None:
    Path("town", name).write_text(text, "utf-8")


def dinner(restaurant: str) -> str:
    return f"The client dinner is at the restaurant {restaurant}. " * 3 + "Nobody is late. " * 20


@pytest.fixture
def run(surroundings: None, esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Esa:
    """`esa` in a folder with `town/`, four documents; a library of its own."""
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    Path("town").mkdir()
    write("meeting.txt", dinner(FORMER))
    for thing in ("harp", "anvil", "loom"):
        write(f"{thing}.txt", f"The {thing} of the town has stood there for years. " * 9)
    return esa


def by_command(run: Esa, *words: str) -> str:
    done = run(*words)
    assert done.code in (0, 1, 2), done.err
    return f"{done.out}\n{done.err}"


def by_batch(run: Esa) -> str:
    Path("questions.jsonl").write_text(json.dumps({"question": QUESTION}), "utf-8")
    Path("answers.jsonl").unlink(missing_ok=True)
    run("batch", "questions.jsonl", "town", "--out", "answers.jsonl", *BY_TEXT)
    return Path("answers.jsonl").read_text("utf-8")


def by_server(run: Esa, most: int) -> str:
    """The list, every text, and an answer that is asked of all."""
    library = Library()
    asker = FakeDocumentAsker(library)
    served = AllowedDocuments(asker, [], [], library, with_library=True, max_opened=most)
    listed = make_documents_json(served)["data"]
    texts = [served.read_named_document(one["id"]).text for one in listed]
    opened = served.open_documents(served.resolve_documents(None), None, QUESTION)
    assert len(opened) <= most
    books = [one.book.document.text for one in opened]
    assert books[0] in texts
    return json.dumps([listed, texts, books])


def by_mcp(run: Esa) -> str:
    tools = tools_of(FakeDocumentAsker(Library()), Library())
    said = [
        call(tools, "list"), call(tools, "find", query=QUESTION),
        call(tools, "ask", question=QUESTION),
        call(tools, "show", document="meeting.txt"),
    ]  # fmt: skip
    return "\n".join(map(str, said))


def by_python(run: Esa) -> str:
    library = Library()
    found = [one.name + library.text(one) for one in library.entries() if not one.damage_reason]
    texts = load_library_texts(library).texts
    return json.dumps([found, [Path(one.path).read_text("utf-8") for one in texts if one.path]])


def by_python_asking(run: Esa) -> str:
    settings = ["answer.from=text"]
    with esa_cli.Esa.load("tiny-random", settings, device="cpu", dtype="float32") as interface:
        return "\n".join(passage.text for passage in interface.find_passages(QUESTION))


FACES: dict[str, Callable[[Esa], str]] = {
    "ask": lambda run: by_command(run, "ask", "--library", QUESTION, "--json", *BY_TEXT),
    "best of many": lambda run: by_command(
        run, "ask", "--library", QUESTION, "--json", *BY_TEXT, "--set", "answer.documents=1"
    ),
    "find": lambda run: by_command(run, "find", "--library", QUESTION, *BY_TEXT),
    "find files": lambda run: by_command(run, "find", "--library", "dinner", "--files", *BY_TEXT),
    "collect": lambda run: by_command(
        run, "collect", "--library", QUESTION, "--read", "never", "--min", "-99", *BY_TEXT
    ),
    "count": lambda run: by_command(
        run, "collect", "--count", "--library", QUESTION, "--read", "never", "--min=-99", *BY_TEXT
    ),
    "batch": by_batch,
    "serve": partial(by_server, most=99),
    "serve, best of many": partial(by_server, most=1),
    "mcp": by_mcp,
    "python": by_python,
    "python, asking": by_python_asking,
}  # fmt: skip
NEEDS_PRESENT = set(FACES) - {"collect", "count", "find files"}
"""Those whose output has the text of the document that fits the question."""


def check(run: Esa, present: str) -> None:
    """No face shows the former text; all show what the file says now, if it is there."""
    for name, face in FACES.items():
        shown = face(run)
        assert FORMER not in shown, f"{name} shows the former text"
        if present and name in NEEDS_PRESENT:
            assert present in shown, f"{name} does not show the present text"
        if not present:
            assert "meeting.txt" not in shown or name == "mcp", f"{name} has a removed file"


@pytest.mark.parametrize("form", LIBRARY_FORMS)
def test_a_changed_and_a_removed_file(run: Esa, form: str) -> None:
    def update() -> None:
        for command in LIBRARY_FORMS[form]:
            assert run(*command).code == 0

    update()
    assert FORMER in FACES["ask"](run)
    write("meeting.txt", dinner(PRESENT))
    check(run, PRESENT)  # before the next `ingest`, too: the file is read again
    update()
    check(run, PRESENT)
    write("meeting.txt", dinner(FORMER))
    assert FORMER in FACES["ask"](run), "its former text is its text again"
    update()
    Path("town/meeting.txt").unlink()
    check(run, "")
    assert "meeting.txt" not in run("library", "list").out
    update()
    check(run, "")
    words = form in ("words", "both")
    pruned = run("ingest", "--words", "town", "--prune") if words else run("library", "prune")
    assert pruned.code == 0
    assert Library().list_present_and_former().former == []
    check(run, "")


def test_files_of_a_missing_or_empty_folder_answer(run: Esa) -> None:
    """The folder may be on a disk that is away; one that has another file is not."""
    assert run(*LIBRARY_FORMS["read"][0]).code == 0
    Path("town").rename("elsewhere")
    assert FORMER in FACES["ask"](run)
    Path("town").mkdir()
    assert FORMER in FACES["ask"](run)
    emptied = run("ingest", "town", *TINY)
    assert (emptied.code, "esa ingest --prune --yes town" in emptied.err) == (3, True)
    assert run("ingest", "--prune", "town").code == 3
    assert FORMER in FACES["ask"](run)
    write("other.txt", "A mill.")
    assert FORMER not in FACES["ask"](run)
    Path("town/other.txt").unlink()
    assert run("ingest", "--prune", "--yes", "town").code == 0
    assert [*Library().list_present_and_former()] == [[], []]


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork, no SIGKILL")
@pytest.mark.parametrize("seed", seeds(1, first=3))
@pytest.mark.parametrize("form", ["words", "read"])
def test_kills_at_random_moments_bring_no_former_text_back(run: Esa, form: str, seed: int) -> None:
    """Also between the parts of a prune: what was read of a file goes before its record."""
    (command,) = LIBRARY_FORMS[form]
    assert run(*command).code == 0
    draw, kills, needs = random.Random(seed), 0, taken(lambda: main([*command, "-q"]))
    for turn in range(8):
        write("meeting.txt", dinner(f"{PRESENT} {turn}"))
        if turn % 2:
            Path("town/meeting.txt").unlink()
        more = ("--prune",) if turn % 4 > 1 else ()
        kills += killed(partial(main, [*command, *more, "-q"]), draw.uniform(0, needs))
        shown = FACES["ask"](run) + by_mcp(run) + by_server(run, 2) + by_python(run)
        assert FORMER not in shown
        last = [number for number in range(8) if f"{PRESENT} {number}" in shown]
        assert set(last) <= ({turn} if turn % 2 == 0 else set())
    assert kills >= 2
    write("meeting.txt", dinner(PRESENT))
    assert run(*command).code == 0
    check(run, PRESENT)

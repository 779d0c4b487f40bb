"""`esa ask --read` and `--no-keep`: what happens with documents that the preset's finder has not
read. Tiny random model, and an untrained finder of it."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import TINY, Result

from esa_cli.apps.cli import model_and_documents as opening
from esa_cli.qa.answering.reply import Reply
from esa_cli.qa.api import Esa
from esa_cli.storage.library import Library

GATE = "The gate opens at nine, and the keeper has the only key. " * 25
BOAT = "A grey boat lies at the pier, and nobody knows whose it is. " * 25
QUESTION = "When does the gate open?"
ASK = ("ask", "gate.txt", QUESTION)
NOT_YET = "esa: not read yet: gate.txt. This answer was found with BM25 alone. Reading now"
Run = Callable[..., Result]


@pytest.fixture
def run(
    surroundings: None, esa: Run, finder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """`esa` with a preset that has a finder, in a folder and with a library of its own."""
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    Path("gate.txt").write_text(GATE, "utf-8")
    Path("boat.txt").write_text(BOAT, "utf-8")
    text = ("--set", "answer.from=text", "--set", f"answer.finder={finder}")

    return lambda command, *more: esa(command, *TINY, *text, *more)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Standard output is a terminal."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda stream: stream is sys.stdout)


def reading_ends_by(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], at: int = 0
) -> None:
    """The error is raised once `at` tokens are read."""

    def progress(self: opening.IngestProgressDisplay, done: int, total: int) -> None:
        if done >= at:
            raise error

    monkeypatch.setattr(opening.IngestProgressDisplay, "report_ingest_progress", progress)


def full(file: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def answers(monkeypatch: pytest.MonkeyPatch, read: str) -> None:
    """Once all documents are read, answers are `read`."""
    real = Esa.ask

    def ask(self: Esa, *given: Any, on_text: Any = None, **more: Any) -> Reply:
        reply = real(self, *given, **more)
        reply = replace(reply, text=read, certainty="answer") if reply.read else reply
        if on_text is not None:
            on_text(reply.text)
        return reply

    monkeypatch.setattr(Esa, "ask", ask)


@pytest.mark.usefixtures("terminal")
def test_the_answer_comes_at_once_and_again_after_reading(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = run(*ASK, "--read", "never").out.strip()
    answers(monkeypatch, "At nine.")
    done = run(*ASK, "--report", "page.html")
    assert done.code == 0
    assert done.out.splitlines() == [words, "At nine."]
    said = done.err.splitlines()
    (place,) = (n for n, line in enumerate(said) if NOT_YET in line)
    passages = [n for n, line in enumerate(said) if line.startswith("  gate.txt:")]
    assert [n < place for n in passages] == [True, False], "the others say the same"
    assert place < said.index("esa: the answer after reading:") < passages[1]
    assert said[-1] == "esa: wrote page.html"
    assert "At nine." in Path("page.html").read_text("utf-8")
    (entry,) = Library().entries()
    assert entry.kv_format == "index"
    again = run(*ASK)
    assert again.out == "At nine.\n"
    assert NOT_YET not in again.err


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("keep", [(), ("--no-keep",)])
def test_ctrl_c_while_it_is_read_leaves_the_first_answer(
    run: Run, monkeypatch: pytest.MonkeyPatch, keep: Sequence[str]
) -> None:
    with monkeypatch.context() as patch:
        reading_ends_by(patch, KeyboardInterrupt)
        done = run(*ASK, *keep, "--report", "page.html")
    assert done.code == 130
    assert done.out == run(*ASK, "--read", "never", "--no-keep").out
    said = done.err.splitlines()
    assert said[-3] == "esa: the answer above was found with BM25 alone"
    assert said[-2:] == ["esa: wrote page.html", "esa: interrupted"]
    assert Path("page.html").exists()
    assert Library().entries() == []


@pytest.mark.usefixtures("terminal")
def test_where_the_disk_is_full_nothing_is_stored_unless_it_must_be(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = run(*ASK, "--no-keep")
    monkeypatch.setattr(os, "fsync", full)
    for command in (ASK, (*ASK, "--read", "first"), ("chat", "gate.txt")):
        monkeypatch.setattr("sys.stdin", io.StringIO())
        done = run(*command)
        assert done.code == 0
        assert "esa: documents are not stored: the library in " in done.err
        assert "No space left" in done.err
        assert command[0] == "chat" or done.out.splitlines()[-1] == kept.out.splitlines()[-1]
    Path("two.txt").write_text(GATE * 2, "utf-8")
    done = run("ask", "gate.txt", "two.txt", QUESTION, "--read", "first")
    assert done.err.count("No space left") == 1
    done = run(*ASK, "--keep")
    assert done.code == 6
    assert "No space left" in done.err
    done = run("ingest", "gate.txt")
    assert done.code == 6
    assert run(*ASK, "--no-keep").code == 0
    assert Library().entries() == []


def test_never_asks_the_words_alone(run: Run) -> None:
    done = run(*ASK, "--read", "never", "--json")
    (document,) = done.data["documents"]
    assert (done.data["read"], document["read"], document["read_s"]) == (False, False, 0)
    assert done.data["timing"]["ingest_tokens_per_s"] == 0
    assert not Path("library").exists()
    assert run("ingest", "gate.txt").code == 0
    assert run(*ASK, "--read", "never", "--json").data["read"], "what is there is used"


@pytest.mark.parametrize("command", [ASK, ("batch", "q.jsonl", "--out", "a.jsonl"), ("chat",)])
@pytest.mark.parametrize(
    ("keep", "kept"), [((), True), (("--keep",), True), (("--no-keep",), False)]
)
def test_what_is_read_for_the_finder_is_kept_unless_told_otherwise(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], keep: str, kept: bool
) -> None:
    Path("q.jsonl").write_text(json.dumps({"question": QUESTION, "documents": ["gate.txt"]}))
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{QUESTION}\n"))
    words = (*command, "gate.txt") if command == ("chat",) else command
    assert run(*words, *keep).code == 0
    assert [entry.kv_format for entry in Library().entries()] == ["index"] * kept
    if command[0] == "batch":
        assert json.loads(Path("a.jsonl").read_text("utf-8"))["read"] is True

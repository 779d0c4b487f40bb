"""The log of questions: `esa log`, `esa ask --continue`, and what `esa chat` adds to it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import TINY, Esa, fail
from fake_asker import FakeAsker

from esa_cli.apps.question_log import (
    MAX_TURNS,
    LoggedConversation,
    find_log_path,
    list_logged_questions,
)
from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import Reply, Turn
from esa_cli.qa.api import Esa as Api

pytestmark = pytest.mark.usefixtures("surroundings")


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ESA_LOG", str(tmp_path / "state/log.sqlite"))
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    (tmp_path / "b.md").write_text("The harbour is closed on Sundays.", "utf-8")
    return tmp_path / "state/log.sqlite"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Turn]]]:
    """The questions that the model is asked, each with its history."""
    calls: list[tuple[str, list[Turn]]] = []
    ask: Callable[..., Reply] = Api.ask

    def record(self: Api, question: str, books: Any, **more: Any) -> Reply:
        calls.append((question, list(more["history"])))
        return ask(self, question, books, **more)

    monkeypatch.setattr(Api, "ask", record)
    return calls


SHORT = [*TINY, "--quiet", "--max-new-tokens", "2"]


def test_questions_are_logged_and_gone_on_with(
    esa: Esa, note: str, log: Path, asked: list[tuple[str, list[Turn]]]
) -> None:
    for words in ((note, "One?"), ("b.md", "Two?"), ("-c", note, "Three?"), ("-c", "Four?")):
        assert esa("ask", *words, *SHORT).code == 0
    rows = esa("log", "--json").data["questions"]
    assert [row["question"] for row in rows] == ["One?", "Two?", "Three?", "Four?"]
    assert [row["before"] for row in rows] == [None, None, rows[0]["id"], rows[2]["id"]]
    assert rows[3]["documents"] == [os.path.abspath(note)]
    turns = [Turn(row["question"], row["answer"]) for row in rows]
    assert asked == [
        ("One?", []), ("Two?", []), ("Three?", [turns[0]]), ("Four?", [turns[0], turns[2]])
    ]  # fmt: skip
    shown = esa("log", "--top", "2").out
    assert "Three?" in shown
    assert "Two?" not in shown
    if os.name != "nt":
        assert log.stat().st_mode & 0o077 == 0
        assert log.parent.stat().st_mode & 0o077 == 0
    beside = log.with_name(f"{log.name}.mine")
    beside.touch()
    assert "4 questions" in esa("log", "clear").out
    assert (log.exists(), beside.exists()) == (False, True)
    assert esa("log", "--json").data == {"questions": []}
    fail(esa("ask", "-c", note, "Five?", *SHORT), 2, "these documents")
    fail(esa("ask", "-c", "Five?", *SHORT), 2, "no earlier question")


def test_no_log_is_kept_where_it_is_off(
    esa: Esa, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESA_LOG", "OFF")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    assert find_log_path() is None
    assert esa("ask", note, "One?", *SHORT).code == 0
    assert not (tmp_path / "states").exists()
    fail(esa("log"), 2, "ESA_LOG")
    fail(esa("ask", "-c", "Two?", *SHORT), 2, "ESA_LOG")
    monkeypatch.delenv("ESA_LOG")
    assert str(find_log_path()).endswith("log.sqlite")


def test_an_answer_is_given_where_the_log_cannot_be_written(esa: Esa, note: str, log: Path) -> None:
    log.parent.mkdir()
    log.write_bytes(b"not a database " * 99)
    result = esa("ask", note, "One?", *TINY, "--max-new-tokens", "2")
    assert (result.code, bool(result.out)) == (0, True)
    assert str(log) in result.err
    fail(esa("log"), 6, str(log), "ESA_LOG")


def test_a_chat_is_one_conversation(
    esa: Esa, note: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("One?\nTwo?\n/reset\nThree?\n"))
    assert esa("chat", note, *SHORT).code == 0
    rows = list_logged_questions(log)
    assert [row.question for row in rows] == ["One?", "Two?", "Three?"]
    assert [row.before for row in rows] == [None, rows[0].id, None]


def test_long_conversations_go_on_from_their_last_turns(log: Path, tmp_path: Path) -> None:
    asker: Any = FakeAsker(room=11)  # a turn has four words
    asker.reader, asker.name = None, "fake"
    talk = LoggedConversation(["a", "-"])
    for number in range(MAX_TURNS + 3):
        reply = talk.ask(asker, f"{number}", ["book"])
        talk.append(f"{number}", reply, asker, pytest.fail)
    assert talk.forgotten == MAX_TURNS
    resumed = LoggedConversation.resume(["a", "-"], False)
    assert [turn.question for turn in resumed.turns] == [f"{n}" for n in range(3, MAX_TURNS + 3)]
    assert LoggedConversation.resume([], False).documents == ["a", "-"]
    with pytest.raises(UsageError):
        LoggedConversation.resume(["a", "-"], True)
    with pytest.raises(UsageError, match="too long"):
        resumed.ask(FakeAsker(room=0), "one two", ["book"])

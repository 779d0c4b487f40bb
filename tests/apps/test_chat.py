"""Conversations: history, commands, files, the line editor, pipes and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from asking_command import run_command
from fake_asker import FakeAsker
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from esa_cli.apps import line_editor
from esa_cli.apps.cli.commands import chat_command as chat
from esa_cli.apps.cli.output import terminal as render
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.conversation import ChatLines, Conversation, Exchange
from esa_cli.errors import ResourceError
from esa_cli.qa.answering.reply import Reply, Turn

ENTER, CTRL_C, CTRL_D, ALT_ENTER = "\r", "\x03", "\x04", "\x1b\r"


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("alpha", "utf-8")


@pytest.fixture
def asker() -> FakeAsker:
    return FakeAsker()


class LateReporter(Reporter):
    """Looks for standard error when it writes: a fixture's is not the test's."""

    @property
    def console(self) -> Any:
        return render.make_console(sys.stderr)

    @console.setter
    def console(self, value: Any) -> None:
        pass


@pytest.fixture
def lines(asker: FakeAsker) -> ChatLines:
    return ChatLines(Conversation(asker, ["alpha"]), ["a.txt"], LateReporter(), 3)


def nothing(piece: str) -> None:
    pass


def test_turns_are_handed_on_in_order(asker: FakeAsker) -> None:
    talk = Conversation(asker, ["alpha"], {"seed": 7})
    talk.ask("one", nothing)
    talk.ask("two", nothing)
    talk.ask("three", nothing)
    assert asker.calls[2]["history"] == [
        Turn("one", "You asked: one"),
        Turn("two", "You asked: two"),
    ]
    assert asker.calls[2]["seed"] == 7
    assert asker.calls[2]["evidence"] == 10


def test_only_the_oldest_turns_are_forgotten_and_only_as_many_as_need_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asker = FakeAsker(room=11)  # a turn has four words: two of them, and three more
    talk = Conversation(asker, ["alpha"])
    lines = ChatLines(talk, ["a.txt"], Reporter(), 0)
    for question in ("one", "two", "three", "four", "five"):
        lines.take(question)
    assert asker.calls[-1]["history"] == [
        Turn("three", "You asked: three"),
        Turn("four", "You asked: four"),
    ]
    assert talk.forgotten == 2
    assert [one.question for one in talk.record] == ["one", "two", "three", "four", "five"]
    assert capsys.readouterr().err.count("has grown long") == 1


def test_a_stopped_answer_is_recorded_and_not_handed_on(asker: FakeAsker) -> None:
    talk = Conversation(asker, ["alpha"])

    def stop_at_the_second(piece: str) -> None:
        if piece != "You":
            talk.stop()

    assert talk.ask("one", stop_at_the_second) is None
    assert talk.record == [Exchange("one", Reply("You asked:"), stopped=True)]
    assert talk.turns == []
    assert talk.ask("two", nothing) is not None, "it goes on after a stop"
    assert asker.calls[-1]["history"] == []


def test_answers_go_to_stdout_and_passages_below(
    lines: ChatLines, asker: FakeAsker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lines.take("one")
    out, err = capsys.readouterr()
    assert out == "You asked: one\n"
    passages = [
        f"  book{n}.txt, page {n + 1}, line {10 * n + 1} (50%): passage {n} of alpha"
        for n in range(3)
    ]
    assert err.splitlines()[1:] == passages
    asker.found = False
    lines.take("three")
    assert capsys.readouterr().err.startswith("  the documents may not contain the answer\n")


def test_mistakes_do_not_end_the_talk(lines: ChatLines, asker: FakeAsker) -> None:
    mistakes = ["/evidence", "/save x.md", "/save", "/evidence two", "/evidence 0", "/savee x", "/"]
    for line in mistakes:
        assert lines.take(line)
    assert lines.failed == len(mistakes)
    assert not asker.calls
    lines.take("/etc/hosts holds what?")
    assert asker.calls[0]["question"] == "/etc/hosts holds what?"
    lines.take("/reset")
    assert lines.take("  ")
    lines.take("two")
    assert asker.calls[-1]["history"] == []
    assert [one.question for one in lines.talk.record] == ["two"]
    assert not lines.take("/quit")


def test_save_markdown_and_json(asker: FakeAsker, tmp_path: Path) -> None:
    lines = ChatLines(Conversation(asker, ["alpha"]), ["b\udcff.txt"], LateReporter(), 3)
    asker.answers["two"] = "zwei\nlines"
    lines.take("one")
    lines.take("two")
    lines.take("/save talk.md")
    lines.take("/save 'with space.JSON'")
    text = (tmp_path / "talk.md").read_text("utf-8")
    assert "> two\n\nzwei\nlines\n" in text
    assert "1. book0.txt, page 1, line 1 (50%): passage 0 of alpha" in text
    assert "- b\\udcff.txt\n" in text
    data = json.loads((tmp_path / "with space.JSON").read_text("utf-8"))
    assert data["model"] == "fake-model"
    assert data["documents"] == ["b\udcff.txt"]
    assert [turn["question"] for turn in data["turns"]] == ["one", "two"]
    assert data["turns"][0]["evidence"][0]["document"] == "book0.txt"
    lines.take("/save a.txt")
    assert (tmp_path / "a.txt").read_text("utf-8") == "alpha", "a file that was there stays"
    lines.take("three")
    lines.take("/save talk.md")
    assert "> three" in (tmp_path / "talk.md").read_text("utf-8"), "its own is written again"


def test_ctrl_c_stops_the_answer_alone(
    asker: FakeAsker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.gate.clear()
    lines = ChatLines(Conversation(asker, ["alpha"]), ["a.txt"], Reporter(), 3, stoppable=True)
    before = signal.getsignal(signal.SIGINT)

    def press() -> None:
        asker.running.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
        asker.gate.set()

    thread = threading.Thread(target=press)
    thread.start()
    assert lines.take("one")
    thread.join()
    assert asker.stopped == 1
    assert "stopped" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    assert lines.take("two")
    assert asker.calls[-1]["history"] == []


def typed(asker: FakeAsker, keys: str) -> list[str]:
    """The questions that reach the asker when these keys are pressed."""
    lines = ChatLines(Conversation(asker, ["alpha"]), ["a.txt"], Reporter(), 0)
    with create_pipe_input() as device:
        device.send_text(keys)
        line_editor.edit_lines(lines, lines.reporter, input=device, output=DummyOutput())
    return [call["question"] for call in asker.calls]


def test_typing(asker: FakeAsker) -> None:
    paste = "\x1b[200~first\r\nsecond\x1b[201~"
    keys = f"one{ENTER}{paste}{ENTER}two{ALT_ENTER}lines{ENTER}wrong{CTRL_C}"
    wanted = ["one", "first\nsecond", "two\nlines"]
    assert typed(asker, f"{keys}{CTRL_D}") == wanted
    assert typed(asker, f"/quit{ENTER}two{ENTER}{CTRL_D}") == wanted


def test_lines_are_remembered_for_the_next_time(asker: FakeAsker, tmp_path: Path) -> None:
    typed(asker, f"one{ENTER}{CTRL_D}")
    up = "\x1b[A"
    assert typed(asker, f"{up}{ENTER}{CTRL_D}") == ["one", "one"]
    path = tmp_path / "state/esa/chat_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def command(monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, stdin: bytes, *words: str) -> Any:
    return run_command(monkeypatch, chat.chat, asker, *words, stdin=stdin)


def test_a_pipe_is_questions_line_by_line(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker
) -> None:
    result = command(
        monkeypatch,
        asker,
        b"\xef\xbb\xbfone\r\n\n/docs\ntwo\n/quit\nthree\n",
        "a.txt",
        "--seed",
        "3",
    )
    assert result.exit_code == 0
    assert result.stdout == "You asked: one\na.txt\nYou asked: two\n"
    assert [call["question"] for call in asker.calls] == ["one", "two"]
    assert asker.calls[1]["history"] == [Turn("one", "You asked: one")]
    assert asker.calls[0]["seed"] == 3
    assert asker.calls[0]["books"] == ["alpha"]


def test_through_a_pipe_failures_end_with_seven_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker
) -> None:
    asker.failures["bad"] = ResourceError("no room")
    result = command(monkeypatch, asker, b"bad\ngood\n/quit\n", "a.txt")
    assert (result.exit_code, result.stdout) == (7, "You asked: good\n")
    assert command(monkeypatch, asker, b"good\n/sav\n", "a.txt").exit_code == 7
    assert command(monkeypatch, asker, b"good\n", "a.txt").exit_code == 0

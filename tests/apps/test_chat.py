"""Conversations: history, commands, files, the line editor, pipes and Ctrl-C."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking_command import run_command
from fake_asker import FakeAsker

from esa_cli.apps.cli.commands import chat_command as chat
from esa_cli.apps.cli.commands.chat_command import DocumentChat
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.sources import WRITTEN_BY_ESA
from esa_cli.errors import ResourceError
from esa_cli.qa.answering.reply import Reply, Turn


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("alpha", "utf-8")


@pytest.fixture
def asker() -> FakeAsker:
    return FakeAsker()


@pytest.fixture
def lines(asker: FakeAsker) -> DocumentChat:
    return DocumentChat(asker, ["alpha"], ["a.txt"], Reporter(), top=3)


def test_only_the_oldest_turns_are_forgotten_and_only_as_many_as_need_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asker = FakeAsker(room=11)  # a turn has four words: two of them, and three more
    lines = DocumentChat(asker, ["alpha"], ["a.txt"], Reporter())
    for question in ("one", "two", "three", "four", "five"):
        lines.answer_question_or_run_command(question)
    assert asker.calls[-1]["history"] == [
        Turn("three", "You asked: three"),
        Turn("four", "You asked: four"),
    ]
    assert lines.talk.forgotten == 2
    assert [question for question, _ in lines.record] == ["one", "two", "three", "four", "five"]
    assert capsys.readouterr().err.count("has grown long") == 1


def test_a_foreign_language_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    class GermanAsker(FakeAsker):
        def ask(self, *given: Any, **named: Any) -> Reply:
            said = super().ask(*given, **named)
            return replace(said, certainty="answer", foreign_languages=("German",))

    lines = DocumentChat(GermanAsker(), ["alpha"], ["a.txt"], Reporter())
    for question in ("one", "two"):
        lines.answer_question_or_run_command(question)
    assert capsys.readouterr().err.count("There are passages in German; ") == 1


def test_mistakes_do_not_end_the_talk(lines: DocumentChat, asker: FakeAsker) -> None:
    mistakes = ["/evidence", "/save x.md", "/save", "/savee x", "/"]
    for line in mistakes:
        assert lines.answer_question_or_run_command(line)
    assert lines.failed == len(mistakes)
    assert not asker.calls
    lines.answer_question_or_run_command("/etc/hosts holds what?")
    assert asker.calls[0]["question"] == "/etc/hosts holds what?"
    lines.answer_question_or_run_command("/reset")
    assert lines.answer_question_or_run_command("  ")
    lines.answer_question_or_run_command("two")
    assert asker.calls[-1]["history"] == []
    assert [question for question, _ in lines.record] == ["two"]
    assert not lines.answer_question_or_run_command("/quit")


def test_save_markdown(asker: FakeAsker, tmp_path: Path) -> None:
    lines = DocumentChat(asker, ["alpha"], ["b\udcff.txt"], Reporter(), top=3)
    asker.answers["two"] = "zwei\nlines"
    lines.answer_question_or_run_command("one")
    lines.answer_question_or_run_command("two")
    lines.answer_question_or_run_command("/save talk.md")
    lines.answer_question_or_run_command("/save 'with space.md'")
    text = (tmp_path / "talk.md").read_text("utf-8")
    assert text.startswith(WRITTEN_BY_ESA)
    assert "> two\n\nzwei\nlines\n" in text
    assert "1. book0.txt, page 1, One: passage 0 of alpha" in text
    assert "- b\\udcff.txt\n" in text
    assert (tmp_path / "with space.md").read_text("utf-8") == text
    lines.answer_question_or_run_command("/save a.txt")
    assert (tmp_path / "a.txt").read_text("utf-8") == "alpha", "a file that was there stays"
    lines.answer_question_or_run_command("three")
    lines.answer_question_or_run_command("/save talk.md")
    assert "> three" in (tmp_path / "talk.md").read_text("utf-8"), "its own is written again"


def test_ctrl_c_stops_the_answer_alone(
    asker: FakeAsker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.gate.clear()
    lines = DocumentChat(asker, ["alpha"], ["a.txt"], Reporter(), interruptible=True)
    before = signal.getsignal(signal.SIGINT)

    def press() -> None:
        asker.running.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
        asker.gate.set()

    thread = threading.Thread(target=press)
    thread.start()
    assert lines.answer_question_or_run_command("one")
    thread.join()
    assert asker.stopped == 1
    assert "stopped" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    assert lines.answer_question_or_run_command("two")
    assert asker.calls[-1]["history"] == []


def type_lines(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, *lines: str | type[BaseException]
) -> list[str]:
    """The questions that reach the asker when these lines are typed, or raised as by keys."""
    talk = DocumentChat(asker, ["alpha"], ["a.txt"], Reporter(), interruptible=True)
    typed = iter([*lines, EOFError])

    def read_line(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", read_line)
    chat.run_chat_on_terminal(talk)
    return [call["question"] for call in asker.calls]


def test_typing(monkeypatch: pytest.MonkeyPatch, asker: FakeAsker) -> None:
    assert type_lines(monkeypatch, asker, "one", KeyboardInterrupt, "two") == ["one", "two"]
    assert type_lines(monkeypatch, asker, "three", "Quit", "four") == ["one", "two", "three"]
    assert type_lines(monkeypatch, asker, "/quit", "four") == ["one", "two", "three"]


def command(monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, stdin: bytes, *words: str) -> Any:
    return run_command(monkeypatch, chat.chat, asker, *words, stdin=stdin)


def test_a_pipe_is_questions_line_by_line(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker
) -> None:
    typed = b"\xef\xbb\xbfone\r\n\n/docs\ntwo\n/quit\nthree\n"
    result = command(monkeypatch, asker, typed, "a.txt", "--seed", "3")
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


def test_thanks_are_answered(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker, capsys: pytest.CaptureFixture[str]
) -> None:
    thanks = "Thanks!", "thank you", "Merci beaucoup !", "¡Muchas gracias!", "Vielen Dank."
    assert type_lines(monkeypatch, asker, *thanks, "one") == ["one"]
    assert len(capsys.readouterr().err.splitlines()) >= len(thanks)
    assert type_lines(monkeypatch, asker, "/quit") == ["one"]
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX terminal")
def test_keys_typed_while_an_answer_comes_are_not_shown_and_are_the_next_line(
    monkeypatch: pytest.MonkeyPatch, asker: FakeAsker
) -> None:
    """On a terminal of its own. It shows keys again after an answer, Ctrl-C and a mistake."""
    import termios
    import tty

    keyboard, screen = os.openpty()
    shown = list[bool]()

    def shows_keys() -> bool:
        return bool(termios.tcgetattr(screen)[3] & termios.ECHO)

    class Talk(DocumentChat):
        def answer_question_or_run_command(self, line: Any) -> bool:
            shown.append(shows_keys())
            if line == "one":
                os.write(keyboard, b"two\n")
                assert select.select([screen], [], [], 10)[0], "the keys have arrived"
            if line == "two":
                raise KeyboardInterrupt
            if line == "three":
                raise RuntimeError("a bug")
            return True

    before = termios.tcgetattr(screen)
    assert before[tty.LFLAG] & termios.ECHO
    with open(screen, encoding="utf-8", closefd=False) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        lines = iter(["one", None, "three"])

        def read_line(prompt: str) -> str:
            shown.append(shows_keys())
            return next(lines) or stdin.readline().rstrip("\n")

        monkeypatch.setattr("builtins.input", read_line)
        talk = Talk(asker, ["alpha"], ["a.txt"], Reporter(), interruptible=True)
        with pytest.raises(RuntimeError):
            chat.run_chat_on_terminal(talk)
    assert shown == [True, False] * 3
    assert termios.tcgetattr(screen) == before
    os.set_blocking(keyboard, False)
    with pytest.raises(BlockingIOError):
        os.read(keyboard, 99)  # nothing of "two" is on the screen
    os.close(keyboard)
    os.close(screen)

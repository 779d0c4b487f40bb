"""Notes, errors and answers on a narrow terminal."""

from __future__ import annotations

import io
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from esa_cli.__main__ import main
from esa_cli.apps.cli.commands.ask_command import AskOptions, AskRun
from esa_cli.apps.cli.output.answer_output import AnswerStream
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.cli.output.wrapping import wrapped_text

PATH = "/srv/documents/a-folder-with-a-long-name/book.txt"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def narrow(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error of 30 columns, without colours."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    for name, value in {"COLUMNS": "30", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    return terminal


def test_notes_break_at_spaces_and_paths_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = narrow(monkeypatch)
    Reporter().warn(f"esa: it was found by words alone; reading {PATH} now")
    assert terminal.getvalue().splitlines() == [
        "esa: it was found by words",
        "     alone; reading",
        f"     {PATH}",
        "     now",
    ]


def test_errors_break_at_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = narrow(monkeypatch)
    assert main(["ask", "note.md", "What?", "--read", "never", "--keep"]) == 2
    lines = terminal.getvalue().splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= 30


def test_a_pipe_gets_whole_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    Reporter().warn(f"esa: it was found by words alone; reading {PATH} now")
    assert capsys.readouterr().err.count("\n") == 1


ANSWER = f" Ahab commands the Pequod, and {PATH} tells it.\n\nHe hunts a white whale.\n"
SHOWN = ["Ahab commands the Pequod, and", f"{PATH} tells it.", "", "He hunts a white whale."]
"""The path takes one line and a part of the next."""


@pytest.mark.parametrize("size", [1, 2, 5, 200])
def test_an_answer_breaks_at_spaces_however_it_comes(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    terminal = narrow(monkeypatch)
    answer = AnswerStream(terminal, Reporter())
    for at in range(0, len(ANSWER), size):
        answer(ANSWER[at : at + size])
    answer.end()
    assert terminal.getvalue().splitlines() == SHOWN


def test_words_are_shown_when_they_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = narrow(monkeypatch)
    answer = AnswerStream(terminal, Reporter(), indent="  ")
    answer("Ahab com")
    assert terminal.getvalue() == "Ahab"
    answer("mands a ship of whalers in the Pacific")
    answer.end()
    assert terminal.getvalue() == "Ahab commands a ship of\n  whalers in the Pacific"
    answer("\u6d77\u4e0a")  # a script without spaces is not held back
    assert terminal.getvalue().endswith("\u6d77\u4e0a")


def test_the_last_word_of_an_interrupted_answer_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", terminal := narrow(monkeypatch))

    def interrupted(*_: object, on_text: Callable[[str], None], **options: object) -> None:
        on_text("Ahab com")
        raise KeyboardInterrupt

    run = AskRun([], "Who?", AskOptions(), Mock(), Mock(), Mock(), Reporter(quiet=True))
    run.esa, run.timing = Mock(ask=interrupted), Mock()
    run.generation.arguments.return_value = {}
    with pytest.raises(KeyboardInterrupt):
        run._answer([])
    assert terminal.getvalue() == "Ahab com"


def test_an_answer_in_a_pipe_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    pipe = io.StringIO()
    answer = AnswerStream(pipe, Reporter())
    for letter in ANSWER:
        answer(letter)
    answer.end()
    assert pipe.getvalue() == ANSWER[1:]
    assert wrapped_text(ANSWER, pipe) == ANSWER

"""Notes and errors on a narrow terminal."""

from __future__ import annotations

import io

import pytest

from esa_cli.__main__ import main
from esa_cli.apps.cli.output.terminal import Reporter

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
    assert main(["selftest", "needle", "--len", "1k", "--lens", "2k"]) == 2
    assert terminal.getvalue().splitlines() == [
        "esa: one of --len and --lens",
        "     must be given, got both",
        "     --lens takes one or",
        "     several",
    ]


def test_a_pipe_gets_whole_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    Reporter().warn(f"esa: it was found by words alone; reading {PATH} now")
    assert capsys.readouterr().err.count("\n") == 1

"""Tables, notes and errors: in a pipe, on a narrow terminal, and with hostile text."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from esa_cli.apps.cli.output import terminal
from esa_cli.apps.cli.output.answer_output import AnswerPrinter
from esa_cli.apps.cli.output.terminal import Reporter

BIDI = "\u202eevil\u202c \u2066x\u2069 \u200f\u061c"


def test_words_of_documents_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither emoji nor control characters, whether strings, texts or tables are printed."""
    from rich.table import Table

    said = ":key: \x1b[31mred\x9b \x07 " + BIDI
    table = Table(said, box=None)
    table.add_row(said)
    console = terminal.make_rich_console(sys.stdout)
    console.print(said, markup=False)
    console.print(table)
    terminal.print_table(("",), [(said,)])
    terminal.Reporter().warn(said)
    out, err = capsys.readouterr()
    for shown in (out, err):
        assert ":key: [31mred" in shown
        assert not re.search(
            r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e-\u200f\u202a-\u2069]", shown
        )
    terminal.print_json({"said": said})
    told = capsys.readouterr().out
    assert json.loads(told) == {"said": said}
    assert "\\u202e" in told
    assert not set(BIDI) & set(told) - {*"evil x"}


def test_the_time_left_is_counted_from_the_last_call_with_nothing_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, shown = [0.0], list[str]()
    monkeypatch.setattr(terminal.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(Reporter, "show_spinner", lambda reporter, text: shown.append(text))
    show = Reporter(quiet=True).start_progress("reading", "passages")
    for at, done in ((100.0, 0), (102.0, 4), (110.0, 16)):
        clock[0] = at
        show(done, 20)
    clock[0] = 150.0
    show(1, 3)
    assert shown == [
        "reading: 0 of 20 passages",
        "reading: 4 of 20 passages, 2 passages/s, 8.0 s left",
        "reading: 16 of 20 passages, 2 passages/s, 2.5 s left",
        "reading: 1 of 3 passages, 0.02 passages/s, 1 min 40 s left",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_answer_is_shown_as_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    answer = AnswerPrinter(terminal, Reporter())
    for piece, shown in ((" ", ""), (" Ahab\x1b[2J", "Ahab[2J"), (" com", "Ahab[2J com")):
        answer(piece)
        assert terminal.getvalue() == shown

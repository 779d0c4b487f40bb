"""`--answer` and the parts of a method: whether answers come from rows or text."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import cache, esa, note, surroundings
from command import TINY, Esa

from esa_cli.apps.cli.options.answer_options import AnswerOptions
from esa_cli.apps.cli.options.options import ModelOptions
from esa_cli.apps.cli.output.answer_output import NOT_FOUND, in_full, show_under
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.apps.conversation import Exchange, transcript
from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import NOT_TOLD, Passage, Reply, says_not_told

__all__ = ["cache", "esa", "note", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")
FROM_TEXT = ["--set", "answer.from=text", "--set", "answer.passages=2"]
QUIET = ["--json", "--quiet", "--max-new-tokens", "4"]


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model's window has 512 bytes."""
    monkeypatch.setattr("esa_cli.qa.reading.span.ROOM", 256)


def chosen(answer: AnswerOptions, *settings: str, **more: Any) -> Any:
    model = ModelOptions(preset="tiny-random", settings=list(settings))
    return answer.load_preset(model, **more).answer


def test_options_are_settings_of_the_preset() -> None:
    given = AnswerOptions(answer="span")
    assert chosen(given, "answer.from=text").form == "span"
    assert chosen(given, "answer.from=text", "answer.form=text").form == "text", "--set comes last"


def test_without_passages_they_are_refused() -> None:
    given = AnswerOptions(answer="text")
    with pytest.raises(UsageError, match="needs answers from passages"):
        chosen(given)
    with pytest.raises(UsageError, match="needs answers from passages"):
        chosen(given, "answer.from=text", method="infllm")
    with pytest.raises(UsageError, match="and --method infllm: a method answers from the rows"):
        given.check_no_method("infllm", {})


def test_a_quoted_answer_has_its_place(esa: Esa, note: str) -> None:
    data = esa("ask", note, "When does the gate open?", *TINY, *FROM_TEXT, *QUIET).data
    assert data["answered_from"] == "text"
    place = data["quotation"]
    assert place["document"] == "note.md"
    text = Path(note).read_text("utf-8")[place["start"] : place["end"]]
    assert " ".join(text.split()) == data["answer"]


@pytest.mark.parametrize(
    "part", [["--selector", "topk"], ["--score", "sum"], ["--position=esa"]], ids=" ".join
)
def test_former_options_of_parts_of_a_method_answer_from_rows(
    esa: Esa, note: str, part: list[str]
) -> None:
    preset = Path("own.yaml")
    preset.write_text("extends: tiny-random\nanswer: {from: text, passages: 2}\n")
    ask = ["ask", note, "When?", "--preset", "./own.yaml", "--device", "cpu", *QUIET]
    assert esa(*ask).data["answered_from"] == "text"
    data = esa(*ask, *part).data
    assert (data["answered_from"], data["quotation"]) == ("rows", None)
    refused = esa(*ask, *part, "--answer", "span")
    assert refused.code == 2
    assert "is now --set" in refused.err


def test_free_text_and_lines(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = esa("ask", note, "When?", *TINY, *FROM_TEXT, *QUIET, "--answer", "text").data
    assert (data["answered_from"], data["quotation"]) == ("text", None)
    assert data["tokens"]["answer"] <= 4
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"When?\n")))
    row = esa("ask", note, "-", *TINY, *FROM_TEXT, *QUIET, "--answer", "span").data
    assert row["answered_from"] == "text"
    assert set(row["quotation"]) == {"document", "start", "end"}


def test_that_the_documents_do_not_say_is_said_once(esa: Esa, note: str) -> None:
    ask = ["ask", note, "When?", *TINY, *FROM_TEXT, "--answer", "span"]
    result = esa(*ask, "--set", "answer.threshold=1000000.0")
    assert result.out == f"{NOT_TOLD}\n"
    assert NOT_FOUND not in result.err
    assert "  note.md, line 1" in result.err, "the nearest passages"
    assert "%" not in result.err
    result = esa(*ask, "--set", "answer.threshold=1000000.0", *QUIET)
    assert (result.data["found"], result.data["quotation"]) == (False, None)


def test_an_answer_that_may_be_wrong_has_the_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for text, warned in (("At nine.", True), (NOT_TOLD, False)):
        evidence = (Passage("a.md", "a.md", None, 1, None, 0, 5, "Words", weight=1.0),)
        reply = Reply(text, evidence, False, 1, 1, 0.1, 0.1)
        show_under(reply, 3, Reporter())
        record = [Exchange("When?", reply)]
        below, kept = capsys.readouterr().err, transcript(Path("a.md"), "model", [], record)
        for shown in (below, kept, in_full(evidence, False)):
            assert "a.md, line 1" in shown
            assert "%" not in shown, "a passage that answers nothing counts nothing"
        assert (NOT_FOUND in below, NOT_FOUND in kept) == (warned, warned)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NOT_TOLD, True),
        ("The documents do not say.", True),
        ("the passages don't mention a horse.", True),
        ("The documents do not say what the horse's name was.", True),
        ("The documents were burnt.", False),
        ("He said that the documents do not say.", False),
    ],
)
def test_words_that_the_documents_do_not_say(text: str, told: bool) -> None:
    assert says_not_told(text) is told

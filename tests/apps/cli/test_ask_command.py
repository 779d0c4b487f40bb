"""`esa ask`: answers on standard output, the rest on standard error; reports, JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from command import TINY, Esa, fail
from tiny_reader import save_tiny_reader

from esa_cli.apps.cli.output.answer_output import NOT_FOUND
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.models import load
from esa_cli.models.text_passes.text_forward import GROUP
from esa_cli.qa.answering.reply import NOT_TOLD, says_nothing_found
from esa_cli.qa.reading.span import AnswerCombination

pytestmark = pytest.mark.usefixtures("surroundings")


def test_a_report_takes_no_documents_place(esa: Esa, note: str, tmp_path: Path) -> None:
    text, page = Path(note).read_text(), tmp_path / "page.html"
    asked = ["ask", note, "When?", *TINY, "--quiet", "--max-new-tokens", "1", "--report"]
    (tmp_path / "link.md").symlink_to(note)
    for path in (note, "link.md"):
        fail(esa(*asked, path), 2, "must not be one of the documents")
    assert Path(note).read_text() == text
    page.write_text("before")
    (tmp_path / "link.html").symlink_to(page)
    assert esa(*asked, "link.html").code == 0
    assert page.read_text().startswith("<!")
    assert (tmp_path / "link.html").is_symlink()
    assert sorted(path.name for path in tmp_path.glob("*page*")) == ["page.html"]


def test_an_answer_is_shown_where_its_report_finds_no_room(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    asked = ["ask", note, "When?", *TINY, "--max-new-tokens", "4", "--report", "page.html"]
    monkeypatch.setattr(os, "fsync", full)
    result = esa(*asked)
    assert "note.md:" in result.err, "the passages"
    assert "No space left" in result.err
    assert result.code == 6
    result = esa(*asked, "--json")
    assert result.code == 6
    assert json.loads(result.out)["evidence"]


def test_json_is_one_object_with_everything_in_it(esa: Esa, note: str) -> None:
    result = esa(
        "ask", note, "When?", *TINY, "--json", "--quiet", "--max-new-tokens", "5",
        "--set", "position.name=contiguous", "--set", "window.selected=32",
    )  # fmt: skip
    data = json.loads(result.out)
    assert set(data) == {
        "answer", "model", "preset", "selector", "position", "window", "tokens", "timing",
        "peak_memory_bytes", "documents", "evidence", "found", "left_out", "answered_from",
        "quotation", "quotations", "sentences", "reader", "read", "certainty", "probability",
        "missing_words", "foreign_languages", "cut",
    }  # fmt: skip
    assert data["window"] == {"initial": 4, "selected": 32, "local": 64, "chunk": 128}
    assert (data["selector"], data["position"]) == ("topk", "contiguous")
    assert (data["preset"], data["model"]) == ("tiny-random", "random:llama")
    assert set(data["tokens"]) == {"document", "question", "answer"}
    assert data["tokens"]["document"] > 960
    assert 0 < data["tokens"]["answer"] <= 5
    assert set(data["timing"]) == {
        "load_s", "ingest_s", "answer_s", "ingest_tokens_per_s", "first_token_s",
    }  # fmt: skip
    (document,) = data["documents"]
    assert (document["name"], document["source"], document["id"]) == ("note.md", note, None)
    assert document["read"]
    assert document["read_s"] > 0
    text = Path(note).read_text("utf-8")
    for passage in data["evidence"]:
        assert text[passage["start"] : passage["end"]] == passage["text"]
        assert 0 <= passage["weight"] <= 1
    assert all(isinstance(value, float) and value > 0 for value in data["timing"].values())
    assert data["peak_memory_bytes"] > 1 << 20


def test_the_same_seed_gives_the_same_answer(esa: Esa, note: str) -> None:
    sampled = ["ask", note, "When?", *TINY, "--quiet", "--temperature", "1", "--seed"]
    assert esa(*sampled, "3").out == esa(*sampled, "3").out != esa(*sampled, "4").out


FROM_TEXT = ["--set", "answer.from=text", "--set", "answer.passages=2"]
QUIET = ["--json", "--quiet", "--max-new-tokens", "4"]


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model's window has 512 bytes."""
    monkeypatch.setattr("esa_cli.qa.reading.span.ROOM", 256)


def test_a_quoted_answer_has_its_place(esa: Esa, note: str) -> None:
    data = esa("ask", note, "When does the gate open?", *TINY, *FROM_TEXT, *QUIET).data
    assert data["answered_from"] == "text"
    place = data["quotation"]
    assert place["document"] == "note.md"
    text = Path(note).read_text("utf-8")[place["start"] : place["end"]]
    assert " ".join(text.split()) == data["answer"]


def test_that_nothing_was_found_is_said_once(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AnswerCombination, "get_certainty", lambda *given: "nothing")
    ask = ["ask", note, "When?", *TINY, *FROM_TEXT, "--set", "answer.form=span"]
    result = esa(*ask)
    assert result.out == f"{NOT_TOLD}\n"
    assert NOT_FOUND not in result.err
    assert "  note.md:1" in result.err, "the nearest passages"
    assert "%" not in result.err
    result = esa(*ask, *QUIET)
    assert (result.data["found"], result.data["quotation"]) == (False, None)
    assert result.data["certainty"] == "nothing"


def test_an_uncertain_answer_is_marked(esa: Esa, note: str) -> None:
    ask = ["ask", note, "When does the gate open?", *TINY, *FROM_TEXT]
    data = esa(*ask, *QUIET).data
    assert data["certainty"] == "perhaps"
    result = esa(*ask)
    assert result.out == f"perhaps: {data['answer']}\n"
    assert f"»{data['answer']}«" in result.err


@pytest.mark.parametrize("question", ["List all gates.", "Nenne alle Tore", "What does he list?"])
def test_a_request_for_a_list_names_collect(esa: Esa, note: str, question: str) -> None:
    asks_for_list = "he" not in question.split()
    said = esa("ask", note, question, *TINY, *FROM_TEXT).err
    assert ("`esa collect` looks for every place." in said) == asks_for_list


def test_a_thorough_answer_shows_its_progress_on_a_terminal_and_stops_at_ctrl_c(
    esa: Esa, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_tiny_reader(load("random:llama", device="cpu", dtype="float32").model, tmp_path)
    text = " ".join(f"Gate {number} opens at nine." for number in range(400))
    Path("long.md").write_text(text, "utf-8")
    reads = ["ask", "long.md", "When?", *TINY, *FROM_TEXT, "--set", f"answer.adapter={folder}"]
    shown: list[str] = []
    monkeypatch.setattr(Reporter, "show_spinner", lambda reporter, text: shown.append(text))
    result = esa(*reads, "--thorough")
    assert result.code == 0
    assert "reading" not in f"{shown} {result.err}", "standard error is no terminal"
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda stream: stream is sys.stderr)
    assert esa(*reads, "--thorough", "--json").data["answer"] in result.out
    read = [text for text in shown if text.startswith("reading: ")]
    count = int(read[0].split()[3])
    assert [int(text.split()[1]) for text in read] == [*range(0, count, GROUP), count]
    assert count > GROUP

    def interrupt(reporter: Reporter, text: str) -> None:
        if text.startswith(f"reading: {GROUP} of"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Reporter, "show_spinner", interrupt)
    result = esa(*reads, "--thorough")
    assert (result.code, result.out) == (130, "")
    fail(esa("ask", note, "When?", *TINY, "--thorough", "-q"), 2, "--thorough")


def test_words_that_the_documents_do_not_say() -> None:
    told = (NOT_TOLD, "the passages don't mention a horse.", "The documents do not say who.")
    assert all(map(says_nothing_found, told))
    assert not says_nothing_found("He said that the documents do not say.")
    assert not says_nothing_found("The documents were burnt.")

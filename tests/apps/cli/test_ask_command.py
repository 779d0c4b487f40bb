"""`esa ask`: answers on standard output, the rest on standard error; reports, JSON, --answer."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
import sample_files
from cli_fixtures import cache, esa, note, surroundings
from command import TINY, Esa, fail

from esa_cli.apps.chat.conversation import Exchange, transcript
from esa_cli.apps.cli.output.answer_output import NOT_FOUND, in_full, show_under
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.qa.answering.reply import NOT_TOLD, Passage, Reply, says_not_told

__all__ = ["cache", "esa", "note", "surroundings"]

pytestmark = pytest.mark.usefixtures("surroundings")


def test_quiet_says_nothing_but_the_answer_and_warnings(esa: Esa, note: str) -> None:
    result = esa("ask", note, "When?", *TINY, "--quiet", "--max-new-tokens", "1")
    assert result.code == 0
    warnings = {
        "  the documents may not contain the answer",
        "  the answer was cut off; --max-new-tokens allows a longer one",
    }
    assert set(result.err.splitlines()) <= warnings
    assert "cut off" in result.err
    shown = esa("ask", note, "When?", *TINY, "--quiet", "--max-new-tokens", "1", "--top", "2")
    passages = [line for line in shown.err.splitlines() if line not in warnings]
    assert 1 <= len(passages) <= 2
    assert all(line.startswith("  note.md, line ") for line in passages)


def test_what_is_left_out_is_said_and_in_the_json(esa: Esa, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("a.txt", "copy.txt"):
        (tmp_path / "docs" / name).write_text("The gate opens at nine.")
    (tmp_path / "docs" / "scan\x1b[31m.pdf").write_bytes(sample_files.pdf([None]))
    (tmp_path / "docs" / "empty.txt").touch()
    result = esa("ask", "docs", "When?", *TINY, "--json", "--quiet", "--max-new-tokens", "1")
    data = json.loads(result.out)
    assert [one["source"] for one in data["documents"]] == ["docs/a.txt"]
    assert [one["source"] for one in data["left_out"]] == [
        "docs", "docs/scan\x1b[31m.pdf", "docs/copy.txt",
    ]  # fmt: skip
    assert "has no text" in data["left_out"][1]["why"]
    said = result.err.splitlines()
    assert said[0] == "esa: docs: 3 files to read; left out: 1 empty (empty.txt)"
    assert said[1].startswith("esa: left out: the document docs/scan[31m.pdf has no text")
    assert said[2] == "esa: left out: docs/copy.txt: the same text again, asked once"
    assert len(said) == 3


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
    assert "note.md, line" in result.err, "the passages"
    assert "No space left" in result.err
    assert result.code == 6
    result = esa(*asked, "--json")
    assert result.code == 6
    assert json.loads(result.out)["evidence"]


def test_json_is_one_object_with_everything_in_it(esa: Esa, note: str) -> None:
    result = esa(
        "ask", note, "When?", *TINY, "--json", "--quiet", "--max-new-tokens", "5",
        "--position", "contiguous", "--set", "window.selected=32",
    )  # fmt: skip
    data = json.loads(result.out)
    assert set(data) == {
        "answer", "model", "preset", "selector", "position", "window", "tokens", "timing",
        "peak_memory_bytes", "documents", "evidence", "found", "left_out", "answered_from",
        "quotation", "reader", "read",
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


def test_on_a_terminal_there_are_bars(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    result = esa("ask", note, "When?", *TINY)
    assert result.code == 0
    assert "\x1b" not in result.out
    shown = terminal.getvalue()
    for words in ("loading the model", "reading", "tokens", "answering", "peak memory"):
        assert words in shown
    assert "\x1b[?25h" in shown.rpartition("answering")[2], "the cursor comes back"


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
        show_under(Reply(text, evidence, False, 1, 1, 0.1, 0.1), 3, Reporter())
        record = [Exchange("When?", text, evidence, found=False)]
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

"""`esa ask`: answers on standard output, the rest on standard error; reports, JSON, plugins."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest
import sample_files
from cli_fixtures import cache, esa, note, surroundings
from command import TINY, Esa, fail

__all__ = ["cache", "esa", "note", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")


def test_answer_goes_to_stdout_and_the_rest_to_stderr(esa: Esa, note: str) -> None:
    result = esa("ask", note, "When does it open?", *TINY)
    assert result.code == 0
    assert result.out.endswith("\n")
    assert len(result.out) > 1
    assert "tokens/s" in result.err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", result.out + result.err)


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


def test_a_report_that_finds_no_room_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esa_cli.apps.cli.options import output_paths as files
    from esa_cli.errors import ResourceError

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "page.html").write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError, match="No space"):
        files.write(tmp_path / "page.html", "after")
    assert [path.read_text() for path in tmp_path.glob("*page*")] == ["before"]
    if Path(os.devnull).is_char_device():
        files.write(Path(os.devnull), "a device is written to")


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


def test_nothing_that_is_noted_can_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from esa_cli.apps.cli.output.terminal import Reporter, print_json

    text = "a\x1b[2J\x9b31m\nesa: b\r[bold]c\x07"
    Reporter().note(text)
    Reporter().warn(text)
    Reporter(quiet=True).note("unseen")
    Reporter(quiet=True).warn("seen")
    cleaned = "a[2J31m esa: b[bold]c"
    assert capsys.readouterr().err.splitlines() == [cleaned, cleaned, "seen"]
    print_json({"name": text})
    out = capsys.readouterr().out
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", out)
    assert json.loads(out) == {"name": text}


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


def test_a_document_on_stdin(esa: Esa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"A short text.")))
    assert esa("ask", "-", "What?", *TINY).code == 0


def test_several_documents_are_read_together(esa: Esa, note: str, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("Another text. " * 10)
    options = [*TINY, "--json", "--quiet", "--max-new-tokens", "1"]
    one = json.loads(esa("ask", note, "What?", *options).out)
    both = json.loads(esa("ask", note, "two.txt", "What?", *options).out)
    assert both["tokens"]["document"] > one["tokens"]["document"] + 100
    assert [one["name"] for one in both["documents"]] == ["note.md", "two.txt"]


def test_a_plugin_file_is_run_and_used(esa: Esa, note: str, tmp_path: Path) -> None:
    esa("plugins", "new", "cli-test-mean", "--folder", str(tmp_path))
    (file,) = tmp_path.glob("*.py")
    options = [
        "--plugin",
        str(file),
        "--set",
        "selector.name=cli-test-mean",
        "--set",
        "answer.from=rows",
        "--json",
        "--quiet",
    ]
    result = esa("ask", note, "When?", *TINY, *options)
    assert result.code == 0
    assert json.loads(result.out)["selector"] == "cli-test-mean"


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


def test_a_forced_colour_does_not_reach_a_pipe(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    asked, listed = esa("ask", note, "When?", *TINY), esa("presets", "list")
    assert "\x1b" not in asked.out + asked.err + listed.out


def test_an_answer_cannot_steer_the_terminal() -> None:
    from esa_cli.apps.cli.output.terminal import clean

    assert clean("a\x1b[2J\x07b\n\tc\x9b") == "a[2Jb\n\tc"


def test_a_missing_adapter_is_said_before_the_model_is_loaded(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "esa_cli.qa.opening.KnownModel.load", lambda *_, **__: pytest.fail("loaded")
    )
    missing = ("--set", "answer.from=text", "--set", "answer.adapter=none")
    result = esa("ask", note, "When?", *TINY, *missing)
    fail(result, 4, "answer.adapter must be a folder")
    assert "answer.adapter=null" in result.err

"""The command line: answers, exit codes and messages; that it is quick, quiet, interruptible.

Most run `main` in this process; what concerns the process itself runs in another.
"""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sample_files
from command import Esa, Result

from esa_cli.__main__ import main
from esa_cli.apps.cli.cli_app import command
from esa_cli.qa import session

ROOT = Path(__file__).parents[3]
TINY = ["--preset", "tiny-random", "--device", "cpu", "--dtype", "float32"]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache folder, so that the tiny model is made once."""
    return tmp_path_factory.mktemp("esa-home")


@pytest.fixture(autouse=True)
def surroundings(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ESA_MEMORY_LIMIT", "ESA_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ESA_HOME", str(cache))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def esa(capsys: pytest.CaptureFixture[str]) -> Esa:
    def run(*arguments: str) -> Result:
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Result(code, out, err)

    return run


@pytest.fixture
def note(tmp_path: Path) -> str:
    path = tmp_path / "note.md"
    path.write_text("The gate opens at nine. " * 40, "utf-8")
    return str(path)


def walk(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command of the program, with the words that call it."""
    found = [(path, group)]
    for name, child in getattr(group, "commands", {}).items():
        found += walk(child, (*path, name))
    return found


COMMANDS = walk(command())


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
    shown = esa("ask", note, "When?", *TINY, "--quiet", "--max-new-tokens", "1", "--evidence", "2")
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
        fail(esa(*asked, path), 2, "is one of the documents")
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
    from esa_cli.apps.cli import output_paths as files
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


def test_nothing_that_is_noted_can_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from esa_cli.apps.cli.terminal import Reporter, print_json

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
        "peak_memory_bytes", "documents", "evidence", "found", "left_out",
    }  # fmt: skip
    assert data["window"] == {"initial": 4, "selected": 32, "local": 64, "chunk": 32}
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
    options = ["--plugin", str(file), "--selector", "cli-test-mean", "--json", "--quiet"]
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
    from esa_cli.apps.cli.terminal import clean

    assert clean("a\x1b[2J\x07b\n\tc\x9b") == "a[2Jb\n\tc"


def fail(result: Result, code: int, *words: str) -> None:
    """The exit code, nothing on stdout, one message and one hint, which say these words."""
    assert result.code == code, result.err
    assert result.out == ""
    lines = [line for line in result.err.splitlines() if line != "esa: starting"]
    assert lines[0].startswith("esa: ")
    assert 1 <= len(lines) <= 2
    assert all(line.startswith("     ") for line in lines[1:])
    for word in words:
        assert word in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["no document and no question"]),
        (("note.md",), ["the question is missing", "note.md"]),
        (("-",), ["the question is missing"]),
        (("Who is Ahab?",), ["the document is missing"]),
        (("note.md", "note.md"), ["the question is missing"]),
        (("note.md", ""), ["the question is empty"]),
        (("note.md", " \n"), ["the question is empty"]),
        (("note.md", "caf\udce9?"), ["the question is not UTF-8"]),
        (("-", "-", "What?"), ["only once"]),
        (("note.md", "What?", "--device", "toaster"), ["toaster"]),
        (("note.md", "What?", "--dtype", "int8"), ["int8"]),
        (("note.md", "What?", "--max-new-tokens", "0"), ["--max-new-tokens", "esa ask --help"]),
        (("note.md", "What?", "--temperature", "-1"), ["--temperature"]),
        (("note.md", "What?", "--nosuch"), ["--nosuch"]),
    ],
)
def test_usage(esa: Esa, note: str, arguments: tuple[str, ...], words: list[str]) -> None:
    fail(esa("ask", *arguments, *([] if "--device" in arguments else TINY[:2])), 2, *words)


def test_a_question_longer_than_a_path_may_be(esa: Esa, note: str) -> None:
    fast = ("--set", "window.chunk=256")
    assert esa("ask", note, "why? " * 1000, *TINY, *fast, "--quiet").code == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["doc.txt"]),
        (b"", ["empty"]),
        (b" \n\t", ["white space"]),
        (b"\x7fELF\0\0\1", ["program"]),
        (b"text\0text", ["binary"]),
        (b"caf\x8e au lait", ["UTF-8", "iconv"]),
        ("folder", ["nothing to read", "no file"]),
    ],
)
def test_documents(esa: Esa, tmp_path: Path, content: Any, words: list[str]) -> None:
    if isinstance(content, bytes):
        (tmp_path / "doc.txt").write_bytes(content)
    elif content == "folder":
        (tmp_path / "doc.txt").mkdir()
    fail(esa("ask", "doc.txt", "What?", *TINY), 3, *words)


def test_a_document_refused_by_the_system(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("esa_cli.documents.file_bytes.open", refuse, raising=False)
    fail(esa("ask", note, "What?", *TINY), 3, "may not be read")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p", "tiny-randm"], ["unknown preset", "tiny-random"]),
        (["-p", "nosuch.yaml"], ["no preset file"]),
        (["-p", "~no-such-user/p.yaml"], ["no home folder ~no-such-user"]),
        ([*TINY, "--set", "window.seleted=3"], ["window.seleted", "selected"]),
        ([*TINY, "--set", "window"], ["KEY=VALUE"]),
        ([*TINY, "--selector", "topp"], ["unknown selector 'topp'", "topk"]),
        ([*TINY, "--score", "summ"], ["unknown score 'summ'", "sum"]),
        ([*TINY, "--position", "eas"], ["unknown position 'eas'", "esa"]),
        ([*TINY, "--set", "context=1024"], ["trained on 512", "--set context=512"]),
        ([*TINY, "--plugin", "nosuch.py"], ["no plugin file"]),
        ([*TINY, "--plugin", "broken.py"], ["ZeroDivisionError"]),
    ],
)
def test_presets_and_plugins(
    esa: Esa, note: str, tmp_path: Path, options: list[str], words: list[str]
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    fail(esa("ask", note, "What?", *options), 4, *words)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("./nosuch", ["no folder ./nosuch"]),
        ("nosuch/model", ["nosuch/model"]),
        ("./empty", ["config.json"]),
        ("nosuch.gguf", ["nosuch.gguf"]),
        ("random:gpt", ["random:llama"]),
        ("a b", ["not a model reference"]),
        ("~no-such-user/m", ["no home folder ~no-such-user"]),
    ],
)
def test_models(esa: Esa, note: str, tmp_path: Path, model: str, words: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    fail(esa("ask", note, "What?", *TINY, "--model", model), 5, *words)


def test_an_unsupported_architecture_is_refused_before_loading(
    esa: Esa, note: str, cache: Path, tmp_path: Path
) -> None:
    from esa_cli.models import resolve

    config = json.loads((resolve("random:llama") / "config.json").read_text())
    config |= {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(config))
    tokenizer = (resolve("random:llama") / "tokenizer.json").read_bytes()
    (tmp_path / "other/tokenizer.json").write_bytes(tokenizer)
    result = esa("ask", note, "What?", *TINY, "--model", "./other")
    fail(result, 5, "gpt_neox", "llama")


def test_a_document_that_does_not_fit(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "64MiB")
    fail(esa("ask", note, "What?", *TINY), 6, "64.0 MiB", "a smaller model")


def test_memory_that_runs_out(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 10 bytes")

    monkeypatch.setattr(session.Session, "resume", fill)
    result = esa("ask", note, "What?", *TINY, "--quiet")
    fail(result, 6, "the memory ran out", "esa plan")


def test_a_bug_is_called_one(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(session.Session, "resume", trip)
    fail(esa("ask", note, "What?", *TINY, "-q"), 1, "ZeroDivisionError", "ESA_DEBUG=1")
    monkeypatch.setenv("ESA_DEBUG", "1")
    assert main(["ask", note, "What?", *TINY, "-q"]) == 1


def test_a_message_is_one_line_whatever_the_file_is_called(esa: Esa) -> None:
    fail(esa("ask", "no\nsuch\x1b[2J.txt", "What?", *TINY), 3, "no such")


def test_debug_shows_the_traceback(
    note: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESA_DEBUG", "1")
    assert main(["ask", note, "", *TINY]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_plan_tells_what_it_takes(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = esa("plan", note, *TINY)
    assert result.code == 0
    assert "960" in result.out
    assert "yes" in result.out
    data = json.loads(esa("plan", note, *TINY, "--json").out)
    parts = data["memory_bytes"]
    assert data["tokens"] == 960
    kept = parts["weights"] + parts["keys_values"] + parts["reduced_keys"] + parts["working"]
    assert parts["needed"] == kept
    assert data["fits"] is True
    monkeypatch.setenv("ESA_MEMORY_LIMIT", "1MiB")
    refused = esa("plan", note, *TINY)
    assert refused.code == 0
    assert "to make it fit" in refused.out


def test_presets_commands(esa: Esa, tmp_path: Path) -> None:
    assert "tiny-random" in esa("presets", "list").out
    shown = esa("presets", "show", "tiny-random")
    (tmp_path / "mine.yaml").write_text(shown.out)
    assert esa("presets", "check", "mine.yaml").code == 0
    assert "rank: 3" in esa("presets", "show", "tiny-random", "--set", "compressor.rank=3").out
    fail(esa("presets", "check", "tiny-random", "--set", "selector.name=best"), 4, "best")


def test_a_broken_preset_of_ones_own_does_not_hide_the_others(esa: Esa, tmp_path: Path) -> None:
    folder = tmp_path / "config/esa/presets"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("[")
    out = esa("presets", "list").out
    assert "broken" in out
    assert "tiny-random" in out


def test_plugins_commands(esa: Esa, tmp_path: Path) -> None:
    listed = esa("plugins", "list").out
    assert re.search(r"compressor +closed-form +esa_cli\.attention\.compression +rank=48", listed)
    written = esa("plugins", "new", "cli-test-new", "--folder", str(tmp_path))
    file = written.out.splitlines()[0]
    assert esa("plugins", "check", file).code == 0
    (tmp_path / "bad.py").write_text(
        "from dataclasses import dataclass\nimport torch\n"
        "from esa_cli.methods.registry import register\n\n"
        '@register("selector", "cli-test-bad")\n@dataclass(frozen=True)\nclass Bad:\n'
        "    def select(self, step, budget):\n        return torch.zeros(3)\n"
    )
    bad = esa("plugins", "check", str(tmp_path / "bad.py"))
    assert bad.code == 4
    assert "FAILS" in bad.out
    assert "checks fail" in bad.err


def test_models_commands(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = esa("models", "pull", "random:llama", "--quiet").out.strip()
    assert (Path(folder) / "config.json").is_file()
    assert esa("models", "path", "random:llama").out.strip() == folder
    assert "random:llama" in esa("models", "list").out
    (listed,) = json.loads(esa("models", "list", "--json").out)["models"]
    assert listed["name"] == listed["reference"] == "random:llama"
    assert listed["folder"] == folder
    assert listed["bytes"] > 1000
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    fail(esa("models", "rm", "random:llama"), 2, "--yes")
    fail(esa("models", "path"), 5, "not on this machine")


def test_a_model_has_a_short_name(
    esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from esa_cli.models import DEFAULT_MODEL
    from esa_cli.models.model_reference import parse_reference
    from esa_cli.models.prepared_models import build

    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    folder = build(parse_reference(DEFAULT_MODEL), lambda _: {})
    out = esa("models", "list").out
    assert all(len(line) <= 80 for line in out.splitlines())
    name = out.splitlines()[1].split()[0]
    assert name.startswith("smollm2-135m-instruct")
    assert esa("models", "path", name).out.strip() == str(folder)
    (listed,) = json.loads(esa("models", "list", "--json").out)["models"]
    assert (listed["name"], listed["reference"]) == (name, DEFAULT_MODEL)
    assert esa("models", "rm", name, "--yes").code == 0
    assert json.loads(esa("models", "list", "--json").out) == {"models": []}


def test_removing_a_model(esa: Esa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "home"))
    assert "no models yet" in esa("models", "list").out
    folder = Path(esa("models", "pull", "random:llama", "--quiet").out.strip())
    assert esa("models", "rm", "random:llama", "--yes").code == 0
    assert not folder.exists()
    fail(esa("models", "rm", "random:llama", "--yes"), 5, "random:llama")


def test_doctor(esa: Esa) -> None:
    assert "transformers" in esa("doctor").out
    data = json.loads(esa("doctor", "--json").out)
    assert "reference" in data["kernels"]
    assert any("esa models pull" in hint for hint in data["hints"])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("ESA_MEMORY_LIMIT", "lots", "ESA_MEMORY_LIMIT must be a size, got 'lots'"),
        ("ESA_HOME", "~no-such-user/x", "no home folder ~no-such-user"),
    ],
)
def test_doctor_reports_nonsense_in_the_environment(
    esa: Esa, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    result = esa("doctor")
    assert result.code == 0
    assert sum(words in line for line in result.out.splitlines()) == 1
    data = json.loads(esa("doctor", "--json").out)
    assert any(words in hint for hint in data["hints"])
    assert data["memory"]["available"] > 1 << 20
    assert data["memory"]["limit"] is None
    assert data["free_disk"] > 1 << 20


def test_a_cache_folder_of_nobody_is_refused(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESA_HOME", "~no-such-user/x")
    fail(esa("ask", note, "What?", *TINY), 2, "ESA_HOME ~no-such-user/x")


@pytest.mark.parametrize("columns", [60, 80, 100, 400])
def test_tables_fit_the_terminal(esa: Esa, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    shown = {}
    for group in ("presets", "plugins"):
        monkeypatch.setattr("sys.stdout", Terminal())
        esa(group, "list")
        text = re.sub(r"\x1b\[[0-9;]*m", "", sys.stdout.getvalue())  # type: ignore[attr-defined]
        shown[group] = text.splitlines()
        assert max(map(len, shown[group])) <= columns
    words = "tokens with the best scores, with their neighbours"
    (line,) = (line for line in shown["plugins"] if words in line)
    assert line.startswith("    ") == (columns < 110), "where it has no room it goes below"
    assert any(line.startswith("smollm2-135m ") for line in shown["presets"])


def test_version_and_help_without_a_command(esa: Esa) -> None:
    assert re.fullmatch(r"esa \d+\.\d+\.\d+\n", esa("--version").out)
    assert "Commands:" in esa().out
    fail(esa("aks"), 2, "aks")
    fail(esa("presets"), 2, "esa presets --help")


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_the_reference_mentions_everything(path: tuple[str, ...]) -> None:
    text = (ROOT / "docs/cli.md").read_text("utf-8")
    found = dict(COMMANDS)[path]
    assert " ".join(("esa", *path)) in text
    for parameter in found.params:
        for option in (o for o in parameter.opts if o.startswith("--")):
            assert f"`{option}" in text, option


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "esa_cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        # Whoever runs the tests in the background of a shell passes on that SIGINT is ignored.
        preexec_fn=None if os.name == "nt" else listen,
    )


def listen() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_help_imports_nothing_heavy() -> None:
    calls = [[*path, "--help"] for path, _ in COMMANDS]
    code = (
        "import functools, sys\nfrom esa_cli.__main__ import main\n"
        "from esa_cli.apps.cli import cli_app\n"
        "cli_app.command = functools.cache(cli_app.command)\n"
        f"for call in {calls!r}:\n    assert main(call) == 0\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'rich'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("esa li", {"library"}),
        ("esa cha", {"chat"}),
        ("esa library pr", {"prune"}),
        ("esa ask --no-such", set()),
        ("esa ask --temp", {"--temperature"}),
    ],
)
def test_the_shell_completes_commands_and_options(words: str, wanted: set[str]) -> None:
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "_ESA_COMPLETE": "complete_bash",
        "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "esa_cli"], capture_output=True, text=True, env=environment,
        check=False,
    )  # fmt: skip
    assert set(done.stdout.split()) == wanted, done.stderr
    assert "Traceback" not in done.stderr


def interrupt(process: subprocess.Popen[str]) -> tuple[float, str]:
    """Seconds until it ended, and what it last said."""
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    return time.monotonic() - started, err


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to other processes")
@pytest.mark.process
def test_ctrl_c_while_reading(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("All work and no play. " * 2_000)
    process = start("ask", "long.txt", "What?", *TINY, "--set", "window.chunk=1")
    assert process.stderr is not None
    while "reading" not in (line := process.stderr.readline()):
        assert line, "it ended by itself"
    took, err = interrupt(process)
    assert process.returncode == 130
    assert err == "esa: interrupted\n"
    assert took < 10


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to other processes")
@pytest.mark.process
def test_ctrl_c_while_answering(note: str) -> None:
    process = start("ask", note, "What?", *TINY, "--quiet", "--max-new-tokens", "1000000")
    assert process.stdout is not None
    assert process.stdout.read(1)
    took, err = interrupt(process)
    assert process.returncode == 130
    assert err == "esa: interrupted\n"
    assert took < 10


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to other processes")
def test_ctrl_c_during_imports(note: str) -> None:
    process = start("ask", note, "What?", *TINY)
    assert process.stderr is not None
    assert "starting" in process.stderr.readline()
    _, err = interrupt(process)
    assert process.returncode == 130
    assert err == "esa: interrupted\n"

"""What is wrong with documents, models, memory and words: hints and exit codes."""

from __future__ import annotations

import importlib
import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import cache, esa, note, surroundings
from command import TINY, Esa, fail

from esa_cli.__main__ import _Interrupts, main
from esa_cli.errors import PresetError
from esa_cli.qa.answering import session

__all__ = ["cache", "esa", "note", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["a document and a question must be given"]),
        (("--library",), ["a question must be given, got none"]),
        (("note.md",), ["the question is missing", "note.md"]),
        (("-",), ["name a document and a question"]),
        (("Who is Ahab?",), ["name a document and a question"]),
        (("note.md", "note.md"), ["the question is missing"]),
        (("note.md", ""), ["the question must not be empty"]),
        (("note.md", " \n"), ["the question must not be empty"]),
        (("note.md", "caf\udce9?"), ["the question must be UTF-8"]),
        (("-", "-", "What?"), ["only once"]),
        (("-", "-"), ["got both"]),
        (("note.md", "-", "--report", "a.html"), ["--report"]),
        (("note.md", "What?", "--device", "toaster"), ["toaster"]),
        (("note.md", "What?", "--dtype", "int8"), ["int8"]),
        (("note.md", "What?", "--max-new-tokens", "0"), ["--max-new-tokens", "esa ask --help"]),
        (("note.md", "What?", "--top", "99"), ["--top", "50"]),
        (("note.md", "What?", "--top", "few"), ["--top", "integer"]),
        (("note.md", "What?", "--read", "soon"), ["--read", "soon"]),
        *(
            (
                ("note.md", "What?", "--model", "nowhere/none", "--temperature", heat),
                ["--temperature"],
            )
            for heat in ("-1", "1e-320", "5e-7", "inf", "1e999", "nan")
        ),
        (("note.md", "What?", "--nosuch"), ["--nosuch"]),
    ],
)
def test_usage(esa: Esa, note: str, arguments: tuple[str, ...], words: list[str]) -> None:
    fail(esa("ask", *arguments, *([] if "--device" in arguments else TINY[:2])), 2, *words)


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "note.md", "caf\udce9?", "--model", "nowhere/none"),
        ("selftest", "needle", "--len", "9" * 30),
        ("selftest", "needle", "--len", "101m"),
    ],
)
def test_usage_before_anything_is_loaded(esa: Esa, note: str, arguments: tuple[str, ...]) -> None:
    fail(esa(*arguments), 2, "must be")


def test_names_that_are_empty(esa: Esa) -> None:
    """As those of a shell's variable that is not set."""
    for command in ("pull", "rm"):
        fail(esa("models", command, ""), 5, "not empty")
    fail(esa("ingest", "--words", ""), 3, "FOLDER must be a folder, got no name")


def test_a_question_longer_than_a_path_may_be(esa: Esa, note: str) -> None:
    fast = ("--set", "window.chunk=256")
    assert esa("ask", note, "why? " * 1000, *TINY, *fast, "--quiet").code == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["doc.txt"]),
        (b"", ["empty"]),
        (b" \n\t", ["white space"]),
        (b"\x7fELF\0\0\1", ["binary"]),
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

    monkeypatch.setattr("esa_cli.documents.document.open", refuse, raising=False)
    fail(esa("ask", note, "What?", *TINY), 3, "Permission denied")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-p", "tiny-randm"], ["unknown preset", "tiny-random"]),
        (["-p", "nosuch.yaml"], ["no preset file"]),
        (["-p", "~no-such-user/p.yaml"], ["no home folder ~no-such-user"]),
        ([*TINY, "--set", "window.seleted=3"], ["window.seleted", "selected"]),
        ([*TINY, "--set", "window"], ["KEY=VALUE"]),
        ([*TINY, "--set", "selector.name=topp"], ["unknown selector 'topp'", "topk"]),
        ([*TINY, "--set", "score.name=summ"], ["unknown score 'summ'", "sum"]),
        ([*TINY, "--set", "position.name=eas"], ["unknown position 'eas'", "esa"]),
        ([*TINY, "--set", "context=1024"], ["at most the 512 tokens", "--set context=512"]),
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
    config |= {"model_type": "bloom", "architectures": ["BloomForCausalLM"]}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.json").write_text(json.dumps(config))
    tokenizer = (resolve("random:llama") / "tokenizer.json").read_bytes()
    (tmp_path / "other/tokenizer.json").write_bytes(tokenizer)
    rows = ("--set", "answer.from=rows")
    result = esa("ask", note, "What?", *TINY, "--model", "./other", *rows)
    fail(result, 5, "bloom", "docs/models.md")


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
    fail(esa("ask", note, "What?", *TINY, "-q"), 70, "ZeroDivisionError", "ESA_DEBUG=1")
    monkeypatch.setenv("ESA_DEBUG", "1")
    assert main(["ask", note, "What?", *TINY, "-q"]) == 70


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (FileNotFoundError(2, "No usable temporary directory found in ['/tmp']"), 6, ["TMPDIR"]),
        (PermissionError(13, "Permission denied", "sub/p"), 3, ["sub/p may not be used"]),
        (ValueError("I/O operation on closed file"), 70, ["a bug"]),
    ],
)
def test_what_the_system_refuses(
    esa: Esa, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, words: list[str]
) -> None:
    def trip(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("esa_cli.qa.presets.preset.dump", trip)
    fail(esa("presets", "show"), code, *words)


@pytest.mark.parametrize(
    ("error", "code"),
    [(ModuleNotFoundError("Could not import module"), 130), (PresetError("wrong"), 4)],
)
def test_an_interruption_that_a_library_answers_with_an_error(
    esa: Esa, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def trip(*_: Any, **__: Any) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None

    monkeypatch.setattr("esa_cli.qa.presets.preset.dump", trip)
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        result = esa("presets", "show")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.code == code
    assert "a bug" not in result.err
    assert ("interrupted" in result.err) == (code == 130)


def test_an_interruption_of_an_import_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is imported would catch the KeyboardInterrupt, or C++ code abort the process."""
    source = (
        "import signal\ntry:\n    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    raise AttributeError('half imported')\n"
    )
    (tmp_path / "imported_slowly.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("os._exit", leave)
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(SystemExit) as end, _Interrupts(leave=True):
            importlib.import_module("imported_slowly")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt), _Interrupts(leave=True):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert end.value.code == 130
    assert "interrupted" in capsys.readouterr().err


def test_output_that_is_closed_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = io.StringIO()
    closed.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        assert main(["presets", "show", "nosuch"]) == 4
    assert "unknown preset" in capsys.readouterr().err


def test_a_message_is_one_line_whatever_the_file_is_called(esa: Esa) -> None:
    fail(esa("ask", "no\nsuch\x1b[2J.txt", "What?", *TINY), 3, "no such")


def test_debug_shows_the_traceback(
    note: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESA_DEBUG", "1")
    assert main(["ask", note, "", *TINY]) == 2
    assert "Traceback" in capsys.readouterr().err

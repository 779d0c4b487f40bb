"""What is wrong with documents, models, memory and words: hints and exit codes."""

from __future__ import annotations

import importlib
import json
import signal
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
    "arguments",
    [
        (),
        ("--library",),
        ("note.md",),
        ("-",),
        ("Who is Ahab?",),
        ("note.md", "note.md"),
        ("note.md", " \n"),
        ("note.md", "caf\udce9?"),
        ("-", "-", "What?"),
        ("-", "-"),
        ("note.md", "-", "--report", "a.html"),
        ("note.md", "What?", "--device", "toaster"),
        ("note.md", "What?", "--set", "dtype=int8"),
        ("note.md", "What?", "--top", "99"),
        ("note.md", "What?", "--read", "never", "--keep"),
        ("note.md", "What?", "--read", "never", "--set", "answer.from=rows"),
        *(
            ("note.md", "What?", "--model", "nowhere/none", "--temperature", heat)
            for heat in ("-1", "1e-320", "inf", "1e999", "nan")
        ),
    ],
)
def test_usage(esa: Esa, note: str, arguments: tuple[str, ...]) -> None:
    fail(esa("ask", *arguments, *([] if "--device" in arguments else TINY[:2])), 2)


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
    fail(esa("ingest", "--words", ""), 3)


@pytest.mark.parametrize(
    "content", [None, b"", b" \n\t", b"\x7fELF\0\0\1", b"text\0text", b"caf\x8e au lait", "folder"]
)
def test_documents(esa: Esa, tmp_path: Path, content: bytes | str | None) -> None:
    if isinstance(content, bytes):
        (tmp_path / "doc.txt").write_bytes(content)
    elif content == "folder":
        (tmp_path / "doc.txt").mkdir()
    fail(esa("ask", "doc.txt", "What?", *TINY), 3, "doc.txt")


@pytest.mark.parametrize(
    ("options", "code", "near"),
    [
        (["-p", "tiny-randm"], 4, "tiny-random"),
        (["-p", "nosuch.yaml"], 4, "nosuch.yaml"),
        ([*TINY, "--set", "window.seleted=3"], 4, "selected"),
        ([*TINY, "--set", "window"], 4, "KEY=VALUE"),
        ([*TINY, "--set", "selector.name=topp"], 4, "topk"),
        ([*TINY, "--set", "context=1024"], 4, "512"),
        ([*TINY, "--set", "plugin=nosuch.py"], 4, "nosuch.py"),
        ([*TINY, "--plugin", "broken.py"], 4, "ZeroDivisionError"),
        ([*TINY, "--model", "./nosuch"], 5, "./nosuch"),
        ([*TINY, "--model", "./empty"], 5, "config.json"),
        ([*TINY, "--model", "random:gpt"], 5, "random:llama"),
        ([*TINY, "--model", "a b"], 5, "a b"),
    ],
)
def test_presets_plugins_and_models(
    esa: Esa, note: str, tmp_path: Path, options: list[str], code: int, near: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "empty").mkdir()
    fail(esa("ask", note, "What?", *options), code, near)


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


def test_a_bug_is_called_one(esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(session.Session, "resume", trip)
    fail(esa("ask", note, "What?", *TINY, "-q"), 70, "ZeroDivisionError", "ESA_DEBUG=1")
    monkeypatch.setenv("ESA_DEBUG", "1")
    assert main(["ask", note, "What?", *TINY, "-q"]) == 70


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


def test_a_message_is_one_line_whatever_the_file_is_called(esa: Esa) -> None:
    fail(esa("ask", "no\nsuch\x1b[2J.txt", "What?", *TINY), 3, "no such")

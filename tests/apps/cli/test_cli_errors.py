"""What is wrong with documents, models, memory and words: hints and exit codes."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command import TINY, Esa, fail

from esa_cli.__main__ import main
from esa_cli.errors import PresetError
from esa_cli.qa.answering import session


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--library",),
        ("note.md",),
        ("-",),
        ("ahab.pdf",),
        ("note.md", "note.md"),
        ("note.md", " \n"),
        ("note.md", "caf\udce9?"),
        ("-", "-", "What?"),
        ("-", "-"),
        ("note.md", "-", "--report", "a.html"),
        ("note.md", "What?", "--device", "toaster"),
        ("note.md", "What?", "--set", "dtype=int7"),
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
    "content", [None, b"", b" \n\t", b"\x7fELF\0\0\1", b"text\0text", b"caf\x8e au lait", "folder"]
)
def test_documents(esa: Esa, tmp_path: Path, content: bytes | str | None) -> None:
    if isinstance(content, bytes):
        (tmp_path / "doc.txt").write_bytes(content)
    elif content == "folder":
        (tmp_path / "doc.txt").mkdir()
    fail(esa("ask", "doc.txt", "What?", *TINY), 3, "doc.txt")


def test_with_json_the_last_line_of_an_error_is_an_object(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, code in ((["ask", str(tmp_path / "none.txt"), "What?"], 3), (["plan", "--none"], 2)):
        assert main([*words, "--json"]) == code
        out, err = capsys.readouterr()
        *lines, last = err.splitlines()
        facts = json.loads(last)
        assert not out
        assert facts["exit_code"] == code
        assert facts["error"] in "".join(lines)


@pytest.mark.parametrize(
    ("options", "code", "near"),
    [
        (["-p", "tiny-randm"], 4, "tiny-random"),
        (["-p", "nosuch.yaml"], 4, "nosuch.yaml"),
        ([*TINY, "--set", "window.seleted=3"], 4, "selected"),
        ([*TINY, "--set", "window"], 4, "KEY=VALUE"),
        ([*TINY, "--set", "selector.name=topp"], 4, "topk"),
        ([*TINY, "--set", "context=1024", "--set", "window.selected=600"], 4, "512"),
        ([*TINY, "--set", "plugin=nosuch.py"], 4, "nosuch.py"),
        ([*TINY, "--plugin", "broken.py"], 4, "ZeroDivisionError"),
        ([*TINY, "--model", "./nosuch"], 5, "./nosuch"),
        ([*TINY, "--model", "./empty"], 5, "config.json"),
        ([*TINY, "--model", "random:gpt"], 5, "random:gpt"),
        ([*TINY, "--model", "a b"], 5, "a b"),
    ],
)
def test_presets_plugins_and_models(
    esa: Esa, note: str, tmp_path: Path, options: list[str], code: int, near: str
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "empty").mkdir()
    fail(esa("ask", note, "What?", *options), code, near)


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

    monkeypatch.setattr("esa_cli.qa.presets.preset.format_as_yaml", trip)
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        result = esa("presets", "show")
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.code == code
    assert "a bug" not in result.err
    assert ("interrupted" in result.err) == (code == 130)

"""What is wrong with documents, models, memory and words: hints and exit codes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import TINY, Esa, Result, fail
from hypothesis import example, given
from hypothesis import strategies as st
from properties import WORDS

from esa_cli.__main__ import main, make_click_command
from esa_cli.errors import NOT_FOUND, PARTIAL, USAGE, DocumentError, PresetError
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
    assert main(["ask", "--", str(tmp_path / "none.txt"), "--json"]) == 3
    assert "{" not in capsys.readouterr().err, "after -- it is a word of the question"


@pytest.mark.parametrize(
    ("options", "code", "near"),
    [
        (["-p", "tiny-randm"], 4, "tiny-random"),
        (["-p", "nosuch.yaml"], 4, "nosuch.yaml"),
        ([*TINY, "--set", "window.seleted=3"], 4, "selected"),
        ([*TINY, "--set", "window"], 4, "KEY=VALUE"),
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


CODES = {0, USAGE, 3, 4, 5, 6, PARTIAL}
FAR = {"models pull", "selftest", "bench", "demo", "mcp"}
"""They would fetch a model, be at work for long, or wait for requests."""
VALUES = st.sampled_from(
    ["x", "1", "3", "nan", "inf", "1e400", "1e-320", "9" * 30, "no-such.txt", "note.md", "auto",
     "tiny-random", "smollm2", "topk", "a=b", "window.chunk=0", "answer.from=text", "=", "[",
     "\udce9", "-", "1GB", "-1KB", "3/2", "1/3", "http://127.0.0.1:1/", "*.md", "[a", "~"]
) | WORDS  # fmt: skip


def leaves(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """All commands, by their words."""
    if not hasattr(group, "commands"):
        yield above, group
        return
    for name, below in group.commands.items():
        yield from leaves(below, f"{above} {name}".strip())


@pytest.fixture(scope="module")
def commands() -> dict[str, list[Any]]:
    found = {name: one.params for name, one in leaves(make_click_command()) if name not in FAR}
    assert len(found) > 20
    return found


def takes_preset(params: list[Any]) -> bool:
    return any("--preset" in one.opts for one in params)


def draw_words(data: st.DataObject, params: list[Any], refused: bool) -> list[str]:
    """Options with values, or without, and arguments; a document that is not there where the
    command must not be carried out."""
    words = ["no-such.txt"] if refused else TINY[:2] if takes_preset(params) else []
    options = [one for one in params if one.param_type_name == "option"]
    for option in data.draw(st.lists(st.sampled_from(options), max_size=3)) if options else ():
        words.append(data.draw(st.sampled_from(option.opts)))
        if not option.is_flag or data.draw(st.integers(0, 9)) == 0:
            words.append(data.draw(VALUES))
    if any(one.param_type_name == "argument" for one in params):
        words += data.draw(st.lists(VALUES, max_size=2))
    if data.draw(st.integers(0, 19)) == 0:
        words.append("--nosuch")
    return [word.replace("\0", " ") for word in words if word not in ("--help", "-h")]


CARRIED_OUT = {
    "methods", "plan", "presets list", "presets show", "library list",
    "library show", "library verify", "library rm", "library prune", "models list",
}  # fmt: skip
"""They change nothing but the test's own folders, and take little time."""


@given(data=st.data())
def test_options_end_in_a_documented_way(
    esa: Esa, note: str, commands: dict[str, list[Any]], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(commands)))
    refused = name not in CARRIED_OUT
    words = draw_words(data, commands[name], refused)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        check(name, words, esa(*name.split(), *words))


def check(name: str, words: list[str], result: Result) -> None:
    allowed = CODES | ({NOT_FOUND} if name in ("find", "collect") else set())
    assert result.code in allowed, (name, words, result.err)
    assert "a bug:" not in result.err
    if result.code not in (0, PARTIAL, NOT_FOUND):
        assert "esa: " in result.err


@given(words=st.lists(VALUES, max_size=4))
@example(words=["ask"])
@example(words=["library"])
@example(words=["--install-completion=x"])
def test_words_that_are_no_command(esa: Esa, words: list[str]) -> None:
    result = esa(*[word.replace("\0", " ") for word in words])
    # Two words may be a document, which is not there, and a question.
    assert result.code in (0, USAGE, DocumentError.exit_code), (words, result.err)

"""Random options of every command: a documented exit code and a message, whatever is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from command import TINY, Esa, Result
from hypothesis import example, given
from hypothesis import strategies as st
from properties import WORDS

from esa_cli.__main__ import make_click_command
from esa_cli.errors import NOT_FOUND, PARTIAL, USAGE, DocumentError

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

"""Every regular expression of the package takes time linear in its text, whatever the text.

Python's engine tries each start, and each way to divide a run between neighbouring repeats: a file
of 100 kB could stop a server for a minute.
"""

from __future__ import annotations

import ast
import importlib
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from re import (
    _compiler,  # type: ignore[attr-defined]
    _parser,  # type: ignore[attr-defined]
)
from re import _constants as op  # type: ignore[attr-defined]
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import pytest

import esa_cli

ROOT = Path(esa_cli.__file__).parent
CALLS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
SIZE = 6_000
MOST_S = 0.2  # at 4 * SIZE; one that is quadratic takes a second or more, a linear one milliseconds
LIMIT_S = 1.0
OTHER = "\x01"
REPEATS = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)


class Use(NamedTuple):
    """A pattern of a file, and how the package calls it."""

    place: str
    pattern: str | bytes
    flags: int
    calls: tuple[str, ...]


def _module(file: Path) -> ModuleType:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def _uses() -> Iterator[Use]:
    everywhere = {file: ast.parse(file.read_text()) for file in sorted(ROOT.rglob("*.py"))}
    trees = {file: tree for file, tree in everywhere.items() if "import re\n" in file.read_text()}
    used = [
        (file, node.value.id, node.attr)
        for file, tree in everywhere.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    for file, tree in trees.items():
        module = _module(file)
        place = str(file.relative_to(ROOT))
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                here = {call for at, n, call in used if n == name and (at == file or n[0] != "_")}
                calls = tuple(sorted(here.intersection(CALLS)))
                yield Use(f"{place}: {name}", value.pattern, value.flags, calls or ("search",))
        for node in ast.walk(tree):
            called = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.")
            if called and isinstance(node, ast.Call) and node.args:
                call = ast.unparse(node.func).removeprefix("re.")
                try:
                    pattern = eval(ast.unparse(node.args[0]), dict(vars(module)))
                    flags = [*node.args[1:], *(k.value for k in node.keywords)]
                    known = [
                        eval(ast.unparse(f), {"re": re}) for f in flags if "re." in ast.unparse(f)
                    ]
                except NameError:  # made of the arguments of its function
                    continue
                if call in CALLS and isinstance(pattern, str | bytes):
                    yield Use(f"{place}:{node.lineno}", pattern, sum(map(int, known)), (call,))


def _samples(node: tuple[Any, Any]) -> list[str]:
    """Short texts that a node of a pattern matches, some of each kind."""
    what, value = node
    if what is op.LITERAL:
        return [chr(value)]
    if what is op.ANY:
        return ["a", " "]
    if what in (op.IN, op.NOT_LITERAL):
        matches = _compiler.compile(_parser.SubPattern(_parser.State(), [node])).fullmatch
        known = map(_character, value) if what is op.IN else ()
        return list(dict.fromkeys(filter(matches, [*known, *'a1_ .<"\n'])))[:8]
    if what is op.BRANCH:
        return [text for part in value[1] for text in _of_sequence(part)[:2]]
    if what in (op.SUBPATTERN, op.ATOMIC_GROUP):
        return _of_sequence(value[-1] if what is op.SUBPATTERN else value)
    if what in REPEATS:
        least, _, part = value
        return [text * max(1, least) for text in _of_sequence(part)] if least else [""]
    return [""]


def _character(item: tuple[Any, Any]) -> str:
    """One that an item of a class names."""
    what, value = item
    return chr(value if what is op.LITERAL else value[0] if what is op.RANGE else ord("a"))


def _of_sequence(nodes: Sequence[tuple[Any, Any]]) -> list[str]:
    texts = [""]
    for node in nodes:
        texts = [text + more for text in texts[:3] for more in _samples(node)[:4]][:8]
    return texts


def _pumps(nodes: Sequence[tuple[Any, Any]], before: str = "") -> Iterator[tuple[str, str]]:
    """What may stand before each repeat of a pattern, and what it repeats."""
    more = before  # with what may be left out
    for node in nodes:
        what, value = node
        if what in REPEATS:
            if value[1] > 1000:
                texts = [text for text in _of_sequence(value[2]) if text]
                yield from ((start, text) for start in (before, more) for text in texts)
            yield from _pumps(value[2], before)
        elif what is op.SUBPATTERN:
            yield from _pumps(value[-1], before)
        elif what is op.ATOMIC_GROUP:
            yield from _pumps(value, before)
        elif what is op.BRANCH:
            for part in value[1]:
                yield from _pumps(part, before)
        elif what in (op.ASSERT, op.ASSERT_NOT):
            yield from _pumps(value[1], before)
        before += _samples(node)[0]
        more += _of_sequence(value[2])[0] if what in REPEATS else _samples(node)[0]


def _attacks(pattern: str | bytes, flags: int) -> Iterator[tuple[str, str, str]]:
    """Beginning, part to repeat, and end of texts that make backtracking slow."""
    nodes = list(_parser.parse(pattern, flags))
    whole = _of_sequence(nodes)
    singles = dict.fromkeys(c for text in whole for c in text)
    pumps = list(dict.fromkeys(_pumps(nodes)))
    for before, text in pumps:
        for end in (OTHER, "\n" + OTHER, ""):
            yield before, text, end
        yield "", before + text, OTHER
        yield "", text + " ", OTHER
    for text in [*singles, *whole, *(text[:-1] for text in whole), " ", "\n"]:
        if text:
            yield "", text, OTHER


class TooSlow(Exception):
    pass


def _late(number: int, frame: FrameType | None) -> None:
    raise TooSlow


def _seconds(use: Use, call: str, text: str) -> float:
    given = text.encode("latin-1", "replace") if isinstance(use.pattern, bytes) else text
    run = getattr(re.compile(use.pattern, use.flags), call)
    nothing = b"" if isinstance(use.pattern, bytes) else ""
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    start = time.process_time()
    try:
        found = run(nothing, given) if call in ("sub", "subn") else run(given)
        for _ in found if call == "finditer" else ():
            pass
    except TooSlow:
        return float("inf")
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.process_time() - start


def slow_attack(use: Use) -> str | None:
    """A text that takes the pattern time quadratic in its length, in words."""
    for before, text, end in dict.fromkeys(_attacks(use.pattern, use.flags)):
        for call in use.calls:
            count = SIZE // len(text)
            long = _seconds(use, call, before + text * (4 * count) + end)
            if long <= MOST_S:
                continue
            short = _seconds(use, call, before + text * count + end)
            if long > 7 * short or long == float("inf"):
                return f"{use.place}.{call}: {before!r} + {text!r} * n + {end!r}: {long:.1f} s"
    return None


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    if not hasattr(signal, "setitimer"):
        pytest.skip("no timer of the processor's time")
    before = signal.signal(signal.SIGVTALRM, _late)
    yield
    signal.signal(signal.SIGVTALRM, before)


def test_regular_expressions_are_linear() -> None:
    uses = {use[1:]: use for use in _uses()}.values()  # some are imported elsewhere
    assert len(uses) > 100, "they are found"
    assert [slow for use in uses if (slow := slow_attack(use))] == []


@pytest.mark.parametrize(
    ("pattern", "call"),
    [
        (r" {0,3}#{1,6}[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*", "fullmatch"),
        (r"\s*<\?xml[^>]*\?>", "sub"),
        (r"(\w*)\ufffe(\w*)", "sub"),
        (r"</f>\s*(?:<v\s*/>)?\s*</c>", "search"),
        (r"(?:a|aa)+$", "match"),
    ],
)
def test_quadratic_ones_are_noticed(pattern: str, call: str) -> None:
    assert slow_attack(Use("x", pattern, re.compile(pattern).flags, (call,)))

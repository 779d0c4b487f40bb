"""What the documents name exists: links, pages, commands and their options, modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from esa_cli.__main__ import SHORT, make_click_command

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks/README.md"]
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
LINKED = [*PAGES, ROOT / "benchmarks/NOTES.md", ROOT / "benchmarks/training/README.md"]
OTHER_OPTIONS = {"--help", "--out"}
"""Of every command, and of benchmarks."""


def names(page: Path, pattern: str) -> set[str]:
    return set(re.findall(pattern, page.read_text("utf-8")))


def lines_with(word: str, page: Path) -> Iterator[str]:
    """Command lines of `word` in a page: indented blocks, and code in a sentence."""
    text = page.read_text("utf-8")
    for line in re.findall(rf"^ {{4}}{word} .*$", text, re.MULTILINE):
        yield re.split(r"\s#|\|", line.strip())[0]
    for line in re.findall(rf"`({word} [^`]+)`", text):
        yield line


def verbs(program: Any) -> Iterator[Any]:
    yield program
    for verb in getattr(program, "commands", {}).values():
        yield from verbs(verb)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", page.read_text("utf-8"))
    for target, section in links:
        other = page.parent / target if target else page
        assert other.exists(), target
        if section:
            heads = re.findall(r"^#+ (.*)$", other.read_text("utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert section in anchors, f"{target}#{section}"


def test_commands_and_options_that_pages_name_exist() -> None:
    """`esa VERB [VERB] ... --option`, with a backslash before `|` as tables have it."""
    program, checked = make_click_command(), 0
    every = {
        name
        for verb in verbs(program)
        for one in verb.params
        for name in one.opts + one.secondary_opts
    }
    for page in PRESENT:
        for line in lines_with("esa", page):
            words = line.replace("\\|", "|").split()[1:]
            verb: Any = program
            while words and words[0] in getattr(verb, "commands", {}):
                verb = verb.commands[words.pop(0)]
            if verb is program and re.fullmatch(r"[a-z]+", words[0] if words else ""):
                pytest.fail(f"{page.name}: {line}")
            known = {name for one in verb.params for name in one.opts + one.secondary_opts}
            known |= set(SHORT) if "--set" in known else set()
            options = {
                word.split("=")[0].strip("[],.)") for word in words if re.match("--[a-z]", word)
            }
            assert options <= known | {"--help", "--version"}, f"{page.name}: {line}"
            checked += len(options)
        alone = names(page, r"`(--[a-z][a-z-]*)[ =`]")
        assert alone <= every | OTHER_OPTIONS | set(SHORT), page.name
    assert checked > 30


def test_names_that_benchmarks_import_exist() -> None:
    """Nobody runs all of them: those of a GPU never here."""
    lacking = []
    for path in ROOT.glob("benchmarks/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("esa_cli"):
                module = import_module(str(node.module))
                for name in [one.name for one in node.names]:
                    if not hasattr(module, name) and not find_spec(f"{node.module}.{name}"):
                        lacking.append(f"{path.name}: {name}")
    assert not lacking

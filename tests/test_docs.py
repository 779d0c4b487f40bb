"""What the documents name exists: links, pages, commands and their options, modules."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sample_files
from conftest import copy_registries

from esa_cli.__main__ import SHORT, make_click_command
from esa_cli.evaluation.conformance import check_plugin_file
from esa_cli.methods import plugin_loading

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


EXAMPLES = ROOT / "examples"
SELECTOR = EXAMPLES / "my_selector.py"
QUESTIONS = ("When does the gate open?", "Who keeps the key?")


@pytest.fixture
def note(tmp_path: Path) -> Path:
    """Several windows of the tiny model, which takes a byte for a token."""
    path = tmp_path / "note.md"
    path.write_text("The gate opens at nine, and the miller keeps the key. " * 25, "utf-8")
    return path


def settings(home: Path) -> dict[str, str]:
    folders = {"ESA_HOME": "esa", "ESA_LIBRARY": "library", "XDG_CONFIG_HOME": "config"}
    return {variable: str(home / folder) for variable, folder in folders.items()}


def environment(home: Path) -> dict[str, str]:
    """Of another process."""
    more = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return {**os.environ, **settings(home), **more}


Call = Callable[..., str]


@pytest.fixture
def call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    """`call(name, *arguments)`: what an example prints, run as a program, in this process."""
    for variable, value in settings(tmp_path).items():
        monkeypatch.setenv(variable, value)
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> str:
        path = str(EXAMPLES / name)
        with monkeypatch.context() as patch:
            patch.setattr("sys.argv", [path, *arguments])
            runpy.run_path(path, run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def ask(call: Call, note: Path) -> Call:
    """`ask(name, *options)`: of an example that asks several questions about one document."""
    return lambda name, *options: call(
        name, str(note), *QUESTIONS, "--preset", "tiny-random", *options
    )


def test_ask_book(ask: Call) -> None:
    out = ask("ask_book.py")
    assert "note.md: 1," in out
    assert all(part.split("\n", 1)[1].strip() for part in out.split("\n> ")[1:])
    assert out.count("\n> ") == len(QUESTIONS)


def test_ask_documents(call: Call, note: Path, tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "boat.pdf").write_bytes(
        sample_files.pdf(["A grey boat lies at the pier.", None, "Nobody knows whose it is."])
    )
    arguments = (str(note), "more", QUESTIONS[0], "--evidence", "9", "--report", "out.html")
    out = call("ask_documents.py", *arguments, "--preset", "tiny-random")
    assert re.search(r"^note\.md: 1,\d{3} tokens$", out, re.M)
    assert re.search(r"^boat\.pdf: \d+ tokens$", out, re.M)
    assert re.search(r"^boat\.pdf: .*page 2", out, re.M), "what is missing is said"
    answer, *passages = re.split(r"\n\d\. ", out.split(f"> {QUESTIONS[0]}\n")[1])
    assert answer.strip()
    assert any(re.match(r"boat\.pdf, page [13], line \d \(\d+%\): \w", one) for one in passages)
    assert QUESTIONS[0] in (tmp_path / "out.html").read_text("utf-8")


def test_keep_a_library(call: Call, tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("The gate opens at nine, as it always did. " * 30, "utf-8")
    arguments = ("log.txt", QUESTIONS[0], "--preset", "tiny-random", "--library", "shelf")
    assert re.search(
        r"^log\.txt: 1,\d{3} tokens, read in", call("keep_a_library.py", *arguments), re.M
    )
    again = call("keep_a_library.py", *arguments)
    assert re.search(r"^log\.txt: 1,\d{3} tokens, found in the library$", again, re.M)
    assert not (tmp_path / "library").exists(), "--library is another folder"


@pytest.mark.process
def test_serve_client(call: Call, note: Path) -> None:
    pytest.importorskip("openai")
    command = [sys.executable, "-m", "esa_cli", "serve", str(note), "--preset", "tiny-random"]
    server = subprocess.Popen(
        [*command, "--port", "0", "--quiet"], stdout=subprocess.PIPE, text=True,
        env=environment(note.parent), cwd=note.parent,
    )  # fmt: skip
    try:
        url = server.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:")
        out = call("serve_client.py", QUESTIONS[0], "--url", url)
    finally:
        server.terminate()
        server.communicate(timeout=30)
    answer, *passages = out.split("\n  ")
    assert answer.strip()
    assert passages
    assert all(passage.startswith("note.md, line 1: The gate") for passage in passages)


@pytest.mark.parametrize("path", ["README.md", "docs/api.md"])
def test_the_code_in_the_documents(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block after block, as a reader would type it; only the model is another one."""
    (tmp_path / "book.pdf").write_bytes(sample_files.pdf(["Call me Ishmael.", "Ahab is old."]))
    (tmp_path / "notes.md").write_text("# To do\n\nOil the gate. Pay the miller.\n", "utf-8")
    (tmp_path / "log.txt").write_text("12:40 pump two failed\n" * 80, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ESA_HOME", str(tmp_path / "esa"))
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    text = (ROOT / path).read_text("utf-8")
    text = re.sub(r"(Esa\.load|load_preset)\(", r'\1("tiny-random", ', text)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, path, "exec"), names)
    assert names["reply"].text


def test_my_selector_conforms(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_registries(monkeypatch)
    assert plugin_loading.load_file(SELECTOR) == [("selector", "every-nth")]
    found = check_plugin_file(SELECTOR)["selector", "every-nth"]
    assert [finding.detail for finding in found if not finding.passed] == []
    assert len(found) == 4

"""The program itself: help, completion, the reference, and Ctrl-C in another process."""

from __future__ import annotations

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
from command import ROOT, TINY, Esa, environment, fail, run_python
from engine_process import start
from tiny_finder import tiny_finder

from esa_cli.__main__ import (
    ALIKE,
    GROUPS,
    REPLACED,
    SYNONYMS,
    expand_abbreviated_arguments,
    make_click_command,
)
from esa_cli.apps.cli.options.options import ModelOptions

pytestmark = pytest.mark.usefixtures("surroundings")


def walk(group: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every command of the program, with the words that call it."""
    found = [(path, group)]
    for name, child in getattr(group, "commands", {}).items():
        found += walk(child, (*path, name))
    return found


COMMANDS = walk(make_click_command())


def test_version_and_help_without_a_command(esa: Esa) -> None:
    assert re.fullmatch(r"esa \d+\.\d+\.\d+\n", esa("--version").out)
    assert [line for line in esa().out.splitlines() if line[:-1] in GROUPS] == [
        f"{name}:" for name in GROUPS
    ]
    fail(esa("aks"), 2, "aks")
    fail(esa("presets"), 2, "esa presets --help")


def test_the_reference_is_that_of_the_help() -> None:
    script = ROOT / "docs/make_cli_reference.py"
    subprocess.run([sys.executable, str(script), "--check"], env=environment(), check=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ask a Q --top 2 --dtype int8", "ask a Q --top 2 --set dtype=int8"),
        ("chat a --plugin=a.py --cache disk", "chat a --set plugin=a.py --set cache=disk"),
        ("methods --plugin a.py", "methods --plugin a.py"),
        ("ask a Q -- --evidence", "ask a Q -- --evidence"),
        ("note.md Q", "ask note.md Q"),
        ("find a.md count", "find a.md count"),
        ("aks", "aks"),
    ],
)
def test_short_options_are_settings_and_a_document_is_asked(words: str, expected: str) -> None:
    assert expand_abbreviated_arguments(words.split()) == expected.split()


def test_a_question_before_its_document_is_asked() -> None:
    assert expand_abbreviated_arguments(["Who is?", "a.md"]) == ["ask", "Who is?", "a.md"]


@pytest.mark.parametrize("word", SYNONYMS)
def test_synonyms_of_commands_name_the_command(esa: Esa, word: str) -> None:
    names = [name for names in GROUPS.values() for name in names]
    assert SYNONYMS[word] in names
    assert word not in names
    fail(esa(word, "a.txt"), 2, f"'{word}'", f"esa {SYNONYMS[word]}")


@pytest.mark.parametrize("words", [name for name in REPLACED if name[0] != "-"])
def test_replaced_commands_name_the_present_ones(esa: Esa, words: str) -> None:
    fail(esa(*words.split(), "a.txt"), 2, REPLACED[words])


def test_replaced_options_name_the_present_ones(esa: Esa) -> None:
    known = {name for _, one in COMMANDS for param in one.params for name in param.opts}
    for name in (name for name in REPLACED if name[0] == "-"):
        assert name not in known
        fail(esa("ask", "note.md", "Who?", f"{name}=4"), 2, REPLACED[name])


@pytest.mark.parametrize("path", [path for path, one in COMMANDS if not hasattr(one, "commands")])
def test_an_unknown_option_names_those_that_mean_alike_or_are_spelt_alike(
    esa: Esa, path: tuple[str, ...]
) -> None:
    command = dict(COMMANDS)[path]
    known = {name for parameter in command.params for name in parameter.opts}
    for group in ALIKE:
        meant = [name for name in group if name in known]
        for name in (name for name in group if meant and name not in known):
            hint = f"did you mean {' or '.join(meant)}?"
            fail(esa(*path, name, "3"), 2, f"no such option: {name}", hint)
    if "--quiet" in known:
        fail(esa(*path, "--quite"), 2, "did you mean --quiet?")
    unlike = esa(*path, "--hxml")
    fail(unlike, 2, "no such option: --hxml", f"see `esa {' '.join(path)} --help`")
    assert "did you mean" not in unlike.err, "dashes make no likeness"


def test_settings_of_the_run_are_no_settings_of_the_preset() -> None:
    settings = ["dtype=int8", "window.chunk=2", "plugin=a.py", "cache=disk", "plugin=b.py", "x"]
    options = ModelOptions(settings=settings, plugins=[Path("c.py")], dtype="auto")
    assert options.settings == ["window.chunk=2", "x"]
    assert (options.dtype, options.cache) == ("int8", "disk")
    assert [str(path) for path in options.plugins or ()] == ["c.py", "a.py", "b.py"]


def test_help_imports_nothing_heavy() -> None:
    calls = [[*path, "--help"] for path, _ in COMMANDS]
    code = (
        "import functools, sys\nfrom esa_cli import __main__ as program\n"
        "program.make_click_command = functools.cache(program.make_click_command)\n"
        f"for call in {calls!r}:\n    assert program.main(call) == 0\n"
        "heavy = {'torch', 'transformers', 'tokenizers', 'numpy', 'rich'}\n"
        "sys.exit(' '.join(heavy & set(sys.modules)) or 0)\n"
    )
    run_python(code)


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
    process = start("ask", "long.txt", "What?", "--set", "window.chunk=1")
    while "reading" not in (line := process.stderr.readline()):
        assert line, "it ended by itself"
    took, err = interrupt(process)
    assert process.returncode == 130
    assert err == "esa: interrupted\n"
    assert took < 10


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to other processes")
@pytest.mark.process
def test_ctrl_c_during_imports(note: str) -> None:
    process = start("ask", note, "What?")
    assert "starting" in process.stderr.readline()
    _, err = interrupt(process)
    assert process.returncode == 130
    assert err == "esa: interrupted\n"


QUESTION = "When does the gate open?"
HEAVY = (
    "transformers", "torch._dynamo", "sympy", "esa_cli.methods.paper", "esa_cli.attention.kernels",
)  # fmt: skip
CODE = """
import json, sys
from esa_cli.__main__ import main
code = main(json.loads(sys.argv[1]))
found = sorted(set(json.loads(sys.argv[2])) & set(sys.modules))
print("\\nimported", json.dumps(found), file=sys.stderr)
sys.exit(code)
"""


def in_a_process(*arguments: str) -> tuple[str, list[str]]:
    """What the command prints, and the modules of `HEAVY` that it imported."""
    done = run_python(CODE, json.dumps(arguments), json.dumps(HEAVY))
    # Libraries may write to this stream when the process ends.
    [found] = [line for line in done.stderr.splitlines() if line.startswith("imported ")]
    return done.stdout, json.loads(found.removeprefix("imported "))


@pytest.mark.process
@pytest.mark.usefixtures("surroundings")
def test_a_stored_document_is_asked_without_transformers(
    esa: Esa, note: str, tmp_path: Path
) -> None:
    how = ["--preset", "tiny-random", "--device", "cpu", "--dtype", "float32", "--quiet"]
    how += tiny_finder(tmp_path / "finder")
    assert esa("ingest", note, *how).code == 0
    want = esa("ask", note, QUESTION, "--json", *how).data
    out, imported = in_a_process("ask", note, QUESTION, "--json", *how)
    found = json.loads(out)
    assert imported == []
    changing = {"timing", "peak_memory_bytes"}
    assert found.keys() == want.keys()
    assert found["read"]
    for key in found.keys() - changing:
        assert found[key] == want[key]
    out, imported = in_a_process("find", note, QUESTION, *how)
    assert "gate" in out
    assert imported == []
    rows = ["--set", "answer.from=rows"]
    _, imported = in_a_process("ask", note, QUESTION, "--max-new-tokens", "2", *how, *rows)
    assert "transformers" in imported


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where the model is loaded."""
    for name in ("load_transformers_model", "load_model_for_passages"):
        monkeypatch.setattr(
            f"esa_cli.qa.opening.ModelBeforeLoading.{name}",
            lambda *given: pytest.fail("the model was loaded"),
        )


@pytest.mark.parametrize(
    "command",
    [
        ("ask", "note.md", "When?"),
        ("ask", "note.md", "When?", "--keep", "--set", "answer.from=text"),
        ("plan", "note.md"),
        ("compare", "note.md", "When?"),
        ("selftest", "needle", "--len", "400"),
    ],
)
@pytest.mark.usefixtures("unloaded")
def test_kernels_that_cannot_run_here(esa: Esa, note: str, command: tuple[str, ...]) -> None:
    done = esa(*command, *TINY, "--set", "kernel=torch-cuda")
    fail(done, 2, "kernel 'torch-cuda' cannot run on cpu")

"""What one command does once, imports and refuses before a model is loaded."""

from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_fixtures import cache, esa, note, surroundings
from command import TINY, Esa, fail
from tiny_finder import tiny_finder

from esa_cli import models
from esa_cli.errors import UsageError
from esa_cli.qa import api

__all__ = ["cache", "esa", "note", "surroundings"]

pytestmark = pytest.mark.usefixtures("surroundings")

TEXTS = {"one.md": "The gate opens at nine. " * 40, "two.md": "The boat leaves at noon. " * 30}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls by name; tokenisations by the text's file."""
    found: Counter[str] = Counter()

    def count(name: str, place: str, attribute: str) -> None:
        module: Any = importlib.import_module(place)
        real: Callable[..., Any] = getattr(module, attribute)

        @functools.wraps(real)
        def counted(*given: Any, **options: Any) -> Any:
            found[name] += 1
            return real(*given, **options)

        monkeypatch.setattr(module, attribute, counted)

    count("presets resolved", "esa_cli.qa.presets.preset", "read_file")
    count("methods built", "esa_cli.qa.presets.resolved_preset", "build_method")
    count("plugins looked for", "esa_cli.methods.plugin_loading", "entry_points")
    count("machine timed", "esa_cli.qa.planning.plan", "probe")
    plugin_loading: Any = importlib.import_module("esa_cli.methods.plugin_loading")
    plugin_loading.load_installed.cache_clear()
    transformers: Any = importlib.import_module("transformers")
    known_model: Any = importlib.import_module("esa_cli.qa.opening")
    call, tokens = transformers.PreTrainedTokenizerBase.__call__, known_model.count_tokens

    def seen(text: Any) -> None:
        found.update(name for name, one in TEXTS.items() if isinstance(text, str) and one in text)

    def tokenise(self: Any, text: Any = None, *given: Any, **options: Any) -> Any:
        seen(text)
        return call(self, text, *given, **options)

    def count_tokens(folder: Path, text: str) -> int:
        seen(text)
        return int(tokens(folder, text))

    monkeypatch.setattr(transformers.PreTrainedTokenizerBase, "__call__", tokenise)
    monkeypatch.setattr(known_model, "count_tokens", count_tokens)
    return found


ONCE = {"presets resolved": 1, "methods built": 1, "plugins looked for": 1, "machine timed": 1}


@pytest.mark.parametrize(
    "words", [(), ("--keep",), ("--method", "streaming-llm"), ("--method", "yarn"), ("--json",)]
)
def test_a_cold_ask_does_each_thing_once(
    esa: Esa,
    counts: Counter[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    monkeypatch.setattr("esa_cli.qa.planning.plan.recall", lambda key: None)
    for name, text in TEXTS.items():
        Path(name).write_text(text, "utf-8")
    done = esa("ask", *TEXTS, "When?", *TINY, "--max-new-tokens", "2", *words)
    assert done.code == 0, done.err
    assert counts == {**ONCE, **dict.fromkeys(TEXTS, 1)}


def test_what_is_in_the_library_is_not_tokenised(
    esa: Esa, counts: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    Path("one.md").write_text(TEXTS["one.md"], "utf-8")
    assert esa("ingest", "one.md", *TINY).code == 0
    counts.clear()
    assert esa("ask", "one.md", "When?", *TINY, "--max-new-tokens", "2").code == 0
    assert counts == {"presets resolved": 1, "methods built": 1}


ROOT = Path(__file__).parents[3]
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
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(arguments), json.dumps(HEAVY)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
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


@pytest.mark.process
@pytest.mark.usefixtures("surroundings")
def test_a_plan_is_made_without_transformers(note: str) -> None:
    _, imported = in_a_process("plan", note, "--preset", "tiny-random", "--device", "cpu")
    assert "transformers" not in imported


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where the model is loaded."""
    for name in ("load", "load_for_text"):
        monkeypatch.setattr(
            f"esa_cli.qa.opening.KnownModel.{name}",
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
@pytest.mark.parametrize("setting", ["kernel=torch-cuda"])
@pytest.mark.usefixtures("unloaded")
def test_kernels_that_cannot_run_here(
    esa: Esa, note: str, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], setting: str
) -> None:
    name, _, kernel = setting.partition("=")
    fail(esa(*command, *TINY, "--set", setting), 2, f"{name} '{kernel}' cannot run on cpu")


@pytest.mark.parametrize("setting", ["kernel=torch-cuda"])
def test_kernels_that_cannot_run_here_in_python(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(models, "load", lambda *_, **__: pytest.fail("the model was loaded"))
    with pytest.raises(UsageError, match="cannot run on cpu"):
        api.Esa.load("tiny-random", [setting], device="cpu")

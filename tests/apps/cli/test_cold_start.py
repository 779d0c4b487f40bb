"""What one command does once, imports and refuses before a model is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import TINY, Esa, fail
from tiny_finder import tiny_finder

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

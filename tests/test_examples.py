"""The examples run as they stand, with the tiny random model and without a network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from esa_cli import registry
from esa_cli.conformance import check_file, make_step
from esa_cli.errors import PresetError

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SELECTOR = EXAMPLES / "my_selector.py"
QUESTIONS = ("When does the gate open?", "Who keeps the key?")


@pytest.fixture
def note(tmp_path: Path) -> Path:
    """Several windows of the tiny model, which takes a byte for a token."""
    path = tmp_path / "note.md"
    path.write_text("The gate opens at nine, and the miller keeps the key. " * 25, "utf-8")
    return path


def run(name: str, note: Path, *options: str) -> str:
    """What an example prints."""
    home = note.parent
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "ESA_HOME": str(home / "esa"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    call = [str(EXAMPLES / name), str(note), *QUESTIONS, "--preset", "tiny-random", *options]
    done = subprocess.run(
        [sys.executable, *call],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=home,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_use_as_library(note: Path, temperature: str) -> None:
    options = ("--max-new-tokens", "4", "--temperature", temperature)
    out = run("use_as_library.py", note, *options)
    for question in QUESTIONS:
        assert f"> {question}\n" in out
    assert out.index(QUESTIONS[0]) < out.index(QUESTIONS[1])
    # Something was answered to each.
    assert all(part.split("\n", 1)[1].strip() for part in out.split("> ")[1:])


def test_ask_book(note: Path) -> None:
    out = run("ask_book.py", note)
    assert "note.md: 1," in out
    assert all(part.split("\n", 1)[1].strip() for part in out.split("\n> ")[1:])
    assert out.count("\n> ") == len(QUESTIONS)


@pytest.fixture
def selector(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example's selector, in a copy of the registry."""
    for name in ("_CLASSES", "_ORIGIN", "_FILES"):
        monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    assert registry.load_file(SELECTOR) == [("selector", "every-nth")]


@pytest.mark.usefixtures("selector")
def test_my_selector_conforms() -> None:
    found = check_file(SELECTOR)["selector", "every-nth"]
    assert [finding.detail for finding in found if not finding.passed] == []
    assert len(found) > 5


@pytest.mark.usefixtures("selector")
@pytest.mark.parametrize("n", [1, 3, 50])
@pytest.mark.parametrize("budget", [0, 1, 6, 7, 29, 30, 31])
def test_my_selector_takes_every_nth(n: int, budget: int) -> None:
    method = registry.build("selector", {"name": "every-nth", "n": n})
    got = method.select(make_step(middle=30), budget).tolist()
    # The smallest spacing from n on that stays within the budget.
    spacing = n
    while budget and len(range(0, 30, spacing)) > budget:
        spacing += 1
    assert got == (list(range(0, 30, spacing)) if budget else [])


@pytest.mark.usefixtures("selector")
def test_my_selector_refuses_no_spacing() -> None:
    with pytest.raises(PresetError, match="at least 1"):
        registry.build("selector", {"name": "every-nth", "n": 0})

"""The plugin for Simon Willison's `llm`: its fragments are the passages that `esa find` prints.

`llm` itself is used where it is installed; else what the plugin needs of it is made here.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from esa_cli.__main__ import main

FILE = Path(__file__).parents[2] / "plugins" / "llm-esa" / "llm_esa.py"
Loader = Callable[[str], list[Any]]


class Fragment(str):
    """As llm's."""

    source: str

    def __new__(cls, content: str, source: str) -> Fragment:
        made = super().__new__(cls, content)
        made.source = source
        return made


@pytest.fixture
def loader(
    surroundings: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Loader:
    """What the plugin registers; `esa` runs in this process."""
    if not importlib.util.find_spec("llm"):
        made = ModuleType("llm")
        vars(made).update(Fragment=Fragment, hookimpl=lambda function: function)
        monkeypatch.setitem(sys.modules, "llm", made)
    monkeypatch.setenv("ESA_LIBRARY", str(tmp_path / "library"))
    Path("book.txt").write_text("Captain Ahab lost his leg to the white whale.\n", "utf-8")
    spec = importlib.util.spec_from_file_location("llm_esa", FILE)
    assert spec
    assert spec.loader
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)

    def run(command: list[str], **how: Any) -> Any:
        assert command[:3] == [sys.executable, "-m", "esa_cli"]
        code = main(command[3:])
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=code, stdout=out, stderr=err)

    monkeypatch.setattr(subprocess, "run", run)
    registered: dict[str, Loader] = {}
    plugin.register_fragment_loaders(registered.__setitem__)
    return registered["esa"]


def test_passages_are_fragments(loader: Loader) -> None:
    (one,) = loader("book.txt?the white whale")
    assert str(one).startswith("[book.txt, line 1]\nCaptain Ahab lost")
    assert one.source == "esa:book.txt, line 1"


@pytest.mark.parametrize(
    "argument",
    [
        *("book.txt", "book.txt? ", "none.txt?whale", "book.txt?zebra"),
        *("book.txt?--help", "--help?whale", "?whale"),
    ],
)
def test_why_there_is_none(loader: Loader, argument: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        loader(argument)

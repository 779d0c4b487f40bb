"""What cannot work is refused before the model is loaded."""

from __future__ import annotations

import pytest
from cli_fixtures import cache, esa, note, surroundings
from command import TINY, Esa, fail

from esa_cli import models
from esa_cli.errors import UsageError
from esa_cli.qa import api

__all__ = ["cache", "esa", "note", "surroundings"]
pytestmark = pytest.mark.usefixtures("surroundings")


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where the model is loaded."""
    for name in ("load", "load_for_text"):
        monkeypatch.setattr(
            f"esa_cli.qa.opening.KnownModel.{name}", lambda *_: pytest.fail("the model was loaded")
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

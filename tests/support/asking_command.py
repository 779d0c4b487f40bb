"""Commands that ask, with a stand-in for the loaded model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import typer
import typer.testing


def run_command(
    monkeypatch: pytest.MonkeyPatch,
    command: Callable[..., Any],
    asker: Any,
    *words: str,
    stdin: bytes | None = None,
) -> Any:
    """The result of one command, for which `asker` is what `open_model` gives."""
    place = "esa_cli.apps.cli.model_and_documents.open_model"
    monkeypatch.setattr(place, lambda *given, **more: nullcontext(asker))
    app = typer.Typer()
    app.command()(command)
    return typer.testing.CliRunner().invoke(app, list(words), input=stdin)

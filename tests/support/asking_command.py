"""Commands that ask, with a stand-in for the loaded model."""

from __future__ import annotations

import sys
import types
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
    """The result of one command, for which `asker` is what `open_esa.open_esa` gives."""
    module = types.ModuleType("esa_cli.apps.cli.open_esa")
    module.open_esa = lambda *given, **more: nullcontext(asker)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "esa_cli.apps.cli.open_esa", module)
    app = typer.Typer()
    app.command()(command)
    return typer.testing.CliRunner().invoke(app, list(words), input=stdin)

"""The question whether to remove something, on the terminal."""

from __future__ import annotations

import sys

import typer

from esa_cli.errors import UsageError


def confirm_removal(kind: str, what: str, yes: bool) -> None:
    """Asks on the terminal whether to remove it, unless --yes is given.

    Raises:
        UsageError: there is no terminal. typer.Exit: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"removing a {kind} must be confirmed", "add --yes")
    if not typer.confirm(f"Remove {what}?", err=True):
        raise typer.Exit(1)

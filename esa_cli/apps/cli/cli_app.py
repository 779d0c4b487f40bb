"""The root command, and the commands below it, which are imported when they are called."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main

from esa_cli.apps.cli.options.command_help import PlainCommand
from esa_cli.version import __version__

COMMANDS = (
    "demo",
    "ask",
    "find",
    "collect",
    "count",
    "ingest",
    "sync",
    "library",
    "chat",
    "batch",
    "serve",
    "mcp",
    "plan",
    "compare",
    "selftest",
    "bench",
    "methods",
    "calibrate",
    "heads",
    "presets",
    "plugins",
    "models",
    "doctor",
)
"""In the order of `esa --help`. `ask` is the function `ask` of `commands/ask_command.py`, or its
`app` where it has commands of its own."""


def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    if version:
        print(f"esa {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def command(called: str | None = None) -> Any:
    """The click command of the whole program; where a command is `called`, with this one alone:
    the others take a tenth of a second to make."""
    app = typer.Typer(
        name="esa",
        help="Ask questions about documents many times longer than a language model's context.",
        invoke_without_command=True,
        rich_markup_mode=None,  # plain help reads the same in a pipe, and comes twice as fast
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for name in [called] if called in COMMANDS else COMMANDS:
        stem = str(name).replace("-", "_")
        module: Any = import_module(f"esa_cli.apps.cli.commands.{stem}_command")
        if isinstance(below := vars(module).get("app"), typer.Typer):
            for information in below.registered_commands:
                information.cls = PlainCommand
            app.add_typer(below, name=name)
        else:
            app.command(name, cls=PlainCommand)(getattr(module, stem))
    return typer.main.get_command(app)

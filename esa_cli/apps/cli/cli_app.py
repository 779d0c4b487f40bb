"""The root command, and the commands below it, which are imported when they are called."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main

from esa_cli.apps.cli.options.command_help import GroupedCommands, PlainCommand, option
from esa_cli.version import __version__

GROUPS = {
    "Ask": ("ask", "find", "collect", "chat", "batch"),
    "Library": ("ingest", "library"),
    "Serve": ("serve", "mcp"),
    "Set up": ("demo", "models", "presets", "plan", "doctor"),
    "Research": ("selftest", "compare", "bench", "methods", "calibrate", "heads", "plugins"),
}
"""In the order of `esa --help`. `ask` is the function `ask` of `commands/ask_command.py`, or its
`app` where it has commands of its own."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)


def root(
    context: typer.Context,
    version: Annotated[bool, option("--version", "Show the version.")] = False,
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
        cls=GroupedCommands,
        help="Ask questions about documents many times longer than a language model's context.",
        epilog='`esa FILE "QUESTION"` asks, too.',
        invoke_without_command=True,
        rich_markup_mode=None,  # plain help reads the same in a pipe, and comes twice as fast
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for panel, names in GROUPS.items():
        for name in (name for name in names if called not in COMMANDS or name == called):
            module: Any = import_module(f"esa_cli.apps.cli.commands.{name}_command")
            if isinstance(below := vars(module).get("app"), typer.Typer):
                for information in below.registered_commands:
                    information.cls = PlainCommand
                app.add_typer(below, name=name, rich_help_panel=panel)
            else:
                app.command(name, cls=PlainCommand, rich_help_panel=panel)(vars(module)[name])
    group = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]
    order = (name for name in COMMANDS if name in commands)
    group.commands = {name: commands[name] for name in order}  # type: ignore[attr-defined]
    return group

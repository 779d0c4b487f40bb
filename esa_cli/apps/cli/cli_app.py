"""Makes the commands of `esa`, each imported when it is called, and reads their arguments."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main

from esa_cli.apps.cli.options.command_help import GroupedCommands, PlainCommand, option
from esa_cli.errors import UsageError
from esa_cli.version import __version__

GROUPS = {
    "Ask": ("ask", "find", "collect", "chat", "batch"),
    "Library": ("ingest", "library"),
    "Serve": ("serve", "mcp"),
    "Set up": ("demo", "models", "presets", "plan", "doctor"),
    "Research": ("selftest", "compare", "bench", "methods", "calibrate", "heads", "plugins"),
}
"""Headings of `esa --help` and their commands. A command is the function of its name in
`commands/NAME_command.py`, or there a group of commands."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
FILES = {"collect": "find", "batch": "chat", "mcp": "serve", "doctor": "plan", "heads": "calibrate"}
FILES |= dict.fromkeys(("presets", "methods", "plugins"), "models")
FILES |= dict.fromkeys(("compare", "bench"), "selftest")
"""Commands in the file of another command."""

SHORT = {"--dtype": "dtype=", "--cache": "cache=", "--plugin": "plugin="}
"""Options that are short for a setting of the run, on every command with `--set`."""
REPLACED = {
    "--evidence": "--top N",
    "--passages": "--top N",
    "--stdin": "esa batch QUESTIONS.jsonl",
    "count": "esa collect --count",
    "sync": "esa ingest --words",
    "library push": "esa library copy library PLACE",
    "library export": "esa library copy library FILE.tar",
    "library pull": "esa library copy PLACE library",
    "library import": "esa library copy FILE.tar library",
}
"""Options and commands of version 0.2, and what to write in their place."""


def present_arguments(arguments: list[str]) -> list[str]:
    """Puts `ask` before a document, and settings in place of the options that are short for them.
    Raises UsageError: a command or option was replaced."""
    if not arguments or arguments[0].startswith("-"):
        return arguments
    for length in (1, 2):
        _refuse_replaced(" ".join(arguments[:length]))
    name, *rest = arguments
    if name not in COMMANDS and (os.path.lexists(name) or (len(rest) == 1 and "." in name)):
        name, rest = "ask", arguments
    end = rest.index("--") if "--" in rest else len(rest)
    words = list[str]()
    for word in rest[:end]:
        option, _, value = word.partition("=")
        if len(words) > 1 and words[-2] == "--set" and words[-1].endswith("="):
            words[-1] += word
        elif option in SHORT and (option, name) != ("--plugin", "methods"):
            words += ["--set", SHORT[option] + value]
        else:
            _refuse_replaced(option)
            words.append(word)
    return [name, *words, *rest[end:]]


def _refuse_replaced(word: str) -> None:
    if word in REPLACED:
        raise UsageError(f"{word} was replaced in version 0.3", f"use {REPLACED[word]}")


def root(
    context: typer.Context,
    version: Annotated[bool, option("--version", "Show the version.")] = False,
) -> None:
    if version:
        print(f"esa {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def command(called: str | None = None) -> Any:
    """Makes the click command of the program. Where `called` is a command, only that one is made:
    the others take a tenth of a second."""
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
            file = FILES.get(name, name)
            verb = vars(import_module(f"esa_cli.apps.cli.commands.{file}_command"))[name]
            if isinstance(verb, typer.Typer):
                for information in verb.registered_commands:
                    information.cls = PlainCommand
                app.add_typer(verb, name=name, rich_help_panel=panel)
            else:
                app.command(name, cls=PlainCommand, rich_help_panel=panel)(verb)
    group = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]
    order = (name for name in COMMANDS if name in commands)
    group.commands = {name: commands[name] for name in order}  # type: ignore[attr-defined]
    return group

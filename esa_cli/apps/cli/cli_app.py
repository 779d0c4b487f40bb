"""Makes the commands of `esa`, each imported only when called, and expands their arguments."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main

from esa_cli.apps.cli.options.command_help import GroupedHelpCommands, PlainHelpCommand, option
from esa_cli.errors import UsageError
from esa_cli.version import __version__

GROUPS = {
    "Ask": ("ask", "find", "collect", "chat", "batch"),
    "Library": ("ingest", "library"),
    "Serve": ("serve", "mcp"),
    "Set up": ("demo", "models", "presets", "plan", "doctor"),
    "Research": ("selftest", "compare", "bench", "methods", "calibrate", "heads", "plugins"),
}
"""The headings of `esa --help` with their commands. The command NAME is the function, or the group
of commands, called NAME in `commands/NAME_command.py`."""
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
FILES = {"collect": "find", "batch": "chat", "mcp": "serve", "doctor": "plan", "heads": "calibrate"}
FILES |= dict.fromkeys(("presets", "methods", "plugins"), "models")
FILES |= dict.fromkeys(("compare", "bench"), "selftest")
"""Commands that are defined in the file of another command, with the name of that command."""

SHORT = {"--dtype": "dtype=", "--cache": "cache=", "--plugin": "plugin="}
"""Options that abbreviate a `--set` of a run setting, on every command with `--set`."""
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
"""Options and commands of version 0.2, with what replaces them since version 0.3."""


def expand_arguments(arguments: list[str]) -> list[str]:
    """Puts the command `ask` before arguments that begin with a document, and replaces abbreviating
    options such as --dtype by --set. Raises UsageError: a command or option was replaced."""
    if not arguments or arguments[0].startswith("-"):
        return arguments
    for length in (1, 2):
        _refuse_replaced_word(" ".join(arguments[:length]))
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
            _refuse_replaced_word(option)
            words.append(word)
    return [name, *words, *rest[end:]]


def _refuse_replaced_word(word: str) -> None:
    if word in REPLACED:
        raise UsageError(f"{word} was replaced in version 0.3", f"use {REPLACED[word]}")


def show_version_or_help(
    context: typer.Context,
    version: Annotated[bool, option("--version", "Show the version.")] = False,
) -> None:
    if version:
        print(f"esa {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def make_click_command(called_command: str | None = None) -> Any:
    """Makes the click command `esa`. If `called_command` is known, only this subcommand is made, as
    making all of them takes a tenth of a second."""
    app = typer.Typer(
        name="esa",
        cls=GroupedHelpCommands,
        help="Ask questions about documents many times longer than a language model's context.",
        epilog='`esa FILE "QUESTION"` is short for `esa ask FILE "QUESTION"`.',
        invoke_without_command=True,
        rich_markup_mode=None,  # plain help reads the same in a pipe, and comes twice as fast
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(show_version_or_help)
    for panel, names in GROUPS.items():
        for name in (
            name for name in names if called_command not in COMMANDS or name == called_command
        ):
            file = FILES.get(name, name)
            verb = vars(import_module(f"esa_cli.apps.cli.commands.{file}_command"))[name]
            if isinstance(verb, typer.Typer):
                for information in verb.registered_commands:
                    information.cls = PlainHelpCommand
                app.add_typer(verb, name=name, rich_help_panel=panel)
            else:
                app.command(name, cls=PlainHelpCommand, rich_help_panel=panel)(verb)
    group = typer.main.get_command(app)
    commands: dict[str, Any] = group.commands  # type: ignore[attr-defined]
    order = (name for name in COMMANDS if name in commands)
    group.commands = {name: commands[name] for name in order}  # type: ignore[attr-defined]
    return group

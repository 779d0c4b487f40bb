"""Writes the reference in docs/cli.md from the help of the commands; `--check` compares it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from esa_cli.__main__ import make_click_command
from esa_cli.apps.cli.options.command_help import format_option_help, format_option_name

PAGE = Path(__file__).with_name("cli.md")
MARK = "<!-- What follows is written by `make reference`. -->\n"
COMMON = "ask"
"""Options that this command has, too, are described there alone."""


def leaves(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The commands that help shows, by their words."""
    for name, below in group.commands.items():
        path = f"{above} {name}".strip()
        if hasattr(below, "commands"):
            yield from leaves(below, path)
        elif not below.hidden:
            yield path, below


def rows(one: Any) -> list[tuple[str, str]]:
    """Arguments and options, and what they are for."""
    shown = (param for param in one.params if not getattr(param, "hidden", False))
    return [
        (format_option_name(param), " ".join(format_option_help(param).split())) for param in shown
    ]


def section(path: str, one: Any, known: list[tuple[str, str]]) -> str:
    """A heading, what the command is for, a table of its options, and those of `COMMON`."""
    lines = [f"### `esa {path}`", "", " ".join(str(one.help).split("\n\n")[0].split()), ""]
    own = [row for row in rows(one) if row not in known]
    if own:
        lines += ["| | |", "|-|-|"]
        cells = ((f"`{name}`", text) for name, text in own)
        lines += [
            "| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells
        ]
    common = [f"`{row[0].split(', ')[-1].split(' ')[0]}`" for row in rows(one) if row in known]
    if common:
        lines += [""] * bool(own) + [f"As for `esa {COMMON}`: {', '.join(common)}."]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with the reference of today's commands."""
    before = PAGE.read_text("utf-8").partition(MARK)[0]
    commands = dict(leaves(make_click_command()))
    common = rows(commands[COMMON])
    parts = (section(path, one, [] if path == COMMON else common) for path, one in commands.items())
    return f"{before}{MARK}\n## Commands\n\n" + "\n".join(parts)


if __name__ == "__main__":
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(page(), "utf-8")
    elif PAGE.read_text("utf-8") != page():
        sys.exit("docs/cli.md is not that of the help: make reference")

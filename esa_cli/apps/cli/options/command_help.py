"""The help of commands and options, in groups and without types of Python."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

PANELS = {
    "Documents": "library read keep shard join words watch prune allow haystack data from",
    "Answer": "top all min least files answer report method methods max-new-tokens temperature "
    "seed count distinct retry-failed limit questions",
    "Model": "preset model reader device",
    "Output": "out format json quiet long",
    "Expert": "set plugin rows engine workers",
}
"""Headings of a command's help, and the options below each; other options come first."""


def option(spec: str, help_: str, **more: Any) -> Any:
    """Makes an option of typer from its names and metavar, as `--out -o FILE`, and its help."""
    names = [word for word in spec.split() if word.startswith("-")]
    value = " ".join(word for word in spec.split() if not word.startswith("-"))
    return typer.Option(*names, metavar=value or None, help=help_, **more)


class PlainCommand(typer.core.TyperCommand):
    """A command whose help shows arguments and options by their metavars alone, as `DOC...`.

    typer adds types (`<list[str]>`), braces (`{DOC...}...`) and ranges, in each version others.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [self.options_metavar] if self.options_metavar else []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, typer.core.TyperArgument):
                name = option_name(parameter)
                bare = parameter.required or name.startswith("[")
                pieces.append(name if bare else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {
            heading: [] for heading in ("Arguments", "Options", *PANELS)
        }
        for parameter in self.get_params(ctx):
            panels[_panel(parameter)].append((option_name(parameter), option_help(parameter)))
        for heading, rows in panels.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class GroupedCommands(typer.core.TyperGroup):
    """The root command, whose help lists the commands below the `rich_help_panel` of each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels = dict[str, list[tuple[str, str]]]()
        for name, command in self.commands.items():
            rows = panels.setdefault(str(getattr(command, "rich_help_panel", "")), [])
            rows.append((name, command.get_short_help_str(68)))
        width = max(len(name) for rows in panels.values() for name, _ in rows)
        for heading, rows in panels.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])


def _panel(parameter: Any) -> str:
    """Returns the heading below which help lists an argument or option."""
    if parameter.param_type_name == "argument":
        return "Arguments"
    name = max(parameter.opts, key=len).removeprefix("--")
    return next((panel for panel, names in PANELS.items() if name in names.split()), "Options")


def option_name(parameter: Any) -> str:
    """Writes the name of an argument or option: `DOC...`, `-o, --out FILE`, `--keep, --no-keep`."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or str(parameter.name).upper()
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        return f"{names} / {', '.join(parameter.secondary_opts)}"
    return names if parameter.is_flag else f"{names} {parameter.metavar}"


def option_help(parameter: Any) -> str:
    """Writes the help of an argument or option, with its default, if any."""
    shown = parameter.show_default
    default = shown if isinstance(shown, str) else parameter.default
    if default in (None, "", ()) or isinstance(default, bool) or not shown:
        return str(parameter.help or "")
    written = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{parameter.help}  [default: {written}]"

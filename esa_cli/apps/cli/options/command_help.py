"""Formats the help of commands, with options in groups and without their Python types."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.core

from esa_cli.version import __version__

PANELS = {
    "Documents": "library read keep shard join words watch prune allow haystack data from",
    "Answer": "top all min least files thorough report method methods max-new-tokens "
    "temperature seed count distinct retry-failed limit questions continue",
    "Model": "preset model reader finder device",
    "Output": "out format json quiet verbose long",
    "Expert": "set plugin rows engine workers",
}
"""The headings of a command's help, each with its options; other options come first."""


def option(names_and_metavar: str, help_text: str, **typer_settings: Any) -> Any:
    """Makes a typer option from names and metavar, like `--out -o FILE`, and a help text."""
    words = names_and_metavar.split()
    names = [word for word in words if word.startswith("-")]
    value = " ".join(word for word in words if not word.startswith("-"))
    return typer.Option(*names, metavar=value or None, help=help_text, **typer_settings)


def argument(metavar: str, help_text: str, **typer_settings: Any) -> Any:
    """Makes a typer argument from its name in the help, like `DOC...`, and a help text."""
    return typer.Argument(metavar=metavar, help=help_text, **typer_settings)


def show_version_or_help(
    context: typer.Context,
    version: Annotated[bool, option("--version", "Show the version.")] = False,
) -> None:
    if version:
        print(f"esa {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


class UntypedHelpCommand(typer.core.TyperCommand):
    """A command whose help shows the metavars of its options, such as `DOC...`, but no types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [self.options_metavar] if self.options_metavar else []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, typer.core.TyperArgument):
                name = format_option_name(parameter)
                bare = parameter.required or name.startswith("[")
                pieces.append(name if bare else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {
            heading: [] for heading in ("Arguments", "Options", *PANELS)
        }
        for parameter in self.get_params(ctx):
            name = max(parameter.opts, key=len).removeprefix("--")
            panel = next((one for one, names in PANELS.items() if name in names.split()), "Options")
            panel = "Arguments" if parameter.param_type_name == "argument" else panel
            panels[panel].append((format_option_name(parameter), format_option_help(parameter)))
        for heading, rows in panels.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)


class GroupedHelpCommand(typer.core.TyperGroup):
    """The command `esa`, whose help lists the subcommands in groups, below their headings."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels = dict[str, list[tuple[str, str]]]()
        for name, command in self.commands.items():
            rows = panels.setdefault(str(getattr(command, "rich_help_panel", "")), [])
            rows.append((name, command.get_short_help_str(68)))
        width = max(len(name) for rows in panels.values() for name, _ in rows)
        for heading, rows in panels.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows])


def format_option_name(parameter: Any) -> str:
    """Formats the name of an argument or option for the help, like `DOC...` or `-o, --out FILE`."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or str(parameter.name).upper()
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        return f"{names} / {', '.join(parameter.secondary_opts)}"
    return names if parameter.is_flag else f"{names} {parameter.metavar}"


def format_option_help(parameter: Any) -> str:
    """Formats the help text of an argument or option, followed by its default value, if any."""
    shown = parameter.show_default
    default = shown if isinstance(shown, str) else parameter.default
    if default in (None, "", ()) or isinstance(default, bool) or not shown:
        return str(parameter.help or "")
    written = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{parameter.help}  [default: {written}]"

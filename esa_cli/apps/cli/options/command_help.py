"""The help of a command: what to write for each argument and option, without types of Python."""

from __future__ import annotations

from typing import Any

import typer.core


class PlainCommand(typer.core.TyperCommand):
    """A command whose help has its arguments and options as their metavars are, `DOC...`.

    typer, differently in each version, adds types (`<list[str]>`), braces and dots (`{DOC...}...`)
    and ranges (`0<=x<=9223372036854775807`). A value out of range is refused with the range.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = [self.options_metavar] if self.options_metavar else []
        for parameter in self.get_params(ctx):
            if isinstance(parameter, typer.core.TyperArgument) and not parameter.hidden:
                name = _name(parameter)
                bare = parameter.required or name.startswith("[")
                pieces.append(name if bare else f"[{name}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [one for one in self.get_params(ctx) if not getattr(one, "hidden", False)]
        arguments = [one for one in shown if one.param_type_name == "argument"]
        options = [one for one in shown if one.param_type_name == "option"]
        for heading, some in (("Arguments", arguments), ("Options", options)):
            if some:
                with formatter.section(heading):
                    formatter.write_dl([(_name(one), _help(one)) for one in some])


def _name(parameter: Any) -> str:
    """`DOC...`, `-o, --out FILE`, `--keep / --no-keep`."""
    if parameter.param_type_name == "argument":
        return parameter.metavar or str(parameter.name).upper()
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        return f"{names} / {', '.join(parameter.secondary_opts)}"
    return names if parameter.is_flag else f"{names} {parameter.metavar}"


def _help(parameter: Any) -> str:
    """What it is for, and the default of an option that has one."""
    default = parameter.default
    if isinstance(parameter.show_default, str):
        default = parameter.show_default
    if default in (None, "", ()) or isinstance(default, bool) or not parameter.show_default:
        return str(parameter.help or "")
    written = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{parameter.help}  [default: {written}]"

"""`esa presets`: the ways of answering, and every setting of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.options.completion import presets
from esa_cli.apps.cli.output.terminal import print_table, print_text
from esa_cli.errors import PresetError
from esa_cli.qa.presets.preset_files import available, user_dir

app = typer.Typer(help="List and show presets, the ways of answering.")
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A preset's name, or a YAML file.", autocompletion=presets),
]


@app.command("list")
def list_() -> None:
    """List the presets, your own and those that came with esa."""
    from esa_cli.qa.presets.preset import load

    rows = []
    for name, path in available().items():
        whose = "yours" if path.parent == user_dir() else "shipped"
        try:
            text = load(name).description
        except PresetError as error:
            text = f"broken: {error.message}"
        rows.append((name, whose, text))
    print_table(("preset", "from", "what for"), rows)


@app.command("show")
def show(
    name: Name = options.DEFAULT_PRESET,
    settings: options.Set = None,
    plugins: Annotated[list[Path] | None, option("--plugin FILE", "", hidden=True)] = None,
) -> None:
    """Show every setting of a preset, as YAML.

    Saved to a file, it can be used as a preset. Its method, adapter and finder are looked up, so
    that what does not hold is refused here.
    """
    from esa_cli.qa.presets.adapter_files import check_adapter
    from esa_cli.qa.presets.preset import dump
    from esa_cli.qa.presets.resolved_preset import resolve

    given = options.ModelOptions(name, settings=settings, plugins=plugins)
    options.load_plugins(given.plugins)
    chosen = resolve(name, given.settings or []).preset
    check_adapter(chosen.answer)
    print_text(dump(chosen))

"""`esa presets`: list, show and check them."""

from __future__ import annotations

from typing import Annotated

import typer

from esa_cli.apps.cli import options
from esa_cli.apps.cli.completion import presets

app = typer.Typer(help="List, show and check presets.")
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A preset's name, or a YAML file.", autocompletion=presets),
]


@app.command("list")
def list_() -> None:
    """List the presets, your own and those that came with esa."""
    from esa_cli.apps.cli.terminal import print_table
    from esa_cli.errors import PresetError
    from esa_cli.qa.preset import available, load, user_dir

    rows = []
    for name, path in sorted(available().items()):
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
) -> None:
    """Show every setting of a preset, as YAML.

    Saved to a file, it can be used as a preset.
    """
    from esa_cli.apps.cli.terminal import print_text
    from esa_cli.qa.preset import dump, load

    print_text(dump(load(name, settings or [])))


@app.command("check")
def check(
    name: Name,
    settings: options.Set = None,
    plugins: options.Plugin = None,
) -> None:
    """Check a preset and its adapter, and build the method it describes."""
    options.load_plugins(plugins)
    from esa_cli.apps.cli.terminal import one_line
    from esa_cli.qa.adapter_files import check_adapter
    from esa_cli.qa.resolved_preset import resolve

    chosen = resolve(name, settings or []).preset
    check_adapter(chosen.answer)
    print(one_line(f"preset {chosen.name} holds: {chosen.description or chosen.model}"))

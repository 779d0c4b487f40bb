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
    from esa_cli.qa.preset import load
    from esa_cli.qa.preset_files import available, user_dir

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
    """Check a preset, its adapter and its model's sizes.

    And plan its memory, without the model.
    """
    options.load_plugins(plugins)
    from esa_cli.apps.cli.terminal import one_line, print_table
    from esa_cli.models import parse_reference
    from esa_cli.qa.adapter_files import check_adapter
    from esa_cli.qa.planning.model_shapes import config_without_model
    from esa_cli.qa.planning.preset_check import LENGTHS, check_sizes
    from esa_cli.qa.resolved_preset import resolve
    from esa_cli.system.machine import size_text

    resolved = resolve(name, settings or [])
    chosen = resolved.preset
    check_adapter(chosen.answer)
    model, config = parse_reference(chosen.model).name, config_without_model(chosen.model)
    memory = None if config is None else check_sizes(resolved, config, model)
    print(one_line(f"preset {chosen.name} holds: {chosen.description or chosen.model}"))
    if memory is None:
        print(one_line(f"memory is not known without the sizes of {model}: see `esa plan`"))
        return
    reads = "nothing is read" if memory.reads == "nothing" else memory.reads
    print_table(
        ("memory in bfloat16", "weights", reads, "in all"),
        [
            (f"{length} tokens", *map(size_text, figures))
            for length in LENGTHS
            for figures in [(memory.weights, memory.stored(length), memory.needed(length))]
        ],
    )

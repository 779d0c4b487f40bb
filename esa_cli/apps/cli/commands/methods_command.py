"""`esa methods`: whole methods by name, and the parts that methods are made of."""

from __future__ import annotations

from typing import Annotated

import typer

from esa_cli.apps.cli.options import options

Full = Annotated[bool, typer.Option("--long", help="Also what each costs, and its source.")]
UNSAID = "not said"


def methods(
    long: Full = False, plugins: options.Plugin = None, as_json: options.Json = False
) -> None:
    """List the methods that can be compared, and their parts."""
    from esa_cli.apps.cli.output.terminal import print_json, print_table
    from esa_cli.methods import registry
    from esa_cli.methods.plugin_loading import load_installed

    load_installed()
    options.load_plugins(plugins)
    whole = registry.recipes()
    parts = registry.parts()
    if as_json:
        keys = ("name", "about", "source", "cost", "full", "origin")
        rows = [{"kind": "method", **{key: getattr(one, key) for key in keys}} for one in whole]
        print_json(
            [*rows, *({**p.texts(), "origin": registry.origin(p.kind, p.name)} for p in parts)]
        )
    elif long:
        for one in whole:
            kind = "full attention" if one.full else "at the preset's token budget"
            _print(one.name, kind, one.about, one.cost, one.source)
        for part in parts:
            _print(part.name, part.kind, part.about, part.cost, part.source)
    else:
        budgets = [(one.name, "all" if one.full else "budget", one.about) for one in whole]
        print_table(("method", "tokens", "what it does"), budgets)
        print()
        print_table(("part", "kind", "what it does"), [(p.name, p.kind, p.about) for p in parts])


def _print(name: str, kind: str, about: str, cost: str, source: str) -> None:
    from esa_cli.apps.cli.output.terminal import one_line

    told = f"  {about}", f"  cost: {cost or UNSAID}", f"  source: {source or UNSAID}"
    print(f"{name} ({kind})", *map(one_line, told), "", sep="\n")

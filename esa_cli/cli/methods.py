"""`esa methods`: whole methods by name, for `selftest`, `bench` and `compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from . import options

Full = Annotated[bool, typer.Option("--long", help="Also each method's cost and its source.")]


def methods(
    long: Full = False, plugins: options.Plugin = None, as_json: options.Json = False
) -> None:
    """List the methods that can be compared."""
    from .. import recipes
    from .render import print_json, print_table

    options.load_plugins(plugins)
    found = recipes.known()
    if as_json:
        keys = ("name", "about", "source", "cost", "full", "origin")
        print_json([{key: getattr(recipe, key) for key in keys} for recipe in found])
    elif long:
        for recipe in found:
            kind = "full attention" if recipe.full else "at the preset's token budget"
            print(f"{recipe.name} ({kind})\n  {recipe.about}")
            print(f"  cost: {recipe.cost}\n  source: {recipe.source}\n")
    else:
        rows = [(r.name, "all" if r.full else "budget", r.about) for r in found]
        print_table(("method", "tokens", "what it does"), rows)

"""`esa methods`: whole methods by name, and the parts that methods are made of."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from esa_cli.apps.cli.options import options
from esa_cli.apps.cli.options.command_help import option

Full = Annotated[bool, option("--long", "Also what each costs, its settings and its source.")]


def methods(
    long: Full = False, plugins: options.Plugin = None, as_json: options.Json = False
) -> None:
    """List the methods that can be compared, and their parts."""
    from esa_cli.apps.cli.output.terminal import print_json, print_table
    from esa_cli.methods import registry
    from esa_cli.methods.plugin_loading import load_installed

    load_installed()
    options.load_plugins(plugins)
    recipes, parts = registry.recipes(), registry.parts()
    if as_json:
        keys = ("name", "about", "source", "cost", "full", "origin")
        rows = [{"kind": "method", **{key: getattr(r, key) for key in keys}} for r in recipes]
        for part in parts:
            origin = registry.origin(part.kind, part.name)
            rows.append({**part.texts(), "origin": origin, "settings": _settings(part.cls)})
        print_json(rows)
    elif long:
        for recipe in recipes:
            kind = "full attention" if recipe.full else "at the preset's token budget"
            _print(f"{recipe.name} ({kind})", recipe.about, recipe.cost, recipe.source)
        for part in parts:
            head = f"{part.name} ({part.kind})"
            _print(head, part.about, part.cost, part.source, _settings(part.cls))
    else:
        budgets = [(r.name, "all" if r.full else "budget", r.about) for r in recipes]
        print_table(("method", "tokens", "what it does"), budgets)
        print()
        print_table(("part", "kind", "what it does"), [(p.name, p.kind, p.about) for p in parts])


def _print(head: str, about: str, cost: str, source: str, settings: str = "") -> None:
    from esa_cli.apps.cli.output.terminal import one_line

    facts = {"cost": cost or "not said", "source": source or "not said", "settings": settings}
    lines = [about, *(f"{name}: {text}" for name, text in facts.items() if text)]
    print(head, *(f"  {one_line(line)}" for line in lines), "", sep="\n")


def _settings(cls: type) -> str:
    """A part's settings with their defaults, as `rank=48 fit_tokens=2048`."""
    words = []
    for field in dataclasses.fields(cls):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if field.init:
            words.append(field.name if value is dataclasses.MISSING else f"{field.name}={value}")
    return " ".join(words)

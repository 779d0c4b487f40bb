"""Recipes, whole methods by name: the selector, score, positions and windows of a published method.

`qa.presets.resolved_preset` merges a recipe into a preset, at the preset's token budget I + K + L,
so that methods can be compared. A recipe is registered where its method is written, here or in a
plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from esa_cli.attention.window import Window
from esa_cli.errors import UsageError
from esa_cli.methods import part_registry as registry
from esa_cli.system.registry import Registry, nearest, origin_of


class Base(NamedTuple):
    """The preset's settings that a recipe may use.

    Args:
        window: the token budget. context: the model's trained window, tokens.
        position: the preset's position encoding. length: tokens of the document; 0: unknown.
    """

    window: Window
    context: int
    position: Mapping[str, Any]
    length: int = 0

    @property
    def stretch(self) -> float:
        """How many times the trained window the document is long, at least 1."""
        return max(1.0, self.length / self.context)

    def local_only(self) -> dict[str, int]:
        """Windows that spend the whole budget on the most recent tokens."""
        return {"selected": 0, "local": self.window.selected + self.window.local}


OWN_SCORE: dict[str, Any] = {"score": {"name": "vote", "shortlist": 0, "contrast": False}}
"""For selectors with scores of their own: `vote` needs no reduced keys, so none are stored."""

Settings = Callable[[Base], dict[str, Any]]
LAID = ("window", "selector", "score", "compressor", "position", "reading")
"""Settings that a recipe may set; model, prompt and trained window stay for a comparison."""


@dataclass(frozen=True)
class Recipe:
    """A method by name.

    Args:
        about: one line. source: the paper. cost: of one step, in the letters of `attention`.
        settings: returns the settings merged into a preset. full: full attention, whatever the
            budget, during prefill, too. origin: the module or plugin file that registers it.
    """

    name: str
    about: str
    source: str
    cost: str
    settings: Settings
    full: bool
    origin: str


RECIPES: Registry[Recipe] = Registry("method")


def recipe(
    name: str, *, about: str, source: str, cost: str, full: bool = False
) -> Callable[[Settings], Settings]:
    """Decorator of the function that returns a method's settings; see `Recipe`.

    Raises:
        PluginError: the name is taken by another function, or reserved.
    """
    registry.check_method_name(name)

    def keep(settings: Settings) -> Settings:
        made = Recipe(name, about, source, cost, settings, full, origin_of(settings))
        RECIPES.add(name, made, settings)
        return settings

    return keep


def known() -> list[Recipe]:
    """Every recipe, built in and from plugins, by name."""
    return [RECIPES[name] for name in sorted(RECIPES)]


def find(name: str) -> Recipe:
    """The recipe of this name; a selector without one is used with the preset's settings.

    Raises:
        UsageError: there is neither; the message names the nearest.
    """
    if name in RECIPES:
        return RECIPES[name]
    selectors = registry.names("selector")
    if name in selectors:
        return Recipe(
            name,
            "the preset's settings with this selector",
            registry.origin("selector", name),
            "",
            lambda base: {
                "selector": {"name": name},
                "window": {"ending": base.window.ending},
            },
            False,
            registry.origin("selector", name),
        )
    hint = nearest(name, {*RECIPES, *selectors})
    raise UsageError(f"unknown method {name!r}", f"{hint}; `esa methods` lists all")

"""Whole methods by name: which selector, score, positions and windows a published method means.

A selector alone is half a method: InfLLM is its blocks and its positions together. A recipe lays a
method's settings over a preset at the preset's own token budget I + K + L, so that methods can be
compared. Recipes register themselves where the method is written, built in or in a plugin.
Knows nothing about models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from esa_cli.errors import EsaError, PluginError, PresetError, UsageError
from esa_cli.methods import registry
from esa_cli.qa.preset import Preset, merge, validated


class Base(NamedTuple):
    """What a recipe is laid over.

    Args:
        preset: model, prompt and token budget. length: tokens the document will have; 0: unknown.
    """

    preset: Preset
    length: int = 0

    @property
    def stretch(self) -> float:
        """How many times the trained window the document is long, at least 1."""
        return max(1.0, self.length / self.preset.context)

    def local_only(self) -> dict[str, int]:
        """Windows that spend the whole budget on the most recent tokens."""
        window = self.preset.window
        return {"selected": 0, "local": window.selected + window.local}


OWN_SCORE: dict[str, Any] = {"score": {"name": "vote", "shortlist": 0, "contrast": False}}
"""For selectors that score by themselves: `vote` needs no reduced keys, so none are made."""

Settings = Callable[[Base], dict[str, Any]]
KIND = "method"
LAID = ("window", "selector", "score", "compressor", "position", "reading")
"""What a recipe may set: model, prompt and trained window are what methods are compared on."""


@dataclass(frozen=True)
class Recipe:
    """A method, described and made.

    Args:
        about: one line. source: the paper. cost: of one step, in the letters of `protocols`.
        settings: what is laid over a preset. full: it attends to everything, whatever the budget,
            while reading, too.
        origin: the module or plugin file it stands in.
    """

    name: str
    about: str
    source: str
    cost: str
    settings: Settings
    full: bool
    origin: str


_RECIPES: dict[str, Recipe] = {}


def recipe(
    name: str, *, about: str, source: str, cost: str, full: bool = False
) -> Callable[[Settings], Settings]:
    """Decorator of the function that returns a method's settings; see `Recipe`.

    Raises:
        PluginError: the name is taken by another function.
    """

    def keep(settings: Settings) -> Settings:
        # The registry's own tables: so a plugin file that holds only recipes counts as one that
        # registers something, and a file that fails leaves nothing behind.
        origin = registry._FILES.get(settings.__module__, settings.__module__)
        taken = _kept(name)
        own = (origin, settings.__qualname__)
        if taken is not None and (taken.origin, taken.settings.__qualname__) != own:
            raise PluginError(
                f"method {name!r} is already described by {taken.origin}", "choose another name"
            )
        _RECIPES[name] = Recipe(name, about, source, cost, settings, full, origin)
        registry._ORIGIN[KIND, name] = origin
        return settings

    return keep


def _kept(name: str) -> Recipe | None:
    """The recipe of this name, if its file did not fail after it."""
    return _RECIPES.get(name) if (KIND, name) in registry._ORIGIN else None


def known() -> list[Recipe]:
    """Every recipe, built in and from plugins, by name."""
    registry.load_entry_points()
    return [one for one in map(_kept, sorted(_RECIPES)) if one is not None]


def find(name: str) -> Recipe:
    """The recipe of this name; a selector without one stands for itself in the preset's settings.

    Raises:
        UsageError: there is neither; the message names the nearest.
    """
    registry.load_entry_points()
    described = _kept(name)
    if described is not None:
        return described
    selectors = registry.names("selector")
    if name in selectors:
        return Recipe(
            name,
            "the preset's settings with this selector",
            registry.origin("selector", name),
            "",
            lambda base: {
                "selector": {"name": name},
                "window": {"ending": base.preset.window.ending},
            },
            False,
            registry.origin("selector", name),
        )
    hint = registry.nearest(name, sorted({*_RECIPES, *selectors}))
    raise UsageError(f"unknown method {name!r}", f"{hint}; `esa methods` lists all")


def apply(name: str, preset: Preset, length: int = 0) -> Preset:
    """The preset with the method `name` at its token budget.

    Args:
        length: tokens the document will have; some position encodings stretch to it.

    Raises:
        UsageError: no such method. PluginError: its recipe fails, or gives what none may set.
        PresetError: its settings do not hold, or it takes more tokens.
    """
    found = find(name)
    settings = _given(found, Base(preset, length))
    # What is published sees the last tokens before the current ones, whatever a preset does.
    plain = merge(preset.model_dump(exclude={"name"}), {"window": {"ending": None}})
    laid = merge(plain, settings)
    if found.full or laid["selector"]["name"] == "full":
        # Read by I and L alone, the text's keys would know nothing of what came before.
        laid["reading"] = "select"
    made = validated(preset.name, laid)
    if not found.full and budget(made) != budget(preset):
        raise PresetError(
            f"method {name!r} takes {budget(made)} tokens where the preset has {budget(preset)}",
            "a recipe must keep initial + selected + local",
        )
    return made


def _given(found: Recipe, base: Base) -> Mapping[str, Any]:
    """What the recipe says, if that is a mapping of what a recipe may set."""
    try:
        settings = found.settings(base)
    except EsaError:
        raise
    except Exception as error:
        raise PluginError(
            f"the recipe of method {found.name!r} fails: {type(error).__name__}: {error}",
            f"it stands in {found.origin}",
        ) from error
    if not isinstance(settings, Mapping):
        raise PluginError(
            f"the recipe of method {found.name!r} gives no mapping but {settings!r}",
            f"it may set {', '.join(LAID)}",
        )
    for key in settings:
        if key not in LAID:
            raise PluginError(
                f"the recipe of method {found.name!r} sets {key!r}",
                f"{registry.nearest(str(key), [*LAID])}; the rest is the preset's",
            )
    return settings


def for_length(name: str, preset: Preset, length: int) -> Preset:
    """`apply`, which refuses a method that is made for one length where none is known.

    Args:
        length: tokens of the documents; 0: nobody knows.

    Raises:
        UsageError: so it is, or there is no such method. PluginError, PresetError.
    """
    if not length and stretches(name, preset):
        raise UsageError(
            f"method {name!r} is made for the length of its documents, which is not known here",
            f"`esa ask DOC... QUESTION --method {name}` measures them first; in Python give it as "
            "`length`",
        )
    return apply(name, preset, length)


def stretches(name: str, preset: Preset) -> bool:
    """Whether the method is another one for a longer document, as NTK and YaRN are.

    Raises:
        UsageError: no such method. PresetError: its settings do not hold.
    """
    return apply(name, preset) != apply(name, preset, 1000 * preset.context)


def budget(preset: Preset) -> int:
    """Cached tokens attended to in a step: I + K + L."""
    window = preset.window
    return window.initial + window.selected + window.local

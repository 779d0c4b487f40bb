"""Lays a recipe over a preset: the preset with a named method at its token budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from esa_cli.errors import NOT_BLAMED, EsaError, PluginError, PresetError, UsageError
from esa_cli.methods import recipes
from esa_cli.methods.plugin_loading import load_installed
from esa_cli.methods.recipes import LAID, Base
from esa_cli.qa.presets.preset import Preset, from_rows, merge, validated
from esa_cli.system.registry import nearest

AS_IS = "preset"
"""The name of the method that is the preset itself."""
FROM_TEXT = "text"
"""The name, where methods are compared, of answers from text with the preset's settings `answer`;
`preset` is its selector over stored rows there."""


def base_of(preset: Preset, length: int = 0) -> Base:
    """Settings of a preset that a recipe may use; `length` in tokens, 0 where it is not known."""
    return Base(preset.window, preset.context, preset.position, length)


def apply(name: str, preset: Preset, length: int = 0) -> Preset:
    """The preset with the method `name` at its token budget.

    Args:
        length: tokens the document will have; some position encodings stretch to it.

    Raises:
        UsageError: no such method. PluginError: its recipe fails, or gives what none may set.
        PresetError: its settings do not hold, or it takes more tokens.
    """
    load_installed()
    found = recipes.find(name)
    settings = _given(found, base_of(preset, length))
    # What is published sees the last tokens before the current ones, whatever a preset does, and
    # answers from the rows it selects.
    plain = from_rows(merge(preset.model_dump(exclude={"name"}), {"window": {"ending": None}}))
    laid = merge(plain, settings)
    if found.full or laid["selector"]["name"] == "full":
        # Read by I and L alone, the text's keys would know nothing of what came before.
        laid["reading"] = "select"
    made = validated(preset.name, laid)
    if not found.full and made.window.budget != preset.window.budget:
        raise PresetError(
            f"method {name!r} must take the preset's {preset.window.budget} tokens, got "
            f"{made.window.budget}",
            "a recipe must keep initial + selected + local",
        )
    return made


def named(name: str, preset: Preset, length: int = 0) -> Preset:
    """The preset as it is for the name `preset`, else as `apply`."""
    return preset if name == AS_IS else apply(name, preset, length)


def compared(name: str, preset: Preset, length: int = 0) -> Preset:
    """As `named`; the preset as it is also for the name `text`.

    Raises:
        UsageError: the preset answers from rows, or there is no such method. PluginError,
            PresetError.
    """
    if name != FROM_TEXT:
        return named(name, preset, length)
    if preset.answer.source != "text":
        raise UsageError(
            f"method {name!r} must be with a preset that answers from text, got "
            f"{preset.name} with answer.from = {preset.answer.source}",
            "add --set answer.from=text, or name another method",
        )
    return preset


def compared_by_default(preset: Preset) -> tuple[str, ...]:
    """The methods of a comparison that names none."""
    return (AS_IS, FROM_TEXT) if preset.answer.source == "text" else (AS_IS,)


def _given(found: recipes.Recipe, base: Base) -> Mapping[str, Any]:
    """Settings that the recipe returns, checked to be a mapping of what a recipe may set."""
    try:
        settings = found.settings(base)
    except (EsaError, *NOT_BLAMED):
        raise
    except BaseException as error:
        raise PluginError(
            f"the recipe of method {found.name!r} fails: {type(error).__name__}: {error}",
            f"it is defined in {found.origin}",
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
                f"{nearest(str(key), LAID)}; the rest is the preset's",
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
    """True if the method is another one for a longer document, as NTK and YaRN are.

    Raises:
        UsageError: no such method. PresetError: its settings do not hold.
    """
    return apply(name, preset) != apply(name, preset, 1000 * preset.context)

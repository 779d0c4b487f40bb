"""Builds a preset's method of its parts or a recipe, and checks that a model can run it.

`attention` and `methods` are imported when a method is built: answers from text need none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from esa_cli.errors import NOT_BLAMED, EsaError, ModelError, PluginError, PresetError, UsageError
from esa_cli.methods import registry
from esa_cli.qa.presets.preset import DEFAULT, Preset, from_rows, load, merge, validated
from esa_cli.system.registry import nearest

if TYPE_CHECKING:
    from esa_cli.attention.method import Method
    from esa_cli.storage.memory_store import PrefilledDocument

MEMBERS = {
    "selector": ("Selector", ("sums_layers", "surveys", "observes", "window_size")),
    "score": ("Score", ("features", "rotates", "last_layer")),
    "compressor": ("Compressor", ("fit_tokens", "files")),
    "position": ("PositionEncoding", ("distance", "max_distance")),
}
"""The base class of each kind of part, and properties that are read once to test them."""
AS_IS = "preset"
"""The name, in comparisons, of the preset's own method."""
FROM_TEXT = "text"
"""The name, in comparisons, of the preset's answers from text."""


@dataclass(frozen=True)
class ResolvedPreset:
    """A preset and its method, which is built when it is first used; `own` replaces it."""

    preset: Preset
    own: Method | None = None

    @cached_property
    def method(self) -> Method:
        """Raises PresetError: a part, one of its settings, or the kernel is wrong."""
        return self.own or build_method(self.preset)


def resolve(
    preset: str | Preset | ResolvedPreset = DEFAULT,
    overrides: Sequence[str] = (),
    method: str | None = None,
    length: int = 0,
) -> ResolvedPreset:
    """Resolves a preset, or its name with `overrides`; its method is built if answers need it.

    Args:
        method: a whole method over it, by its name in `esa methods`. length: tokens of the
            documents, for methods that are made for one length.

    Raises UsageError: no such method, or it needs a length. PresetError: a setting is wrong."""
    if isinstance(preset, ResolvedPreset):
        return preset
    chosen = load(preset, overrides) if isinstance(preset, str) else preset
    if method is not None:
        chosen = for_length(method, chosen, length)
    resolved = ResolvedPreset(chosen)
    if chosen.answer.needs_rows:
        _ = resolved.method
    return resolved


def _part(kind: str, options: dict[str, Any]) -> Any:
    from esa_cli.attention import parts

    part, (base, members) = registry.build(kind, options), MEMBERS[kind]
    name = type(part).__name__
    if not isinstance(part, getattr(parts, base)):
        raise PluginError(
            f"{kind} {options['name']!r} must be derived from {base}, got class {name}",
            f"write `class {name}({base}):`, see docs/plugins.md",
        )
    with parts.blame_plugins({kind: part}):
        for member in members:
            getattr(part, member)
    return part


def build_method(preset: Preset) -> Method:
    """Builds a preset's method. Raises PresetError: a part, one of its settings, or the kernel is
    wrong."""
    from esa_cli.attention.kernels import KERNELS
    from esa_cli.attention.method import Method
    from esa_cli.attention.parts import blame_plugins
    from esa_cli.methods.plugin_loading import load_installed

    load_installed()
    if preset.kernel != "auto" and preset.kernel not in KERNELS:
        raise PresetError(
            f"unknown kernel {preset.kernel!r}", nearest(preset.kernel, ["auto", *KERNELS])
        )
    parts = {kind: _part(kind, getattr(preset, kind)) for kind in MEMBERS}
    if not parts["selector"].sums_layers:
        with blame_plugins(parts):
            parts["score"] = parts["score"].for_single_layers()
    distance = parts["position"].distance
    if not isinstance(distance, int) or distance < 0:
        raise PresetError(
            f"position.distance must be a whole number from 0, got {distance!r}",
            "see `esa presets show`",
        )
    if preset.position["name"] == "esa" and distance >= preset.context:
        raise PresetError(
            f"position.distance must be below the model's window of {preset.context}, "
            f"got {distance}",
            "about three quarters of the window works best; see benchmarks/NOTES.md",
        )
    return Method(window=preset.window, reading=preset.reading, kernel=preset.kernel, **parts)


def apply(name: str, preset: Preset, length: int = 0) -> Preset:
    """Applies the method `name` to the preset, at its token budget, for documents of `length`
    tokens. Raises UsageError: no such method. PluginError: its recipe fails, or sets what it may
    not. PresetError: a setting is wrong, or it takes more tokens."""
    from esa_cli.methods.plugin_loading import load_installed

    load_installed()
    recipe = registry.find_recipe(name)
    base = registry.Base(preset.window, preset.context, preset.position, length)
    # A published method attends to the last tokens before the question whatever the preset says.
    plain = from_rows(merge(preset.model_dump(exclude={"name"}), {"window": {"ending": None}}))
    laid = merge(plain, _settings(recipe, base))
    if recipe.full or laid["selector"]["name"] == "full":
        # With `local`, the keys of a text would depend on I and L alone.
        laid["reading"] = "select"
    changed = validated(preset.name, laid)
    if not recipe.full and changed.window.budget != preset.window.budget:
        raise PresetError(
            f"method {name!r} must take the preset's {preset.window.budget} tokens, got "
            f"{changed.window.budget}",
            "a recipe must keep initial + selected + local",
        )
    return changed


def _settings(recipe: registry.Recipe, base: registry.Base) -> Mapping[str, Any]:
    """The settings that a recipe returns. Raises PluginError: it fails, or may not set one."""
    which = f"the recipe of method {recipe.name!r}"
    may_set = f"a recipe may set {', '.join(registry.LAID)}"
    try:
        settings = recipe.settings(base)
    except (EsaError, *NOT_BLAMED):
        raise
    except BaseException as error:
        raise PluginError(
            f"{which} fails: {type(error).__name__}: {error}", f"it is defined in {recipe.origin}"
        ) from error
    if not isinstance(settings, Mapping):
        raise PluginError(f"{which} must return a mapping, got {settings!r}", may_set)
    if wrong := [key for key in settings if key not in registry.LAID]:
        raise PluginError(f"{which} must not set {wrong[0]!r}", may_set)
    return settings


def compared(name: str, preset: Preset, length: int = 0) -> Preset:
    """Applies the method `name` of a comparison; `preset` and `text` change nothing. Raises as
    `apply`, and UsageError: `text` of a preset that answers from the KV cache."""
    if name not in (AS_IS, FROM_TEXT):
        return apply(name, preset, length)
    if name == FROM_TEXT and preset.answer.source != "text":
        raise UsageError(
            f"method {name!r} must be with a preset that answers from text, got "
            f"{preset.name} with answer.from = {preset.answer.source}",
            "add --set answer.from=text, or name another method",
        )
    return preset


def compared_by_default(preset: Preset) -> tuple[str, ...]:
    """Names of the methods that a comparison has by default."""
    return (AS_IS, FROM_TEXT) if preset.answer.source == "text" else (AS_IS,)


def for_length(name: str, preset: Preset, length: int) -> Preset:
    """Applies a method for documents of `length` tokens; 0: the length is unknown. Raises as
    `apply`, and UsageError: the method needs a length."""
    if not length and stretches(name, preset):
        raise UsageError(
            f"method {name!r} needs the length of its documents, which is unknown here",
            f"use `esa ask DOC... QUESTION --method {name}`; in Python the argument `length`",
        )
    return apply(name, preset, length)


def stretches(name: str, preset: Preset) -> bool:
    """Whether a method depends on the length of documents, as NTK and YaRN do. Raises UsageError:
    no such method. PresetError: a setting is wrong."""
    return apply(name, preset) != apply(name, preset, 1000 * preset.context)


HEADS_HINT = "use `esa heads` to find this model's heads, or set score.heads=[]"


def check_model(preset: Preset, config: Mapping[str, Any], model: str) -> None:
    """Raises PresetError if the preset's `context` is beyond the window of a model with this
    `config`, or `score.heads` beyond its layers and heads."""
    longest = config.get("max_position_embeddings")
    if longest and preset.context > longest:
        raise PresetError(
            f"preset {preset.name}: context must be at most the {longest} tokens that {model} "
            f"was trained on, got {preset.context}",
            f"use --set context={longest}, and window sizes that fit in it",
        )
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not layers or not heads:
        return
    for pair in preset.score.get("heads") or ():
        match pair:  # the score refuses all else
            case [int(layer), int(head)] if layer >= layers or head >= heads:
                raise PresetError(
                    f"preset {preset.name}: score.heads must be below the {layers} layers and "
                    f"{heads} heads of {model}, got [{layer}, {head}]",
                    HEADS_HINT,
                )


def check_same_fit(old: Method | None, new: Method) -> None:
    """Raises PresetError if a method needs reduced keys of another compressor than that of the
    prefill by `old` (None: unknown)."""
    if old is None or not new.score.features:
        return
    if new.fitting != old.fitting or (new.compressor.fit_tokens and not old.score.features):
        raise PresetError(
            "the document must be prefilled for this compressor", "ingest it with this preset"
        )


def check_reduced_keys(document: PrefilledDocument, method: Method) -> None:
    """Raises PresetError if a prefilled document lacks the reduced keys by projections from a file;
    `check_same_fit` covers those that are fitted during prefill."""
    from esa_cli.attention.parts import Moments

    compressor = method.compressor
    if compressor.fit_tokens or not method.score.features or any(document.projections):
        return
    if compressor.fit(0, Moments()) is not None:
        raise PresetError(
            "the document must be prefilled with reduced keys, by which this preset scores",
            "ingest it with this preset",
        )


def check_fits_model(method: Method, model: Any) -> None:
    """Raises PresetError if a method's projections or heads are of another model."""
    from esa_cli.methods.voting import VoteScore
    from esa_cli.models.attachment.fingerprint import check_maps
    from esa_cli.models.files.families import FAMILIES, method_layers

    check_maps(method.compressor, model, method)
    last, layers = method.score.last_layer, model.config.num_hidden_layers
    if last is not None and last >= layers:
        raise PresetError(
            f"score.heads must name layers below the model's {layers}, got {last}", HEADS_HINT
        )
    if isinstance(method.score, VoteScore) and model.config.model_type in FAMILIES:
        running = method_layers(model.config)
        others = [layer for layer, _ in method.score.heads if layer not in running]
        if others:
            raise PresetError(
                "score.heads must be in layers that attend to all tokens "
                f"({', '.join(map(str, running))}), got layer {others[0]}",
                HEADS_HINT,
            )


def check_runs_on(method: Method, config: dict[str, Any], device: str, dtype: torch.dtype) -> None:
    """Checks that a method's kernel runs on a device of torch for a model with this `config`.
    Raises UsageError: it cannot run there. ModelError: `config` lacks a size."""
    from esa_cli.attention.kernels import choose
    from esa_cli.models.files.families import family_of, key_shape

    if method.kernel == "auto":
        return
    settings = SimpleNamespace(**config)
    try:
        _, dim = key_shape(settings)
    except (AttributeError, ArithmeticError, TypeError) as error:
        raise ModelError(f"the model's config.json must have all sizes, got {error}") from error
    cap = config.get(family_of(settings).attention_cap) or 0.0
    choose(torch.empty(1, 1, dim, dtype=dtype, device=device), method.kernel, cap)

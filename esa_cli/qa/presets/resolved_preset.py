"""From a preset to its method: parts are built, a recipe is laid over, both are held to a model.

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
"""The class that each kind of part is derived from, and members that are read in many places: one
that fails is found here."""
AS_IS = "preset"
"""The name of the method that is the preset itself."""
FROM_TEXT = "text"
"""The name, where methods are compared, of answers from text with the preset's settings `answer`;
`preset` is its selector over stored rows there."""


@dataclass(frozen=True)
class ResolvedPreset:
    """A preset and its method: `own`, or the preset's, which is built when it is first used. Raises
    PresetError then: a part, one of its settings, or the kernel does not hold."""

    preset: Preset
    own: Method | None = None

    @cached_property
    def method(self) -> Method:
        return self.own or build_method(self.preset)


def resolve(
    preset: str | Preset | ResolvedPreset = DEFAULT,
    overrides: Sequence[str] = (),
    method: str | None = None,
    length: int = 0,
) -> ResolvedPreset:
    """The preset with its method, which is built now where answers come from rows.

    Args:
        preset: a preset, or its name or path with `overrides`, `key.path=value` texts. method: a
            whole method over it, by its name in `esa methods`. length: tokens of the documents, for
            methods that are made for one length.

    Raises UsageError: no such method, or it needs a length. PresetError: a setting does not hold.
    """
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
    """The preset's method. Raises PresetError: a part, one of its settings, or the kernel does not
    hold."""
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
    """The preset with the method `name` at its token budget, for documents of `length` tokens, to
    which some position encodings stretch. Raises UsageError: no such method. PluginError: its
    recipe fails, or gives what none may set. PresetError: its settings do not hold, or it takes
    more tokens."""

    from esa_cli.methods.plugin_loading import load_installed

    load_installed()
    recipe = registry.find_recipe(name)
    base = registry.Base(preset.window, preset.context, preset.position, length)
    # A published method sees the last tokens before the current ones, whatever a preset does, and
    # answers from the rows it selects.
    plain = from_rows(merge(preset.model_dump(exclude={"name"}), {"window": {"ending": None}}))
    laid = merge(plain, _settings(recipe, base))
    if recipe.full or laid["selector"]["name"] == "full":
        # With I and L alone, the text's keys would depend on nothing before them.
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
    """What a recipe returns: a mapping of settings that a recipe may set."""
    which = f"the recipe of method {recipe.name!r}"
    may_set = f"it may set {', '.join(registry.LAID)}"
    try:
        settings = recipe.settings(base)
    except (EsaError, *NOT_BLAMED):
        raise
    except BaseException as error:
        raise PluginError(
            f"{which} fails: {type(error).__name__}: {error}", f"it is defined in {recipe.origin}"
        ) from error
    if not isinstance(settings, Mapping):
        raise PluginError(f"{which} gives no mapping but {settings!r}", may_set)
    if wrong := [key for key in settings if key not in registry.LAID]:
        hint = f"{nearest(str(wrong[0]), registry.LAID)}; the rest is the preset's"
        raise PluginError(f"{which} sets {wrong[0]!r}", hint)
    return settings


def compared(name: str, preset: Preset, length: int = 0) -> Preset:
    """As `apply`; the preset as it is for the names `preset` and `text`. Raises as `apply`, and
    UsageError: `text` of a preset that answers from rows."""
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
    """The methods of a comparison that names none."""
    return (AS_IS, FROM_TEXT) if preset.answer.source == "text" else (AS_IS,)


def for_length(name: str, preset: Preset, length: int) -> Preset:
    """As `apply`, but a method that is made for one length is refused where none is known (0).
    Raises UsageError: it is refused, or there is no such method. PluginError, PresetError."""
    if not length and stretches(name, preset):
        raise UsageError(
            f"method {name!r} is made for the length of its documents, which is not known here",
            f"`esa ask DOC... QUESTION --method {name}` measures them first; in Python give it as "
            "`length`",
        )
    return apply(name, preset, length)


def stretches(name: str, preset: Preset) -> bool:
    """True if the method is another one for a longer document, as NTK and YaRN are. Raises
    UsageError: no such method. PresetError: its settings do not hold."""
    return apply(name, preset) != apply(name, preset, 1000 * preset.context)


HEADS_HINT = "they are another model's: `esa heads` finds its own, or set score.heads=[]"


def check_model(preset: Preset, config: Mapping[str, Any], model: str) -> None:
    """Raises PresetError where the preset's `context` is beyond the window of a model, or
    `score.heads` beyond its layers and heads; config: its config.json."""
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
        match pair:  # whatever else it may be is refused where the score is built
            case [int(layer), int(head)] if layer >= layers or head >= heads:
                raise PresetError(
                    f"preset {preset.name}: score.heads must be below the {layers} layers and "
                    f"{heads} heads of {model}, got [{layer}, {head}]",
                    HEADS_HINT,
                )


def check_same_fit(old: Method | None, new: Method) -> None:
    """Raises PresetError where a prefill by one method (None: not known) cannot be asked by another
    one, which needs reduced keys of another compressor."""
    if old is None or not new.score.features:
        return
    if new.fitting != old.fitting or (new.compressor.fit_tokens and not old.score.features):
        raise PresetError(
            "the document must be prefilled for this compressor", "read it again with this preset"
        )


def check_reduced_keys(document: PrefilledDocument, method: Method) -> None:
    """Raises PresetError where a prefilled document lacks the reduced keys of maps from a file by
    which a method scores: nothing writes to its stores any more. Keys that are fitted during
    prefill are covered by `check_same_fit`."""
    from esa_cli.attention.parts import Moments

    compressor = method.compressor
    if compressor.fit_tokens or not method.score.features or any(document.projections):
        return
    if compressor.fit(0, Moments()) is not None:
        raise PresetError(
            "the document was prefilled without reduced keys, by which this preset scores",
            "read it again with this preset",
        )


def check_fits_model(method: Method, model: Any) -> None:
    """Raises PresetError where a method has maps or heads that were found for another model."""
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
    """Checks that the kernel which a method names runs on a device of torch, for the model of a
    config.json. Raises UsageError: it cannot run there, or computes no soft cap of the model's.
    ModelError: config.json lacks a size."""
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

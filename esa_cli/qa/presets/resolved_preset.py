"""Builds a preset's method; checks that it runs, and its KV caches can be stored and joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch

from esa_cli.attention import parts
from esa_cli.attention.compression import Linear
from esa_cli.attention.method import Method
from esa_cli.attention.step import Projection
from esa_cli.errors import NOT_BLAMED, EsaError, ModelError, PluginError, PresetError, UsageError
from esa_cli.methods import registry
from esa_cli.models.files import families
from esa_cli.qa.presets.preset import (
    Preset,
    merge_settings,
    switch_to_kv_cache_answers,
    validate_preset_settings,
)
from esa_cli.storage.library import SEGMENT
from esa_cli.storage.memory_store import PrefilledDocument
from esa_cli.system.registry import suggest_name

MEMBERS: dict[str, tuple[type, tuple[str, ...]]] = {
    "selector": (parts.Selector, ("sums_layers", "surveys", "is_observer", "window_size")),
    "score": (parts.Score, ("features", "rotates", "last_layer")),
    "compressor": (parts.Compressor, ("fit_tokens", "files")),
    "position": (parts.PositionEncoding, ("distance", "max_distance")),
}
"""The base class of each kind of method part, and properties that are evaluated once as a test."""
AS_IS = "preset"
"""The name of the preset's own method in comparisons."""
FROM_TEXT = "text"
"""The name of answers from text in comparisons."""


@dataclass(frozen=True)
class ResolvedPreset:
    """A preset with its attention method, which is built on first use if `given_method` is None."""

    preset: Preset
    given_method: Method | None = None

    @cached_property
    def method(self) -> Method:
        """The preset's method. Raises PresetError: a setting or the kernel is invalid."""
        return self.given_method or build_attention_method(self.preset)


def resolve_preset(
    preset: Preset | ResolvedPreset, method: str | None = None, document_tokens: int = 0
) -> ResolvedPreset:
    """Resolves a preset, in which a named `method` may replace the preset's. Builds the method at
    once if answers come from the KV cache.

    Raises UsageError: no such method, or it needs `document_tokens`. PresetError."""
    if isinstance(preset, ResolvedPreset):
        return preset
    if method is not None:
        preset = replace_method_for_length(method, preset, document_tokens)
    resolved = ResolvedPreset(preset)
    if preset.answer.needs_kv_cache:
        _ = resolved.method
    return resolved


def _build_method_component(part_kind: str, part_settings: dict[str, Any]) -> Any:
    part, (base, members) = registry.build_method_part(part_kind, part_settings), MEMBERS[part_kind]
    name = type(part).__name__
    if not isinstance(part, base):
        wrong = f"{part_kind} {part_settings['name']!r} must be derived from {base.__name__}"
        hint = f"write `class {name}({base.__name__}):`, see docs/plugins.md"
        raise PluginError(f"{wrong}, got class {name}", hint)
    with parts.report_plugin_errors({part_kind: part}):
        for member in members:
            getattr(part, member)
    return part


def build_attention_method(preset: Preset) -> Method:
    """Builds a preset's method. Raises PresetError: a part, a setting or the kernel is invalid."""
    from esa_cli.attention.kernels import KERNELS
    from esa_cli.methods.plugin_loading import load_installed_plugins

    load_installed_plugins()
    if preset.kernel != "auto" and preset.kernel not in KERNELS:
        hint = suggest_name(preset.kernel, ["auto", *KERNELS])
        raise PresetError(f"unknown kernel {preset.kernel!r}", hint)
    built = {kind: _build_method_component(kind, getattr(preset, kind)) for kind in MEMBERS}
    if not built["selector"].sums_layers:
        with parts.report_plugin_errors(built):
            built["score"] = built["score"].for_single_layers()
    distance = built["position"].distance
    if not isinstance(distance, int) or distance < 0:
        wrong = f"position.distance must be a whole number from 0, got {distance!r}"
        raise PresetError(wrong, "see `esa presets show`")
    if preset.position["name"] == "esa" and distance >= preset.context:
        raise PresetError(
            f"position.distance must be below the model's window of {preset.context}, "
            f"got {distance}",
            "set position.distance to about three quarters of the window; see benchmarks/NOTES.md",
        )
    return Method(window=preset.window, reading=preset.reading, kernel=preset.kernel, **built)


def replace_method(method_name: str, preset: Preset, document_tokens: int = 0) -> Preset:
    """Returns the preset with its method replaced by a named method of the same token budget.
    Raises UsageError: the method is unknown. PluginError: its recipe is wrong. PresetError."""
    from esa_cli.methods.plugin_loading import load_installed_plugins

    load_installed_plugins()
    recipe = registry.find_method(method_name)
    base = registry.PresetSizes(preset.window, preset.context, preset.position, document_tokens)
    # A published method attends to the last tokens before the question whatever the preset says.
    plain = merge_settings(preset.model_dump(exclude={"name"}), {"window": {"ending": None}})
    plain = switch_to_kv_cache_answers(plain)
    laid = merge_settings(plain, _run_recipe(recipe, base))
    if recipe.full or laid["selector"]["name"] == "full":
        # With `local`, the keys of a text would depend on I and L alone.
        laid["reading"] = "select"
    changed = validate_preset_settings(preset.name, laid)
    if not recipe.full and changed.window.budget != preset.window.budget:
        raise PresetError(
            f"method {method_name!r} must attend to the preset's {preset.window.budget} "
            f"tokens, got {changed.window.budget}",
            "keep window.initial + window.selected + window.local in the recipe as in the preset",
        )
    return changed


def _run_recipe(recipe: registry.MethodRecipe, sizes: registry.PresetSizes) -> Mapping[str, Any]:
    this_recipe = f"the recipe of method {recipe.name!r}"
    may_set = f"a recipe may set {', '.join(registry.LAID)}"
    try:
        settings = recipe.settings(sizes)
    except (EsaError, *NOT_BLAMED):
        raise
    except BaseException as error:
        wrong = f"{this_recipe} fails: {type(error).__name__}: {error}"
        raise PluginError(wrong, f"correct the recipe in {recipe.origin}") from error
    if not isinstance(settings, Mapping):
        raise PluginError(f"{this_recipe} must return a mapping, got {settings!r}", may_set)
    if others := [key for key in settings if key not in registry.LAID]:
        raise PluginError(f"{this_recipe} must not set {others[0]!r}", may_set)
    return settings


def set_method_to_compare(method_name: str, preset: Preset, document_tokens: int = 0) -> Preset:
    """Returns the preset with its method replaced, or unchanged for the names `preset` and `text`.
    Raises the errors of `replace_method`, and UsageError: the preset does not answer from text."""
    if method_name not in (AS_IS, FROM_TEXT):
        return replace_method(method_name, preset, document_tokens)
    if method_name == FROM_TEXT and preset.answer.source != "text":
        raise UsageError(
            f"method {method_name!r} needs a preset that answers from text, got "
            f"{preset.name} with answer.from = {preset.answer.source}",
            "add --set answer.from=text, or name another method",
        )
    return preset


def replace_method_for_length(method_name: str, preset: Preset, document_tokens: int) -> Preset:
    """Returns the preset with its method replaced; a `document_tokens` of 0 means unknown length.
    Raises the errors of `replace_method`, and UsageError: the method needs a length."""
    if not document_tokens and method_needs_document_length(method_name, preset):
        wrong = f"method {method_name!r} needs the length of its documents, which is unknown"
        hint = f"use `esa ask DOC... QUESTION --method {method_name}`, or set `length` in Python"
        raise UsageError(wrong, hint)
    return replace_method(method_name, preset, document_tokens)


def method_needs_document_length(method_name: str, preset: Preset) -> bool:
    """Whether a method depends on the length of documents, as NTK and YaRN do. Raises UsageError:
    the method is unknown. PresetError: a setting is invalid."""
    longest = 1000 * preset.context
    return replace_method(method_name, preset) != replace_method(method_name, preset, longest)


HEADS_HINT = "use `esa heads` to find this model's heads, or set score.heads=[]"


def check_preset_fits_model(preset: Preset, config: Mapping[str, Any], model_name: str) -> None:
    """Raises PresetError if `context` or `score.heads` exceed the sizes in a config.json."""
    longest = config.get("max_position_embeddings")
    if longest and preset.context > longest:
        raise PresetError(
            f"preset {preset.name}: context must be at most the {longest} tokens that {model_name} "
            f"was trained on, got {preset.context}",
            f"use --set context={longest}, and window sizes that fit into it",
        )
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    if not layers or not heads:
        return
    for pair in preset.score.get("heads") or ():
        match pair:  # the score refuses all else
            case [int(layer), int(head)] if layer >= layers or head >= heads:
                raise PresetError(
                    f"preset {preset.name}: score.heads must be below the {layers} layers and "
                    f"{heads} heads of {model_name}, got [{layer}, {head}]",
                    HEADS_HINT,
                )


def check_same_compressor(prefill_method: Method | None, new_method: Method) -> None:
    """Raises PresetError if a method needs another compressor than the prefill's, if known."""
    if prefill_method is None or not new_method.score.features:
        return
    if new_method.get_reduced_key_settings() != prefill_method.get_reduced_key_settings() or (
        new_method.compressor.fit_tokens and not prefill_method.score.features
    ):
        wrong = "the document must be prefilled with the compressor of this preset"
        raise PresetError(wrong, "ingest the document again with this preset")


def check_document_has_reduced_keys(document: PrefilledDocument, method: Method) -> None:
    """Raises PresetError if a document lacks the reduced keys of a method's projections."""
    compressor = method.compressor
    if compressor.fit_tokens or not method.score.features or any(document.projections):
        return
    if compressor.fit(0, parts.Moments()) is not None:
        raise PresetError(
            "the document must be prefilled with reduced keys, which this preset needs for scores",
            "ingest the document again with this preset",
        )


def check_method_fits_model(method: Method, model: Any) -> None:
    """Raises PresetError if a method's projections or heads belong to another model."""
    from esa_cli.methods.voting import VoteScore
    from esa_cli.models.attachment.fingerprint import check_compressor_fits

    check_compressor_fits(method.compressor, model, method)
    last, layers = method.score.last_layer, model.config.num_hidden_layers
    if last is not None and last >= layers:
        wrong = f"score.heads must name layers below the model's {layers}, got {last}"
        raise PresetError(wrong, HEADS_HINT)
    if isinstance(method.score, VoteScore) and model.config.model_type in families.FAMILIES:
        running = families.list_full_attention_layers(model.config)
        if others := [layer for layer, _ in method.score.heads if layer not in running]:
            raise PresetError(
                "score.heads must be in layers that attend to all tokens "
                f"({', '.join(map(str, running))}), got layer {others[0]}",
                HEADS_HINT,
            )


def check_kernel_runs(
    method: Method, model_config: dict[str, Any], device: str, dtype: torch.dtype
) -> None:
    """Raises UsageError: the kernel cannot run for this model. ModelError: a size is missing."""
    from esa_cli.attention.kernels import choose_kernel_name

    if method.kernel == "auto":
        return
    settings = SimpleNamespace(**model_config)
    try:
        _, dim = families.get_kv_head_shape(settings)
    except (AttributeError, ArithmeticError, TypeError) as error:
        raise ModelError(f"config.json must have the sizes of all layers, got {error}") from error
    cap = model_config.get(families.get_model_family(settings).attention_cap) or 0.0
    choose_kernel_name(torch.empty(1, 1, dim, dtype=dtype, device=device), method.kernel, cap)


def check_can_join_documents(
    preset: ResolvedPreset, model_type: str, has_recurrent_layers: bool
) -> None:
    """Raises UsageError if the KV caches of several documents cannot be joined for a question."""
    if has_recurrent_layers:
        raise UsageError(
            f"layers of this {model_type} model keep a state, and the states of several documents "
            "cannot be joined",
            "ask about one document, or use the setting answer.from=text",
        )
    if preset.method.selector.is_observer:
        wrong = f"selector {preset.preset.selector['name']} works with one document only"
        raise UsageError(wrong, "ask about one document, or use another selector")


def explain_why_not_storable(method: Method) -> str:
    """Returns why KV caches of a method cannot be stored in the library, or an empty text."""
    if method.selector.is_observer:
        return "its selector gathers data during the prefill, which is not stored"
    if kind := registry.find_kind_without_source_file(method):
        return f"its {kind} must be defined in a file, by which it is recognised"
    tokens = method.compressor.fit_tokens if method.score.features else 0
    if tokens > SEGMENT:  # projections are stored with the first segment
        return f"its compressor fits on {tokens:,} tokens; the library allows {SEGMENT:,}"
    return ""


def find_reduced_key_widths(
    compressor: parts.Compressor, layer_count: int, whole_key_width: int, uses_reduced_keys: bool
) -> Sequence[int]:
    """Returns the dimension of reduced keys in each layer; empty if scores use no reduced keys.
    Raises PresetError: the compressor is of another model."""
    if not uses_reduced_keys:
        return ()
    if compressor.fit_tokens:
        return (compressor.stored_rank(whole_key_width),) * layer_count
    key = torch.zeros(1, whole_key_width)
    fits = [compressor.fit(layer, parts.Moments()) for layer in range(layer_count)]
    try:
        return tuple(0 if fit is None else fit.keys(key).shape[1] for fit in fits)
    except RuntimeError as error:
        wrong = f"the compressor must fit this model's keys of {whole_key_width} dimensions"
        raise PresetError(wrong, "use a compressor that was made for this model") from error


def check_projections_storable(projections: Sequence[Projection | None]) -> list[Linear | None]:
    """Returns the projections if the library can store them all. Raises UsageError."""
    for projection in projections:
        if projection is not None and not isinstance(projection, Linear):
            raise UsageError(
                f"the library cannot store projections of class {type(projection).__name__}",
                "either do not store documents, or use a compressor with `esa_cli.methods.Linear`",
            )
    return list(projections)  # type: ignore[arg-type]

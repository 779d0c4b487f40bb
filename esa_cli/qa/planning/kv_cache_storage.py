"""Checks whether KV caches can be stored in the library, and whether they can be joined."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from esa_cli.attention.compression import Linear
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Compressor, Moments
from esa_cli.attention.step import Projection
from esa_cli.errors import PresetError, UsageError
from esa_cli.methods.registry import find_kind_without_source_file
from esa_cli.qa.presets.resolved_preset import ResolvedPreset
from esa_cli.storage.library import SEGMENT


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
    if kind := find_kind_without_source_file(method):
        return f"its {kind} must be defined in a file, by which it is recognised"
    tokens = method.compressor.fit_tokens if method.score.features else 0
    if tokens > SEGMENT:  # projections are stored with the first segment
        return f"its compressor fits on {tokens:,} tokens; the library allows {SEGMENT:,}"
    return ""


def find_reduced_key_widths(
    compressor: Compressor, layer_count: int, whole_key_width: int, uses_reduced_keys: bool = True
) -> Sequence[int]:
    """Returns the dimension of reduced keys in each layer; empty if scores use no reduced keys.
    Raises PresetError: the compressor is of another model."""
    if not uses_reduced_keys:
        return ()
    if compressor.fit_tokens:
        return (compressor.stored_rank(whole_key_width),) * layer_count
    key = torch.zeros(1, whole_key_width)
    fits = [compressor.fit(layer, Moments()) for layer in range(layer_count)]
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

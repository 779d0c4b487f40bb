"""Storage of KV caches in the library: which can be stored or joined, and their reduced keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from esa_cli.errors import PresetError, UsageError
from esa_cli.methods.registry import find_kind_without_source_file
from esa_cli.storage.library import SEGMENT

if TYPE_CHECKING:
    from esa_cli.attention.compression import Linear
    from esa_cli.attention.method import Method
    from esa_cli.attention.parts import Compressor
    from esa_cli.attention.step import Projection
    from esa_cli.qa.presets.resolved_preset import ResolvedPreset


def check_states_can_join(model_type: str, has_state_layers: bool) -> None:
    """Raises UsageError if layers of the model keep a state, because the states of several
    documents cannot be joined."""
    if has_state_layers:
        raise UsageError(
            f"layers of this {model_type} model keep a state, and the states of several documents "
            "cannot be joined",
            "ask about one document, or use the setting answer.from=text",
        )


def check_joint_question(resolved: ResolvedPreset, model_type: str, has_state_layers: bool) -> None:
    """Raises UsageError if one question cannot be asked about several documents."""
    if not resolved.preset.answer.needs_kv_cache:
        return
    check_states_can_join(model_type, has_state_layers)
    if resolved.method.selector.is_observer:
        raise UsageError(
            f"selector {resolved.preset.selector['name']} works with one document only",
            "ask about one document, or use another selector",
        )


def find_storage_hindrance(method: Method) -> str:
    """Returns the reason why prefilled documents cannot be stored, or an empty text if they can be.
    The first segment is stored with the projections that were fitted on its tokens."""
    if method.selector.is_observer:
        return "its selector gathers data during the prefill, which is not stored"
    if kind := find_kind_without_source_file(method):
        return f"its {kind} must be defined in a file, by which it is recognised"
    tokens = method.compressor.fit_tokens if method.score.features else 0
    if tokens > SEGMENT:
        return f"its compressor fits on {tokens:,} tokens; the library allows {SEGMENT:,}"
    return ""


def find_reduced_key_widths(
    compressor: Compressor, layers: int, folded: int, uses_reduced_keys: bool = True
) -> Sequence[int]:
    """Returns R, the dimension of reduced keys, for each layer; empty if the score uses no reduced
    keys. Whole keys have `folded` = G * D numbers, with G key heads of dimension D. Raises
    PresetError: the compressor is not for a model of this shape."""
    from esa_cli.attention.parts import Moments

    if not uses_reduced_keys:
        return ()
    if compressor.fit_tokens:
        return (compressor.stored_rank(folded),) * layers
    fits = [compressor.fit(layer, Moments()) for layer in range(layers)]
    try:
        return tuple(
            0 if fit is None else fit.keys(torch.zeros(1, folded)).shape[1] for fit in fits
        )
    except RuntimeError as error:
        raise PresetError(
            f"the compressor does not fit this model: folded keys have {folded} dimensions",
            "use a compressor that was made for this model",
        ) from error


def check_storable(projections: Sequence[Projection | None]) -> list[Linear | None]:
    """Checks that the library can store projections, and returns them. Raises UsageError."""
    from esa_cli.attention.compression import Linear

    for projection in projections:
        if projection is not None and not isinstance(projection, Linear):
            raise UsageError(
                f"the library cannot store projections of class {type(projection).__name__}",
                "do not store the document, or use a compressor that fits `esa_cli.methods.Linear`",
            )
    return list(projections)  # type: ignore[arg-type]

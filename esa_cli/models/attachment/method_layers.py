"""Which layers of a model run a method: those that attend to all tokens. Importing this costs
nothing."""

from __future__ import annotations

from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.attachment.supported_families import (
    IDLE_TYPES,
    INSTEAD,
    MIXED_TYPES,
    STATE_TYPES,
    layer_types,
)

FULL_TYPES = ("full_attention", *MIXED_TYPES)
ATTENTION_TYPES = (*FULL_TYPES, "sliding_attention")


def layer_windows(config: Any) -> list[int | None]:
    """The window of each layer; None where it attends to all tokens, or has no attention.

    A window that no text within the model's limit is longer than counts as none.

    Raises:
        ModelError: a layer is of another type, or none attends to all tokens.
    """
    types, window = layer_types(config), getattr(config, "sliding_window", None)
    if other := sorted(set(types) - {*ATTENTION_TYPES, *STATE_TYPES, *IDLE_TYPES}):
        raise ModelError(
            f"this {config.model_type} model has layers of type {', '.join(other)}; ESA needs "
            "full or sliding attention",
            INSTEAD,
        )
    if not set(types) & {*ATTENTION_TYPES}:
        raise ModelError(
            f"no layer of this {config.model_type} model has attention, so that nothing can be "
            "selected",
            INSTEAD,
        )
    longest = getattr(config, "max_position_embeddings", None)
    if window is None or (longest is not None and window >= longest):
        return [None] * len(types)
    windows = [window if one == "sliding_attention" else None for one in types]
    if {*FULL_TYPES}.isdisjoint(types):
        raise ModelError(
            f"all layers of this {config.model_type} model attend to a window of {window} tokens "
            "only, so that nothing can be selected",
            INSTEAD,
        )
    return windows


def method_layers(config: Any) -> list[int]:
    """Indices of the layers that run a method. Raises ModelError: as `layer_windows`."""
    each = zip(layer_types(config), layer_windows(config), strict=True)
    return [
        i for i, (kind, window) in enumerate(each) if kind in ATTENTION_TYPES and window is None
    ]

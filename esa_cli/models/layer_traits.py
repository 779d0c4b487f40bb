"""What distinguishes each layer's attention, from the family's entry and a model's configuration.

The one place that reads `supported_families.py` for attention: `attach` asks here whether a model
is supported, for each layer's rotary embedding and factor, and for what replaces the rotary module.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from esa_cli.attention.rope import Angles, NoRope, Rope
from esa_cli.errors import ModelError
from esa_cli.models.supported_families import Family, check_type, family_of

STATIC_ROPE = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class LayerTraits:
    """One layer's rotary embedding and its factor of q . k; equal layers share the embedding."""

    rope: Rope
    scale: float


def check_supported(config: Any) -> None:
    """Raises ModelError with the reason when a model of this configuration cannot be attached."""
    kind = getattr(config, "model_type", "unknown")
    check_type(kind)
    _check_full_attention(config, family_of(config))
    rope = _rope_type(config)
    if rope not in STATIC_ROPE:
        raise ModelError(
            f"rotary embedding of type {rope!r} changes with the input's length, "
            "so keys cannot be cached once for all",
            f"supported: {', '.join(STATIC_ROPE)}",
        )


def _rope_type(config: Any) -> str:
    return str((getattr(config, "rope_parameters", None) or {}).get("rope_type", "default"))


def _check_full_attention(config: Any, family: Family) -> None:
    """Refuses layers with a window that a text within the model's limit can be longer than."""
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if family.slides:
        layers = {"full_attention" if window is None else "sliding_attention"}
    longest = getattr(config, "max_position_embeddings", None)
    if window is not None and longest is not None and window >= longest:
        layers.discard("sliding_attention")
    if other := sorted(layers - {"full_attention"}):
        raise ModelError(
            f"this {config.model_type} model uses {', '.join(other)} "
            f"(window {window}); ESA replaces full attention only",
            "use a model without sliding windows (Mistral from v0.2 on, Qwen2/3 by default)",
        )


def layer_traits(config: Any, rotary: nn.Module, modules: list[Any]) -> list[LayerTraits]:
    """The traits of each layer.

    Args:
        rotary: the model's rotary module. modules: the attention module of each layer.

    Raises:
        ModelError: fewer dimensions rotate than in models of this family.
    """
    family = family_of(config)
    rope = _rope(config, family, rotary)
    width, dim = 2 * rope.frequencies[0].shape[0], int(modules[0].head_dim)
    if width != dim and not family.partial:
        raise ModelError(
            f"all {dim} dimensions of a head of this {config.model_type} model must rotate, "
            f"got {width}",
            "use a model of another family",
        )
    still = NoRope()
    rotating = getattr(config, family.rotating) if family.rotating else [1] * len(modules)
    return [
        LayerTraits(rope if rotates else still, float(module.scaling))
        for rotates, module in zip(rotating, modules, strict=True)
    ]


def _rope(config: Any, family: Family, rotary: Any) -> Rope:
    """The rotary embedding of a model's rotating layers, the same for every length."""
    if _rope_type(config) == "longrope":
        return Rope(Angles(*_long_frequencies(config, rotary)), pairs=family.pairs)
    if family.pairs == "half":
        return Rope(rotary)
    # Some modules compute the angles of pairs side by side; `Rope` arranges them itself.
    return Rope(Angles(rotary.inv_freq, rotary.attention_scaling), pairs=family.pairs)


def _long_frequencies(config: Any, rotary: Any) -> tuple[Tensor, float]:
    """The set for long texts, of the two between which transformers switches at
    `original_max_position_embeddings`: cached keys are rotated by one set alone."""
    original = config.rope_parameters["original_max_position_embeddings"]
    device = rotary.inv_freq.device
    inverse, factor = ROPE_INIT_FUNCTIONS["longrope"](config, device, seq_len=original + 1)
    return inverse, float(factor)


def keep_cache(config: Any) -> None:
    """Changes an attached model's copy of its configuration, so that `generate` does not drop the
    cache where stock attention would change its rotary embedding."""
    if family_of(config).switches:
        config.original_max_position_embeddings = sys.maxsize

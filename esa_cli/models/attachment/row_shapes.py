"""The sizes of each layer's rows, and which layers read the rows of another one. Importing this
costs nothing."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

from esa_cli.models.attachment.supported_families import family_of, layer_types

FULL_DIM = 512
"""Of key heads in full layers of Gemma 4, where `global_head_dim` is not said."""


def latent_block(config: Any) -> int:
    """Numbers of a row that share a scale in 8 bits where a model keeps latents, else 0. Rotary
    parts are not normed as latents are, and may be many times as large."""
    if not family_of(config).latent:
        return 0
    return gcd(int(config.qk_rope_head_dim), int(config.kv_lora_rank))


def key_shape(config: Any) -> tuple[int, int]:
    """G and D of stored keys, of the layers with full attention; in families with latents these are
    one head of rotary and latent dimensions. Raises AttributeError: the configuration lacks a
    size."""
    if family_of(config).latent:
        return 1, int(config.qk_rope_head_dim) + int(config.kv_lora_rank)
    if not family_of(config).wide:
        return _plain_shape(config)
    types = layer_types(config)
    return _wide_shape(config, types.index("full_attention"), True)


def layer_shapes(config: Any) -> list[tuple[int, int]]:
    """G and D of the keys that each layer attends to. Raises AttributeError: as `key_shape`."""
    types = layer_types(config)
    if not family_of(config).wide:
        return [key_shape(config)] * len(types)
    each = enumerate(types)
    return [_wide_shape(config, layer, one == "full_attention") for layer, one in each]


def key_shapes(config: Any) -> list[tuple[int, int]]:
    """G and D of each layer that keeps rows, where they are not alike; else []. Raises
    AttributeError: as `key_shape`."""
    readers = source_layers(config)
    found = [one for i, one in enumerate(layer_shapes(config)) if i not in readers]
    return found if len({*found}) > 1 else []


def source_layers(config: Any) -> dict[int, int]:
    """Index of each layer that keeps no rows and reads those of another one -> the index of that
    one: the last one of its type before all such layers. Raises ValueError: there is none."""
    count = int(getattr(config, family_of(config).sharing or "", None) or 0)
    if not count:
        return {}
    types = layer_types(config)
    first = len(types) - count
    own = types[: max(0, first)][::-1]
    return {i: first - 1 - own.index(types[i]) for i in range(first, len(types))}


def _plain_shape(config: Any) -> tuple[int, int]:
    heads = int(config.num_attention_heads)
    groups = getattr(config, "num_key_value_heads", None) or heads
    return int(groups), int(getattr(config, "head_dim", None) or config.hidden_size // heads)


def _wide_shape(config: Any, layer: int, full: bool) -> tuple[int, int]:
    """Of one layer, which may have full attention, as transformers has completed the configuration,
    as it writes it or as it is in config.json."""
    each = getattr(config, "per_layer_config", None)
    if each is not None and not isinstance(each, Mapping):
        return int(each[layer].num_key_value_heads), int(each[layer].head_dim)
    groups, dim = _plain_shape(config)
    if each is not None:
        own = {int(i): settings for i, settings in each.items()}.get(layer, {})
        return int(own.get("num_key_value_heads", groups)), int(own.get("head_dim", dim))
    if not full:
        return groups, dim
    wanted = getattr(config, "attention_k_eq_v", False)
    found = getattr(config, "num_global_key_value_heads", None) if wanted else None
    return int(found or groups), int(getattr(config, "global_head_dim", None) or FULL_DIM)

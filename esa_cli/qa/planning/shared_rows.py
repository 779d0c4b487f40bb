"""What layers have that are not like the others, in families whose last layers read the rows of
others (Gemma 3n, Gemma 4), from the settings in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from esa_cli.models.attachment.families import (
    key_shape,
    key_shapes,
    layer_shapes,
    layer_types,
    source_layers,
)
from esa_cli.qa.planning.mlp_sizes import mean_size


@dataclass(frozen=True)
class SharedRows:
    """Differences from a model whose layers are all like those with full attention.

    Args:
        saved: numbers of a token that are not kept, as rows of layers with a window are smaller.
        weights: of the layers that read others' rows, of what layers make of their own embeddings,
            and those that smaller heads have not, which count negative.
        embeddings: weights of embeddings that layers have for themselves.
        shapes: G and D of the layers that keep rows, where these are not alike.
    """

    saved: int = 0
    weights: int = 0
    embeddings: int = 0
    shapes: tuple[tuple[int, int], ...] = ()


ALIKE = SharedRows()


def shared_rows(config: Mapping[str, Any]) -> SharedRows:
    """Of a model with these settings, which has none where layers are alike. Raises AttributeError:
    a size is missing."""
    settings = SimpleNamespace(**config)
    readers, shapes = source_layers(settings), layer_shapes(settings)
    if not readers and len({*shapes}) == 1:
        return ALIKE
    hidden, heads = int(settings.hidden_size), int(settings.num_attention_heads)
    groups, dim = key_shape(settings)
    usual = hidden * dim * (2 * heads + 2 * groups)
    full = [kind == "full_attention" for kind in layer_types(settings)]
    weights = saved = 0
    for layer, (own, size) in enumerate(shapes):
        if layer in readers:
            weights += 2 * hidden * heads * size
        else:
            one = full[layer] and bool(config.get("attention_k_eq_v"))  # maps keys and values
            weights += hidden * size * (2 * heads + (1 if one else 2) * own) - usual
            saved += 2 * (groups * dim - own * size)
    if readers and config.get("use_double_wide_mlp"):
        weights += len(readers) * 3 * hidden * mean_size(config["intermediate_size"])
    table = int(config.get("vocab_size_per_layer_input") or 0) * len(shapes)
    width = int(config.get("hidden_size_per_layer_input") or 0)
    table, weights = table * width, weights + 3 * hidden * width * len(shapes)
    return SharedRows(saved, weights, table, tuple(key_shapes(settings)))

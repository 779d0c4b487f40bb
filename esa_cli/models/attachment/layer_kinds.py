"""What each layer of a model is, from the settings in its config.json, before it is loaded.

`layer_types` of `supported_families.py` reads a loaded configuration, in which transformers has
completed and renamed the settings. Importing this costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from esa_cli.models.attachment.supported_families import FAMILIES

Kind = Literal["attention", "reader", "state", "both", "idle"]

_STATE = ("conv", "linear_attention", "mamba", "recurrent")
_PATTERN: dict[str, Kind] = {"*": "attention", "M": "state", "-": "idle", "E": "idle"}
"""Letters of Nemotron's `hybrid_override_pattern`."""
_IDLE = ("mlp", "moe")
INTERVAL = 4
"""Every how many layers one of Qwen3-Next and Qwen3.5 has attention, where nothing is said."""


def layer_kinds(settings: Mapping[str, Any]) -> list[Kind]:
    """Whether each layer has attention, reads the keys of another one, keeps a state in place of
    keys, has attention and a state, or neither."""
    kinds, readers = _own_kinds(settings), 0
    family = FAMILIES.get(str(settings.get("model_type")))
    if family is not None and family.sharing:
        readers = int(settings.get(family.sharing) or 0)
    last: list[Kind] = ["reader"] * readers
    return kinds[: len(kinds) - readers] + last


def _own_kinds(settings: Mapping[str, Any]) -> list[Kind]:
    if pattern := settings.get("hybrid_override_pattern"):
        return [_PATTERN[letter] for letter in pattern]
    if types := settings.get("layer_types") or settings.get("layers_block_type"):
        return [_kind(one) for one in types]
    # LongCat-Flash counts as one layer what attends twice.
    count = int(settings.get("num_hidden_layers") or 2 * settings["num_layers"])
    if settings.get("model_type") == "falcon_h1":
        return ["both"] * count
    return ["attention" if has else "state" for has in _attending(settings, count)]


def _attending(settings: Mapping[str, Any], count: int) -> list[bool]:
    """Whether each layer has attention, by what families say that do not list the types."""
    if settings.get("model_type") in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        every = int(settings.get("full_attention_interval") or INTERVAL)
        return [(i + 1) % every == 0 for i in range(count)]
    named = settings.get("full_attn_idxs")
    return [named is None or i in named for i in range(count)]


def _kind(name: str) -> Kind:
    if name in _STATE:
        return "state"
    return "idle" if name in _IDLE else "attention"

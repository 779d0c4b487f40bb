"""Inner sizes of a model's MLPs and experts, from the settings in its config.json."""

from __future__ import annotations

from typing import Any

UNGATED = (
    "apertus",
    "arcee",
    "gpt_neox",
    "jais2",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "persimmon",
    "phi",
    "starcoder2",
)
"""Families whose MLPs have two maps; those of all others have a gate besides."""


def mlp_sizes(config: dict[str, Any]) -> tuple[int, int]:
    """Inner sizes of what a token passes in a layer, and of the layer's other experts.

    Raises KeyError: there is no inner size.
    """
    inner, experts = _plain(config), _experts(config)
    if not experts:
        return inner, 0
    width = first_of(config, "moe_intermediate_size") or inner
    used = min(experts, first_of(config, "num_experts_per_tok", "moe_k", "top_k_experts") or 1)
    shared = first_of(
        config,
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    )
    if config.get("enable_moe_block"):  # Gemma 4 has experts beside its MLP
        shared = inner
    several = first_of(config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return used * width + (shared or several * width), (experts - used) * width


def dense_mlps(config: dict[str, Any]) -> tuple[int, int]:
    """Layers of a model with experts that have an MLP in their place, and its inner size."""
    if not _experts(config):
        return 0, 0
    if (types := config.get("mlp_layer_types")) is not None:
        return types.count("dense"), _plain(config)
    first = first_of(config, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    return first or len(config.get("mlp_only_layers") or []), _plain(config)


def first_of(config: dict[str, Any], *names: str) -> int:
    """The first of these settings that is a number; 0: there is none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def mean_size(sizes: Any) -> int:
    """An inner size; where layers have one each (Gemma 3n), their mean."""
    return sum(sizes) // len(sizes) if isinstance(sizes, list) else int(sizes)


def _experts(config: dict[str, Any]) -> int:
    names = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    return first_of(config, *names)


def _plain(config: dict[str, Any]) -> int:
    """Of an MLP without experts. LFM2 names the size before two thirds are taken of it."""
    inner = mean_size(config.get("block_ff_dim") or config["intermediate_size"])
    if config.get("model_type") != "lfm2" or not config.get("block_auto_adjust_ff_dim", True):
        return inner
    inner = int(2 * inner / 3)
    if (factor := config.get("block_ffn_dim_multiplier", 1.0)) is None:
        return inner
    step = int(config.get("block_multiple_of") or 256)
    return -(-int(factor * inner) // step) * step

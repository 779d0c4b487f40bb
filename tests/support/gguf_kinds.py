"""What llama.cpp's converter writes of single families: experts, and latent attention."""

from __future__ import annotations

from typing import Any

import numpy

SIGMOID = 2
GATED = (
    "lfm2_moe", "glm4_moe", "deepseek_v3", "glm4_moe_lite", "minimax_m2", "dots1", "exaone_moe",
    "afmoe",
)  # fmt: skip
"""Models whose files say that experts are weighted by sigmoids."""
NAMES = {
    "leading_dense_block_count": (
        "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index"
    ),
    "expert_shared_count": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "expert_weights_scale": ("routed_scaling_factor", "route_scale"),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "interleave_moe_layer_step": ("moe_layer_interval",),
}  # fmt: skip
WITH_ALL = (
    "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "glm4_moe", "dots1", "exaone_moe", "afmoe",
    "ernie4_5_moe",
)  # fmt: skip
MIXED_BY_ALL = ("minimax_m2",)
"""Models without MLPs of another size than that of their experts."""


def expert_settings(config: Any) -> dict[str, Any]:
    """How experts are chosen, and how many layers come before those that have some."""
    kind, found = config.model_type, dict[str, Any]()
    if kind in GATED:
        found["expert_gating_func"] = SIGMOID
    if kind == "lfm2_moe":
        found["leading_dense_block_count"] = config.num_dense_layers
    if kind in WITH_ALL:
        for key, names in NAMES.items():
            values = [getattr(config, name) for name in names if hasattr(config, name)]
            found[key] = values[0] if values else None
    if kind == "glm4_moe_lite":
        found["leading_dense_block_count"] = config.mlp_layer_types.index("sparse")
    if kind in MIXED_BY_ALL:
        found["expert_feed_forward_length"] = config.intermediate_size
    if kind == "afmoe":
        found["expert_weights_norm"] = True
    if kind == "exaone_moe":
        shared = config.num_shared_experts * config.moe_intermediate_size
        slides = [one == "sliding_attention" for one in config.layer_types]
        found["expert_shared_feed_forward_length"] = shared
        found["attention.sliding_window_pattern"] = slides
    if kind == "ernie4_5_moe":
        found["expert_shared_feed_forward_length"] = 2 * config.moe_intermediate_size
    if kind == "youtu":
        found |= {
            "leading_dense_block_count": config.num_hidden_layers,
            "expert_shared_count": 0,
            "expert_feed_forward_length": config.intermediate_size,
        }
    return found


def mixer_settings(config: Any) -> dict[str, Any]:
    """Of Nemotron-H, whose layers are one thing each; none of other models."""
    if config.model_type != "nemotron_h":
        return {}
    types = config.layers_block_type
    mixed = "moe" in types
    size = config.moe_intermediate_size if mixed else config.intermediate_size
    experts = {
        "expert_shared_feed_forward_length": config.moe_shared_expert_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_group_count": config.n_group,
    }
    return {
        "attention.head_count_kv": [
            config.num_key_value_heads * (one == "full_attention") for one in types
        ],
        "feed_forward_length": [size * (one in ("moe", "mlp")) for one in types],
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
        "rope.scaling.finetuned": False,
        **(experts if mixed else dict.fromkeys(("expert_count", "expert_used_count"))),
    }


MIXERS = {
    "in_proj": "ssm_in", "out_proj": "ssm_out", "conv1d": "ssm_conv1d", "norm": "ssm_norm",
    "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output",
    "up_proj": "ffn_up", "down_proj": "ffn_down", "gate": "ffn_gate_inp",
    "shared_experts.up_proj": "ffn_up_shexp", "shared_experts.down_proj": "ffn_down_shexp",
    "fc1_latent_proj": "ffn_latent_down", "fc2_latent_proj": "ffn_latent_up",
}  # fmt: skip


def mixer(block: str, key: str, numbers: Any, config: Any) -> dict[str, Any]:
    """A weight of one of Nemotron-H's layers."""
    whole = {
        "dt_bias": ("ssm_dt.bias", numbers),
        "A_log": ("ssm_a", -numpy.exp(numbers)[:, None] if key == "A_log" else None),
        "D": ("ssm_d", numbers[:, None] if key == "D" else None),
        "conv1d.weight": ("ssm_conv1d.weight", numbers[:, 0] if numbers.ndim > 1 else None),
        "norm.weight": ("ssm_norm.weight", numbers.reshape(config.n_groups, -1)),
        "experts.up_proj": ("ffn_up_exps.weight", numbers),
        "experts.down_proj": ("ffn_down_exps.weight", numbers),
        "gate.e_score_correction_bias": ("exp_probs_b.bias", numbers),
    }
    if key in whole:
        name, changed = whole[key]
        return {f"{block}.{name}": changed}
    base, _, suffix = key.rpartition(".")
    return {f"{block}.{MIXERS[base]}.{suffix}": numbers}


def multiplied(key: str, numbers: Any, config: Any) -> Any:
    """A weight of Falcon-H1 with the factors of what it makes; others as they are."""
    if config.model_type != "falcon_h1":
        return numbers
    read, gate, down = config.attention_in_multiplier, *config.mlp_multipliers
    if ".in_proj." in key:
        state = config.mamba_n_groups * config.mamba_d_state
        sizes = (config.mamba_d_ssm, config.mamba_d_ssm, state, state, config.mamba_n_heads)
        each = numpy.repeat(config.ssm_multipliers, sizes).astype(numpy.float32)
        return numbers * config.ssm_in_multiplier * each[:, None]
    factors = {
        "embed_tokens": config.embedding_multiplier,
        "lm_head": config.lm_head_multiplier,
        "q_proj": read,
        "k_proj": read * config.key_multiplier,
        "v_proj": read,
        "o_proj": config.attention_out_multiplier,
        "out_proj": config.ssm_out_multiplier,
        "feed_forward.gate_proj": gate,
        "down_proj": down,
    }
    found = [factor for name, factor in factors.items() if f".{name}." in f".{key}"]
    return numbers * numpy.float32(found[0]) if found else numbers


def activations(model: Any) -> dict[str, list[float]]:
    """Numbers of Apertus' activation functions, each of all layers; none of other models."""
    found: dict[str, list[float]] = {}
    for key, value in model.state_dict().items():
        if ".act_fn." in key:
            found.setdefault(f"xielu.{key.split('.')[-1]}", []).append(value.float().item())
    return found


def latent_settings(config: Any, found: dict[str, Any]) -> dict[str, Any]:
    """The sizes of latent attention, which is one key head; none of other models."""
    if not (latent := getattr(config, "kv_lora_rank", 0)):
        return {}
    rotating = config.qk_rope_head_dim
    sizes = {
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": latent,
        "attention.head_count_kv": 1,
        "attention.key_length": latent + rotating,
        "attention.value_length": latent,
        "attention.key_length_mla": config.qk_nope_head_dim + rotating,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": rotating,
    }
    if config.model_type == "minicpm3":  # not as one key head
        sizes["attention.key_length"] = sizes.pop("attention.key_length_mla")
        sizes |= {"attention.value_length": None, "attention.value_length_mla": None}
        sizes["attention.head_count_kv"] = config.num_key_value_heads
    if multiplier := found.get("rope.scaling.yarn_log_multiplier"):
        sizes["rope.scaling.yarn_log_multiplier"] = 0.1 * multiplier
    return sizes


def keys_and_values(block: str, numbers: Any, config: Any) -> dict[str, Any]:
    """The matrix from latents to keys, turned, and that to values, by heads."""
    if config.model_type == "minicpm3":
        return {}
    heads = numbers.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    keys, values = heads[:, : config.qk_nope_head_dim], heads[:, config.qk_nope_head_dim :]
    return {
        f"{block}.attn_k_b.weight": keys.swapaxes(1, 2).copy(),
        f"{block}.attn_v_b.weight": values.copy(),
    }


def of_all_heads(block: str, key: str, numbers: Any, config: Any) -> dict[str, Any]:
    """GPT-NeoX' queries of all heads, then keys, then values."""
    heads = numbers.reshape(config.num_attention_heads, 3, -1, *numbers.shape[1:])
    return {f"{block}.attn_qkv.{key}": heads.swapaxes(0, 1).reshape(numbers.shape).copy()}

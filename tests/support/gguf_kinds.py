"""What llama.cpp's converter writes of single families: experts, and latent attention."""

from __future__ import annotations

from typing import Any

SIGMOID = 2
GATES = {
    # by what function experts are weighted, where the file says so
    **dict.fromkeys(("lfm2_moe", "glm4_moe", "deepseek_v3", "glm4_moe_lite"), SIGMOID),
}


def expert_settings(config: Any) -> dict[str, Any]:
    """How experts are chosen, and how many layers come before those that have some."""
    kind, found = config.model_type, dict[str, Any]()
    if kind in GATES:
        found["expert_gating_func"] = GATES[kind]
    if kind == "lfm2_moe":
        found["leading_dense_block_count"] = config.num_dense_layers
    if kind in ("glm4_moe", "deepseek_v2", "deepseek_v3", "glm4_moe_lite"):
        found |= {
            "leading_dense_block_count": getattr(config, "first_k_dense_replace", 1),
            "expert_shared_count": config.n_shared_experts,
            "expert_weights_scale": config.routed_scaling_factor,
        }
        if config.norm_topk_prob:
            found["expert_weights_norm"] = True
        if kind != "glm4_moe":
            found["expert_group_count"] = config.n_group
            found["expert_group_used_count"] = config.topk_group
    if kind == "youtu":
        found |= {
            "leading_dense_block_count": config.num_hidden_layers,
            "expert_shared_count": 0,
            "expert_feed_forward_length": config.intermediate_size,
        }
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
    if multiplier := found.get("rope.scaling.yarn_log_multiplier"):
        sizes["rope.scaling.yarn_log_multiplier"] = 0.1 * multiplier
    return sizes


def keys_and_values(block: str, numbers: Any, config: Any) -> dict[str, Any]:
    """The matrix from latents to keys, turned, and that to values, by heads."""
    heads = numbers.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    keys, values = heads[:, : config.qk_nope_head_dim], heads[:, config.qk_nope_head_dim :]
    return {
        f"{block}.attn_k_b.weight": keys.swapaxes(1, 2).copy(),
        f"{block}.attn_v_b.weight": values.copy(),
    }

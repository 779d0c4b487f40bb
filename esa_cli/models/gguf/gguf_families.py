"""The model families that are converted from GGUF files, one entry each: what llama.cpp names
otherwise than transformers, has in its code, or changed in the weights.

Names of weights are those of the package `gguf`, which llama.cpp's converter uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class GgufFamily:
    """How one of llama.cpp's architectures becomes a model of transformers.

    Args:
        kind: `model_type`.
        settings: those that few architectures have, with their names in config.json.
        fixed: settings that llama.cpp has in its code, where transformers' default is another.
        pairs: llama.cpp has put rows of queries and keys side by side that rotate together.
        raised: norms are stored with one added.
        windows: every how many layers one attends to all; 0: all do.
        local_theta: the rotary base of layers with windows, where it is one of their own.
        large: layers of the model whose queries are scaled by the hidden size over the heads.
        experts, shared, windowed: `model_type` of files with experts, with shared ones, and with
            layers that attend to a window.
        implied: settings that must have this value, which transformers' model has in its code.
        states: the type of layers that have no key heads.
        rope: what the rotary embedding has besides.
        rotates: setting that says whether there is one at all: "rope" or "nope".
        alone: a layer is attention, or a state, or experts, or an MLP, and no more.
        latents: attention is multi-head latent attention.
        sigmoid: `model_type` of files whose experts are chosen by sigmoids.
    """

    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    pairs: bool = False
    raised: bool = False
    windows: int = 0
    local_theta: float = 0.0
    large: int = 0
    experts: str = ""
    shared: str = ""
    windowed: str = ""
    implied: Mapping[str, Any] = field(default_factory=dict)
    states: str = ""
    rope: Mapping[str, Any] = field(default_factory=dict)
    rotates: str = ""
    alone: bool = False
    latents: bool = False
    sigmoid: str = ""


_SCALES = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_WINDOW = {"attention.sliding_window": "sliding_window"}
_CAPS = {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_CLAMP = {"attention.clamp_kqv": "clip_qkv"}
_DELTA = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": "linear_value_head_dim",
}
_MAMBA = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
    "ssm.inner_size": "mamba_d_head",
}
_MAMBA_ALONE = {
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
    "ssm.inner_size": "mamba_head_dim",
    "moe_latent_size": "moe_latent_size",
}
DIVIDED = {
    "linear_value_head_dim": "linear_num_value_heads",
    "mamba_d_head": "mamba_n_heads",
    "mamba_head_dim": "mamba_num_heads",
}
"""Sizes of a head, which GGUF has for all heads together, and the number of heads."""
_SHORT_CONVOLUTION = {"shortconv.l_cache": "conv_L_cache"}
_SIGMOID = {"expert_gating_func": 2}
_SIGMOID_TO_ONE = {**_SIGMOID, "expert_weights_norm": True}
_LATENTS = {"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"}
_ONE_GROUP: Mapping[str, Any] = {
    "q_lora_rank": None, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
    "norm_topk_prob": False,
}  # fmt: skip
_UNSCALED: Mapping[str, Any] = {"norm_topk_prob": False}

GGUF_FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily("llama", pairs=True, experts="mixtral"),
    "qwen2": GgufFamily("qwen2"),
    "qwen3": GgufFamily("qwen3"),
    "qwen2moe": GgufFamily("qwen2_moe", fixed=_UNSCALED),
    "qwen3moe": GgufFamily("qwen3_moe", fixed={"norm_topk_prob": True}),
    "granite": GgufFamily("granite", _SCALES, pairs=True),
    "granitemoe": GgufFamily("granitemoe", _SCALES, pairs=True, shared="granitemoeshared"),
    "olmo": GgufFamily("olmo", _CLAMP, pairs=True),
    "olmo2": GgufFamily("olmo2", _WINDOW, windowed="olmo3", windows=4),
    "olmoe": GgufFamily("olmoe", _CLAMP, _UNSCALED),
    "phi2": GgufFamily("phi"),
    "phi3": GgufFamily("phi3", _WINDOW),
    "glm4": GgufFamily("glm4"),
    "smollm3": GgufFamily("smollm3", pairs=True),
    "starcoder2": GgufFamily("starcoder2"),
    "stablelm": GgufFamily("stablelm", {"use_parallel_residual": "use_parallel_residual"}),
    "seed_oss": GgufFamily("seed_oss", fixed={"attention_out_bias": False}),
    "ernie4_5": GgufFamily("ernie4_5"),
    "arcee": GgufFamily("arcee", pairs=True),
    "nemotron": GgufFamily("nemotron", raised=True),
    "command-r": GgufFamily("cohere", {"logit_scale": "logit_scale"}),
    "gemma": GgufFamily("gemma", raised=True),
    "gemma2": GgufFamily("gemma2", _WINDOW | _CAPS, raised=True, windows=2, large=46),
    "gemma3": GgufFamily(
        "gemma3_text", _WINDOW | _CAPS, raised=True, windows=6, local_theta=10000.0, large=62
    ),
    "exaone4": GgufFamily(
        "exaone4",
        _WINDOW,
        {"sliding_window": None, "sliding_window_pattern": None},
        windows=4,
    ),
    "gpt-oss": GgufFamily("gpt_oss", _WINDOW, windows=2, rope={"truncate": False}),
    "lfm2": GgufFamily(
        "lfm2", _SHORT_CONVOLUTION, {"block_auto_adjust_ff_dim": False}, states="conv"
    ),
    "lfm2moe": GgufFamily("lfm2_moe", _SHORT_CONVOLUTION, implied=_SIGMOID, states="conv"),
    "qwen3next": GgufFamily("qwen3_next", _DELTA, raised=True),
    "qwen35": GgufFamily("qwen3_5_text", _DELTA, raised=True),
    "qwen35moe": GgufFamily("qwen3_5_moe_text", _DELTA, raised=True),
    "qwen2vl": GgufFamily("qwen2"),
    "qwen3vl": GgufFamily("qwen3"),
    "qwen3vlmoe": GgufFamily("qwen3_moe", fixed={"norm_topk_prob": True}),
    "granitehybrid": GgufFamily(
        "granitemoehybrid",
        _SCALES | _MAMBA,
        {"num_local_experts": 0},
        pairs=True,
        states="linear_attention",
        rotates="position_embedding_type",
    ),
    "glm4moe": GgufFamily("glm4_moe", implied=_SIGMOID),
    "mistral3": GgufFamily("ministral3", pairs=True),
    "cohere2": GgufFamily("cohere2", {**_WINDOW, "logit_scale": "logit_scale"}, windows=4),
    "hunyuan-dense": GgufFamily("hunyuan_v1_dense"),
    "deepseek2": GgufFamily(
        "deepseek_v2", _LATENTS, _ONE_GROUP, latents=True, sigmoid="deepseek_v3"
    ),
    "minimax-m2": GgufFamily("minimax_m2", implied=_SIGMOID_TO_ONE),
    "dots1": GgufFamily("dots1", implied=_SIGMOID),
    "exaone-moe": GgufFamily("exaone_moe", _WINDOW, implied=_SIGMOID, windows=4),
    "afmoe": GgufFamily(
        "afmoe", _WINDOW, {"mup_enabled": True}, implied=_SIGMOID_TO_ONE, windows=4
    ),
    "ernie4_5-moe": GgufFamily(
        "ernie4_5_moe",
        {"expert_used_count": "moe_k", "interleave_moe_layer_step": "moe_layer_interval"},
    ),
    "gptneox": GgufFamily("gpt_neox", {"use_parallel_residual": "use_parallel_residual"}),
    "apertus": GgufFamily("apertus"),
    # Its factors are in the weights.
    "falcon-h1": GgufFamily(
        "falcon_h1", _MAMBA | {"ssm.inner_size": "mamba_d_ssm"}, {"mamba_norm_before_gate": False}
    ),
    **dict.fromkeys(
        ("nemotron_h", "nemotron_h_moe"),
        GgufFamily("nemotron_h", _MAMBA_ALONE, states="linear_attention", alone=True),
    ),
    "minicpm3": GgufFamily(
        "minicpm3",
        _LATENTS,
        {"q_lora_rank": None, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},
        latents=True,
    ),
}
"""By llama.cpp's name of the architecture."""

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
        experts, shared: `model_type` of files with experts, and with shared ones.
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
    "olmo2": GgufFamily("olmo2"),
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
        "exaone4", fixed={"sliding_window": None, "sliding_window_pattern": None}
    ),
}
"""By llama.cpp's name of the architecture."""

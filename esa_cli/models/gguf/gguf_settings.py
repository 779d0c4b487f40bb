"""A model's configuration of transformers, from the metadata of a GGUF file.

`GGUF_FAMILIES` has the architectures that are converted: what llama.cpp names otherwise than
transformers, has in its code, or changes in the weights. A setting that no entry knows is refused:
a model that runs with a wrong one answers, but wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import check_settings
from esa_cli.models.gguf.gguf_file import GgufFile

SAFETENSORS = "use the model's safetensors files"


@dataclass(frozen=True)
class GgufFamily:
    """How one of llama.cpp's architectures becomes a model of transformers.

    Args:
        kind: `model_type`.
        settings: those that few architectures have, with their names in config.json.
        pairs: llama.cpp puts rows of queries and keys side by side that rotate together.
        raised: norms are stored with one added.
        windows: every how many layers one attends to all; 0: all do.
        local_theta: the rotary base of layers with windows, where it differs.
        large: layers of the model whose queries are scaled by the hidden size over the heads.
        experts, windowed: `model_type` of files with experts, and with layers that have a window.
        fixed: settings that llama.cpp has in its code, where transformers' default differs.
        rope: settings of the rotary embedding, likewise.
    """

    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)
    pairs: bool = False
    raised: bool = False
    windows: int = 0
    local_theta: float = 0.0
    large: int = 0
    experts: str = ""
    windowed: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)


_WINDOW = {"attention.sliding_window": "sliding_window"}
_CAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
_SCALES = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
GGUF_FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily("llama", pairs=True, experts="mixtral"),
    "mistral3": GgufFamily("ministral3", pairs=True),
    "qwen2": GgufFamily("qwen2"),
    "qwen3": GgufFamily("qwen3"),
    "qwen3moe": GgufFamily("qwen3_moe", fixed={"norm_topk_prob": True}),
    "gemma": GgufFamily("gemma", raised=True),
    "gemma2": GgufFamily("gemma2", _WINDOW | _CAPS, raised=True, windows=2, large=46),
    "gemma3": GgufFamily(
        "gemma3_text", _WINDOW | _CAPS, raised=True, windows=6, local_theta=1e4, large=62
    ),
    "phi3": GgufFamily("phi3", _WINDOW),
    "smollm3": GgufFamily("smollm3", pairs=True),
    "granite": GgufFamily("granite", _SCALES, pairs=True),
    "gpt-oss": GgufFamily("gpt_oss", _WINDOW, windows=2, rope={"truncate": False}),
    "glm4": GgufFamily("glm4"),
    "olmo2": GgufFamily("olmo2", _WINDOW, windowed="olmo3", windows=4),
    "cohere2": GgufFamily("cohere2", _WINDOW | {"logit_scale": "logit_scale"}, windows=4),
}
"""By llama.cpp's name of the architecture."""

_SETTINGS: dict[str, tuple[str | None, ...]] = {
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", None),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_feed_forward_length": ("moe_intermediate_size", None),
    **dict.fromkeys((
        "vocab_size", "attention.key_length", "attention.value_length", "rope.dimension_count",
        "rope.freq_base", "rope.freq_base_swa", "rope.scale_linear", "rope.scaling.type",
        "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
        "rope.scaling.finetuned", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "rope.scaling.yarn_log_multiplier", "attention.temperature_scale",
        "attention.sliding_window_pattern", "tensor_data_layout",
    ), (None,)),
}  # fmt: skip
"""Names in config.json, of which the model has one; None: it needs none, or it is read by name."""
_REQUIRED = list(_SETTINGS)[:5]
_TOKENS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}


def model_config(file: GgufFile, family: GgufFamily) -> Any:
    """The configuration of transformers. Raises ModelError: a setting is missing or unknown."""
    from transformers import AutoConfig

    experts = family.experts if file.setting("expert_count") else ""
    windowed = family.windowed if file.setting("attention.sliding_window") else ""
    kind = experts or windowed or family.kind
    default: Any = AutoConfig.for_model(kind)
    values = dict(family.fixed) | _named(file, family, default) | _from_tensors(file, default)
    values |= {name: file.metadata.get(f"tokenizer.ggml.{key}") for name, key in _TOKENS.items()}
    if (unknown := file.metadata.get("tokenizer.ggml.unknown_token_id")) is not None:
        values["unk_token_id"] = unknown  # part of the key of stored documents
    even = int(values["hidden_size"] // values["num_attention_heads"])
    head = int(file.setting("attention.key_length", even))
    if file.setting("attention.value_length", head) != head:
        raise refused(file, "values", "of another size than keys")
    rope = {**rope_parameters(file, head, values, default), **family.rope}
    values["rope_parameters"] = rope
    name = "original_max_position_embeddings"
    if name in rope and hasattr(default, name):
        values[name] = rope[name]
    if hasattr(default, "head_dim") or head != even:
        values["head_dim"] = head
    if family.windows and file.setting("attention.sliding_window"):
        values |= _windows(file, family, default, values)
    if family.large:
        large = values["num_hidden_layers"] == family.large
        values["query_pre_attn_scalar"] = even if large else head
    check_settings(values, file.path.name)
    config: Any = AutoConfig.for_model(kind, **values)
    return config


def _named(file: GgufFile, family: GgufFamily, default: Any) -> dict[str, Any]:
    """The settings that have a name in config.json."""
    values: dict[str, Any] = {}
    table = _SETTINGS | {key: (name,) for key, name in family.settings.items()}
    for key, value in file.metadata.items():
        name = key.removeprefix(f"{file.architecture}.")
        if name == key or (name in ("expert_count", "expert_used_count") and not value):
            continue
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        known = [one for one in table.get(name, ()) if one is None or hasattr(default, one)]
        if not known or (known[0] is not None and isinstance(value, list)):
            raise refused(file, f"the setting {key}", value)
        if known[0] is not None:
            values[known[0]] = value
    if missing := [name for name in _REQUIRED if file.setting(name) is None]:
        raise ModelError(
            f"{file.path.name} lacks the setting {file.architecture}.{missing[0]}",
            "convert the model again with a newer llama.cpp",
        )
    values.setdefault("num_key_value_heads", values["num_attention_heads"])
    return values


def _from_tensors(file: GgufFile, default: Any) -> dict[str, Any]:
    """What the presence of tensors and their sizes say."""
    tensors = file.tensors
    if "token_embd.weight" not in tensors:
        raise ModelError(
            f"{file.path.name} has no token embeddings",
            "give the file with the language model, not a projector or an adapter",
        )
    values: dict[str, Any] = {
        "vocab_size": file.shape("token_embd.weight")[0],
        "tie_word_embeddings": "output.weight" not in tensors,
    }
    if hasattr(default, "attention_bias"):
        biases = {"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"}
        values["attention_bias"] = bool(biases & tensors.keys())
    if hasattr(default, "mlp_bias"):
        values["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
    return values


def _windows(
    file: GgufFile, family: GgufFamily, default: Any, values: dict[str, Any]
) -> dict[str, Any]:
    """Of families in which all layers attend to a window, but for the last of each few."""
    count, pattern = values["num_hidden_layers"], file.setting("attention.sliding_window_pattern")
    interval = pattern if isinstance(pattern, int) and pattern > 0 else family.windows
    slides = pattern[:count] if isinstance(pattern, list) else [
        layer % interval for layer in range(1, count + 1)
    ]  # fmt: skip
    kinds = ["sliding_attention" if slide else "full_attention" for slide in slides]
    if "full_attention" not in default.rope_parameters:
        return {"layer_types": kinds}
    rope = values["rope_parameters"]
    theta = file.setting("rope.freq_base_swa", family.local_theta or rope["rope_theta"])
    ropes = {
        "full_attention": rope,
        "sliding_attention": {"rope_type": "default", "rope_theta": float(theta)},
    }
    return {"layer_types": kinds, "rope_parameters": ropes}


_FREQUENCIES, _LONG, _SHORT = "rope_freqs", "rope_factors_long", "rope_factors_short"
_LLAMA3: dict[str, float] = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Of all models so far; the file has only what follows from them."""
_YARN = {
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    "attention.temperature_scale": "llama_4_scaling_beta",
}


def rope_parameters(
    file: GgufFile, head: int, values: dict[str, Any], default: Any
) -> dict[str, Any]:
    """The rotary embedding, as config.json has it, of heads of so many dimensions. `values` are the
    settings known so far, `default` is a configuration of the same `model_type`. Raises ModelError:
    a scaling that transformers does not have."""
    theta = float(file.setting("rope.freq_base", 10000.0))
    part = file.setting("rope.dimension_count", head) / head
    rope: dict[str, Any] = {"rope_theta": theta}
    usual = default.rope_parameters
    if part != 1 or (isinstance(usual, dict) and "partial_rotary_factor" in usual):
        rope["partial_rotary_factor"] = part
    factors = {
        name.removesuffix(".weight"): file.read(name).tolist()
        for name in file.tensors
        if name.startswith("rope_")
    }
    kind = file.setting("rope.scaling.type", "none")
    factor = float(file.setting("rope.scaling.factor") or file.setting("rope.scale_linear") or 1)
    original = file.setting("rope.scaling.original_context_length")
    attention = file.setting("rope.scaling.attn_factor")
    if _LONG in factors:
        rope |= {
            "rope_type": "longrope",
            "long_factor": factors[_LONG],
            "short_factor": factors[_SHORT],
            "original_max_position_embeddings": original or values["max_position_embeddings"],
        }
        return rope if attention is None else rope | {"attention_factor": attention}
    if _FREQUENCIES in factors:
        return rope | _llama3(file, factors[_FREQUENCIES], theta, int(part * head))
    if factor == 1 or kind == "none":
        return rope | {"rope_type": "default"}
    rope |= {"rope_type": kind, "factor": factor}
    if attention in (None, 1) and kind == "linear":
        return rope
    if attention not in (None, 1) or kind != "yarn" or original is None:
        raise refused(file, "a rotary embedding", f"scaled by {kind}")
    yarn = {name: file.setting(key) for key, name in _YARN.items()}
    yarn["mscale"] = yarn["mscale_all_dim"]
    yarn["original_max_position_embeddings"] = original
    return rope | {name: value for name, value in yarn.items() if value is not None}


def _llama3(file: GgufFile, stored: list[float], theta: float, dims: int) -> dict[str, Any]:
    """The rule of Llama 3.1, if it gives the factors that are stored."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if (factor := max(stored)) == 1 == min(stored):
        return {"rope_type": "default"}
    rule = {"rope_type": "llama3", "factor": round(factor, 4), **_LLAMA3}
    config = LlamaConfig(head_dim=dims, rope_parameters={"rope_theta": theta, **rule})
    slowed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    wanted = theta ** -(torch.arange(0, dims, 2) / dims) / slowed
    if len(stored) != len(wanted) or not torch.allclose(torch.tensor(stored), wanted, rtol=1e-3):
        raise refused(file, "a rotary embedding", "with frequencies of no rule that is known")
    return rule


def refused(file: GgufFile, what: str, value: Any) -> ModelError:
    """The error for something that a file has and esa does not know."""
    message = f"{file.path.name} has {what} that esa does not know from GGUF: {value}"
    return ModelError(message[:300], SAFETENSORS)

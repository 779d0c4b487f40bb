"""Tiny models of transformers as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize
from model_files import add_tokenizer, byte_letters

from esa_cli.models.files.gguf_file import GGUF_FAMILIES, GgufFamily

MERGED = ["19", "he"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), *MERGED]
ARCHITECTURES = {
    kind: (name, family)
    for name, family in GGUF_FAMILIES.items()
    for kind in (family.kind, family.expert_kind, family.window_kind)
    if kind
}
"""llama.cpp's name, and the entry, by `model_type`."""
SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "expert_feed_forward_length": "moe_intermediate_size",
}
EXPERTS = ("num_experts", "num_local_experts")
YARN = {
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "llama_4_scaling_beta": "attention.temperature_scale",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}


def write_model(
    path: Path,
    model: Any,
    quantization: str = "F32",
    extra: Mapping[str, list[float]] | None = None,
    architecture: str = "",
    pre: str = "smollm",
    vocabulary: Sequence[str] = TOKENS,
    most: int = 0,
    **entries: Any,
) -> Path:
    """The model in a GGUF file with a byte-level tokenizer.

    Args:
        quantization: of the weights that are matrices: a name of GGMLQuantizationType.
        extra: more tensors. architecture: llama.cpp's name, if it shall be a wrong one.
        pre, vocabulary: as of `add_tokenizer`. most: tensors of a file, others follow in more.
        entries: metadata, named without the architecture, "__" for "."; None leaves one out.
    """
    name, family = ARCHITECTURES[model.config.model_type]
    out = GGUFWriter(str(path), architecture or name, split_max_tensors=most)
    changes = {key.replace("__", "."): value for key, value in entries.items()}
    for key, value in (settings(model.config, family) | changes).items():
        key = f"{architecture or name}.{key}"
        if isinstance(value, bool):
            out.add_bool(key, value)
        elif isinstance(value, str):
            out.add_string(key, value)
        elif isinstance(value, int):
            out.add_uint32(key, value)
        elif isinstance(value, list):
            out.add_array(key, value)
        elif value is not None:
            out.add_float32(key, value)
    add_tokenizer(out, vocabulary, pre)
    for tensor, numbers in tensors(model, name, family).items():
        type_ = GGMLQuantizationType[quantization if numbers.ndim > 1 else "F32"]
        out.add_tensor(tensor, quantize(numbers, type_), raw_dtype=type_)
    for tensor, factors in (extra or {}).items():
        out.add_tensor(tensor, numpy.array(factors, numpy.float32))
    for write in (out.write_header_to_file, out.write_kv_data_to_file, out.write_tensors_to_file):
        write()
    out.close()
    return path


def settings(config: Any, family: GgufFamily) -> dict[str, Any]:
    """The metadata of a model's configuration."""
    found = {key: getattr(config, name, None) for key, name in SIZES.items()}
    found |= {key: getattr(config, name, None) for key, name in family.settings.items()}
    for name in EXPERTS:
        if count := getattr(config, name, None):
            found |= {"expert_count": count, "expert_used_count": config.num_experts_per_tok}
    if hasattr(config, "layer_norm_eps"):
        found["attention.layer_norm_epsilon"] = config.layer_norm_eps
    if hasattr(config, "rms_norm_eps"):
        found["attention.layer_norm_rms_epsilon"] = config.rms_norm_eps
    if config.model_type == "gpt_oss":
        found["expert_feed_forward_length"] = config.intermediate_size
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = getattr(config, "rope_parameters", {"rope_theta": 10000.0})
    rope = rope.get("full_attention", rope)
    found |= {"attention.key_length": head, "attention.value_length": head}
    found["rope.dimension_count"] = int(head * rope.get("partial_rotary_factor", 1))
    found["rope.freq_base"] = float(rope["rope_theta"])
    if rope.get("rope_type") in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope.get("rope_type") == "yarn":
        found |= {key: rope.get(name) for name, key in YARN.items()}
    return found


def tensors(model: Any, name: str, family: GgufFamily) -> dict[str, Any]:
    """The weights by GGUF's names, changed as llama.cpp changes them."""
    config, found = model.config, {}
    architecture = next(key for key, value in MODEL_ARCH_NAMES.items() if value == name)
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    for key, value in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        numbers = value.float().numpy().copy()
        if family.raised_norms and key.endswith("norm.weight"):
            numbers = numbers + 1
        if family.adjacent_pairs and (match := re.search(r"self_attn\.([qk])_proj", key)):
            query = match[1] == "q"
            heads = config.num_attention_heads if query else config.num_key_value_heads
            numbers = permuted(numbers, heads)
        found |= placed(key, numbers, names, config)
    return found


def permuted(numbers: Any, heads: int) -> Any:
    """Rows that rotate together side by side, in each head."""
    halves = numbers.reshape(heads, 2, numbers.shape[0] // heads // 2, *numbers.shape[1:])
    return halves.swapaxes(1, 2).reshape(numbers.shape)


def placed(key: str, numbers: Any, names: Any, config: Any) -> dict[str, Any]:
    """The tensors of the file that one weight becomes."""
    block = "blk." + key.split(".")[2] if ".layers." in key else ""
    if config.model_type == "gpt_oss" and "experts" in key:
        part = "bias" if key.endswith("bias") else "weight"
        rows = numbers if part == "bias" else numbers.swapaxes(1, 2)
        if "down" in key:
            return {f"{block}.ffn_down_exps.{part}": rows}
        each = {"gate": rows[:, ::2], "up": rows[:, 1::2]}
        return {f"{block}.ffn_{name}_exps.{part}": one for name, one in each.items()}
    if key.endswith("sinks"):
        return {f"{block}.attn_sinks.weight": numbers}
    if key.endswith("experts.gate_up_proj"):
        gate, up = numpy.split(numbers, 2, 1)
        return {f"{block}.ffn_gate_exps.weight": gate, f"{block}.ffn_up_exps.weight": up}
    if key.endswith("experts.down_proj"):
        return {f"{block}.ffn_down_exps.weight": numbers}
    base, _, suffix = key.rpartition(".")
    return {f"{names.get_name(base)}.{suffix}": numbers}

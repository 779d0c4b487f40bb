"""Tiny models of transformers as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf_kinds
import numpy
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize
from model_files import add_tokenizer, byte_letters

from esa_cli.models.gguf.gguf_families import GGUF_FAMILIES, GgufFamily

MERGED = ["19", "he"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), *MERGED]
ARCHITECTURES = {
    kind: (name, family)
    for name, family in GGUF_FAMILIES.items()
    for kind in (family.kind, family.experts, family.shared, family.windowed, family.sigmoid)
    if kind and not name.endswith(("vl", "vlmoe"))
}
"""llama.cpp's name, and the entry, by `model_type`."""
KIN = {"glm4_moe_lite": "deepseek_v3", "youtu": "deepseek_v3"}
"""What llama.cpp writes as another `model_type`, and that one."""
SIZES = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "expert_feed_forward_length": "moe_intermediate_size",
}
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
YARN = {
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
    "mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "llama_4_scaling_beta": "attention.temperature_scale",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size")


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
    kind = model.config.model_type
    name, family = ARCHITECTURES[KIN.get(kind, kind)]
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
    for key, value in gguf_kinds.activations(model).items():
        out.add_array(key, value)
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
    for name in SHARED:
        found |= (
            {"expert_shared_feed_forward_length": getattr(config, name, None)}
            if hasattr(config, name)
            else {}
        )
    for name in ("layer_norm_eps", "norm_epsilon"):
        if hasattr(config, name):
            found["attention.layer_norm_epsilon"] = getattr(config, name)
    for name in ("rms_norm_eps", "norm_eps"):
        if hasattr(config, name):
            found["attention.layer_norm_rms_epsilon"] = getattr(config, name)
    found |= of_kind(config)
    found |= gguf_kinds.expert_settings(config)
    found |= gguf_kinds.mixer_settings(config)
    if config.model_type in ("olmo", "nemotron"):
        found["attention.layer_norm_epsilon"] = getattr(config, "norm_eps", 1e-5)
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
    return found | gguf_kinds.latent_settings(config, found)


def of_kind(config: Any) -> dict[str, Any]:
    """What one kind of model has besides."""
    kind, found = config.model_type, dict[str, Any]()
    types = getattr(config, "layer_types", None) or []
    if "conv" in types or kind == "granitemoehybrid":
        heads = config.num_key_value_heads
        found["attention.head_count_kv"] = [heads * (one == "full_attention") for one in types]
    if kind == "gpt_oss":
        found["expert_feed_forward_length"] = config.intermediate_size
    if kind.startswith("qwen3_5"):
        found["rope.dimension_sections"] = [1, 1, 0, 0]
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        found["full_attention_interval"] = types.index("full_attention") + 1
        heads = config.linear_num_value_heads
        found["ssm.inner_size"] = heads * config.linear_value_head_dim
    if kind == "granitemoehybrid":
        found["ssm.inner_size"] = config.mamba_n_heads * config.mamba_d_head
        found["rope.scaling.finetuned"] = False
    return found


def tensors(model: Any, name: str, family: GgufFamily) -> dict[str, Any]:
    """The weights by GGUF's names, changed as llama.cpp changes them."""
    config, found = model.config, {}
    architecture = next(key for key, value in MODEL_ARCH_NAMES.items() if value == name)
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    for key, value in model.state_dict().items():
        if (key == "lm_head.weight" and config.tie_word_embeddings) or ".act_fn." in key:
            continue
        numbers = value.float().numpy().copy()
        if family.raised and key.endswith("norm.weight") and "linear_attn" not in key:
            numbers = numbers + 1
        numbers = gguf_kinds.multiplied(key, numbers, config)
        if family.pairs and (match := re.search(r"self_attn\.([qk])_proj", key)):
            query = match[1] == "q"
            heads = config.num_attention_heads if query else config.num_key_value_heads
            numbers = permuted(numbers, heads)
        if match := re.fullmatch(r"model\.layers\.(\d+)\.self_attn\.(.)_layernorm\.norms.*", key):
            rows = f"blk.{match[1]}.attn_{match[2]}_norm.weight"
            found[rows] = numpy.concatenate([*found.get(rows, []), numbers]).reshape(
                -1, len(numbers)
            )
        else:
            found |= arranged(key, numbers, config) or placed(key, numbers, names)
    return found


def arranged(key: str, numbers: Any, config: Any) -> dict[str, Any]:
    """Tensors in another form than the weight; none: it stays as it is."""
    block, end = "blk." + (key.split(".") + [""] * 3)[2], key.split(".")[-1]
    if key.endswith("kv_b_proj.weight"):
        return gguf_kinds.keys_and_values(block, numbers, config)
    if config.model_type == "nemotron_h" and ".mixer." in key:
        return gguf_kinds.mixer(block, key.split(".mixer.")[1], numbers, config)
    if "query_key_value" in key and config.model_type == "gpt_neox":
        return gguf_kinds.of_all_heads(block, end, numbers, config)
    if config.model_type == "gpt_oss" and "experts" in key:
        part = "bias" if end.endswith("bias") else "weight"
        rows = numbers if part == "bias" else numbers.swapaxes(1, 2)
        if "down" in end:
            return {f"{block}.ffn_down_exps.{part}": rows}
        each = {"gate": rows[:, ::2], "up": rows[:, 1::2]}
        return {f"{block}.ffn_{name}_exps.{part}": one for name, one in each.items()}
    if "linear_attn" in key:
        return delta(block, key.split("linear_attn.")[1], numbers, config)
    names = {
        "sinks": "attn_sinks.weight",
        "expert_bias": "exp_probs_b.bias",
        "e_score_correction_bias": "exp_probs_b.bias",
        "dt_bias": "ssm_dt.bias",
        "D": "ssm_d",
        "A_log": "ssm_a",
    }
    if ".mamba." in key and end in ("D", "A_log"):
        return {f"{block}.{names[end]}": (numbers if end == "D" else -numpy.exp(numbers))[:, None]}
    if end in names:
        return {f"{block}.{names[end]}": numbers}
    if key.endswith("conv.conv.weight"):
        return {f"{block}.shortconv.conv.weight": numbers[:, 0]}
    if key.endswith("mamba.conv1d.weight"):
        return {f"{block}.ssm_conv1d.weight": numbers[:, 0]}
    if key.endswith("pre_ff_layernorm.weight"):
        return {f"{block}.ffn_norm": numbers}
    if key.endswith("mamba.norm.weight"):
        return {f"{block}.ssm_norm.weight": numbers.reshape(config.mamba_n_groups, -1)}
    if "shared_mlp" in key and not config.num_local_experts:
        if "output" in key:
            return {f"{block}.ffn_down.weight": numbers}
        gate, up = numpy.split(numbers, 2)
        return {f"{block}.ffn_gate.weight": gate, f"{block}.ffn_up.weight": up}
    return {}


def delta(block: str, key: str, numbers: Any, config: Any) -> dict[str, Any]:
    """Of linear attention. Value heads are in transformers' order in Qwen3-Next alone; in Qwen3.5
    those come first that are the first of their key head."""
    heads, values = config.linear_num_key_heads, config.linear_num_value_heads
    width, size = config.linear_key_head_dim, config.linear_value_head_dim
    order = numpy.arange(values)
    if config.model_type != "qwen3_next":
        order = numpy.concatenate(
            [order[first :: values // heads] for first in range(values // heads)]
        )
    rows = (order[:, None] * size + numpy.arange(size)).ravel()
    behind = numpy.concatenate([numpy.arange(2 * heads * width), 2 * heads * width + rows])
    if key == "in_proj_qkvz.weight":
        each = [width, width, size * values // heads, size * values // heads]
        cuts = numpy.cumsum(each)[:-1]
        parts = numpy.split(numbers.reshape(heads, sum(each), -1), cuts, 1)
        kinds = [one.reshape(-1, numbers.shape[1]) for one in parts]
        return {
            f"{block}.attn_qkv.weight": numpy.concatenate(kinds[:3]),
            f"{block}.attn_gate.weight": kinds[3],
        }
    return {
        "in_proj_qkv.weight": lambda: {f"{block}.attn_qkv.weight": numbers[behind]},
        "in_proj_z.weight": lambda: {f"{block}.attn_gate.weight": numbers[rows]},
        "in_proj_b.weight": lambda: {f"{block}.ssm_beta.weight": numbers[order]},
        "in_proj_a.weight": lambda: {f"{block}.ssm_alpha.weight": numbers[order]},
        "conv1d.weight": lambda: {
            f"{block}.ssm_conv1d.weight": numbers[
                behind if config.model_type != "qwen3_next" else slice(None), 0
            ]
        },
        "dt_bias": lambda: {f"{block}.ssm_dt.bias": numbers[order]},
        "A_log": lambda: {f"{block}.ssm_a": -numpy.exp(numbers[order])},
        "out_proj.weight": lambda: {f"{block}.ssm_out.weight": numbers[:, rows]},
    }.get(key, dict)()


def permuted(numbers: Any, heads: int) -> Any:
    """Rows that rotate together side by side, in each head."""
    halves = numbers.reshape(heads, 2, numbers.shape[0] // heads // 2, *numbers.shape[1:])
    return halves.swapaxes(1, 2).reshape(numbers.shape)


def placed(key: str, numbers: Any, names: Any) -> dict[str, Any]:
    """The tensors of the file that one weight becomes."""
    block = "blk." + key.split(".")[2] if ".layers." in key else ""
    if key.endswith("experts.gate_up_proj"):
        gate, up = numpy.split(numbers, 2, 1)
        return {f"{block}.ffn_gate_exps.weight": gate, f"{block}.ffn_up_exps.weight": up}
    if key.endswith("shared_mlp.input_linear.weight"):
        gate, up = numpy.split(numbers, 2, 0)
        return {f"{block}.ffn_gate_shexp.weight": gate, f"{block}.ffn_up_shexp.weight": up}
    if key.endswith("experts.down_proj"):
        return {f"{block}.ffn_down_exps.weight": numbers}
    if key.endswith("block_sparse_moe.router.weight"):
        return {f"{block}.ffn_gate_inp.weight": numbers}
    if key.endswith("shared_expert_gate.weight"):
        return {f"{block}.ffn_gate_inp_shexp.weight": numbers[0]}
    base, _, suffix = key.rpartition(".")
    return {f"{names.get_name(base)}.{suffix}": numbers}

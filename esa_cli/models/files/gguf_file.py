"""Reads metadata and tensors of GGUF files, and makes the configuration for transformers.

`GGUF_FAMILIES` lists, for each architecture that esa converts, how llama.cpp differs from
transformers in names of settings, constants and the layout of weights. A GGUF file with an unlisted
setting is refused, since a model with a wrong setting would silently give wrong answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from gguf import GGUFReader, GGUFValueType

from esa_cli.errors import ModelError, get_first_line
from esa_cli.models.files.checkpoint_files import check_config_settings

SAFETENSORS = "use the model's safetensors files"
_AGAIN = "fetch the file again, or convert the model with a newer llama.cpp"
_MAX_PARTS = 1 << 21
"""The most parts of a header, each an object in memory; 500,000 merges make 1.5 million parts."""


class _SafeGgufReader(GGUFReader):
    """Reads GGUF headers, but refuses offsets beyond the file's end, and endless headers."""

    parts = 0

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        """Reads `count` numbers at an offset of the GGUF file, which must contain that many."""
        self.parts += 1
        if self.parts > _MAX_PARTS:
            raise ValueError(f"the GGUF file's header has more than {_MAX_PARTS:,} parts")
        if int(offset) + numpy.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("the GGUF file is shorter than its header says")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        """Reads one metadata entry of a GGUF file, with an array of numbers as a single part."""
        if raw_type == GGUFValueType.ARRAY:
            kind, count = self._get(orig_offs, numpy.uint32), self._get(orig_offs + 4, numpy.uint64)
            if dtype := self.gguf_scalar_to_np.get(GGUFValueType(kind[0])):
                numbers = self._get(orig_offs + 12, dtype, count[0])
                types = [GGUFValueType.ARRAY, GGUFValueType(kind[0])]
                return 12 + numbers.nbytes, [kind, count, numbers], [2], types
        return super()._get_field_parts(orig_offs, raw_type)


class GgufFile:
    """A GGUF file; `architecture` is llama.cpp's name for the model's family. Raises ModelError:
    the file is damaged, or holds only a part of a model. OSError: the file cannot be read."""

    def __init__(self, gguf_path: Path) -> None:
        self.path = gguf_path
        self.tensors: dict[str, Any] = {}
        try:
            reader = _SafeGgufReader(gguf_path)
            self.metadata: dict[str, Any] = {
                name: field.contents()
                for name, field in reader.fields.items()
                if field.types[0] != GGUFValueType.ARRAY or not name.startswith("tokenizer.")
            }
            for tensor in reader.tensors:
                if tensor.name in self.tensors or not tensor.n_elements:
                    raise ValueError(f"the tensor {tensor.name[:80]} is empty or occurs twice")
                self.tensors[tensor.name] = tensor
        except OSError:
            raise
        except Exception as error:  # the package raises any kind
            message = f"{gguf_path.name} is not a complete GGUF file: {get_first_line(error)}"
            raise ModelError(message[:250], _AGAIN) from error
        if self.metadata.get("split.count", 1) > 1:
            message = f"{gguf_path.name} holds only a part of a model"
            raise ModelError(message, "merge the file's parts with `llama-gguf-split --merge`")
        self.architecture = str(self.metadata.get("general.architecture"))

    def get_setting(self, setting_name: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.architecture}.{setting_name}", default)

    def get_tensor_shape(self, tensor_name: str) -> tuple[int, ...]:
        """Returns the shape of a GGUF tensor, with the dimensions in torch's order."""
        return tuple(self.tensors[tensor_name].shape.tolist()[::-1])

    def read_float_tensor(self, tensor_name: str) -> Any:
        """Returns a dequantised tensor as a numpy array of float32. Raises NotImplementedError."""
        from gguf.quants import dequantize

        tensor, shape = self.tensors[tensor_name], self.get_tensor_shape(tensor_name)
        return dequantize(tensor.data, tensor.tensor_type).reshape(shape).astype(numpy.float32)

    def make_unsupported_value_error(self, value_meaning: str, value: Any) -> ModelError:
        message = f"{self.path.name} has {value_meaning} that esa cannot convert from GGUF: {value}"
        return ModelError(message[:300], SAFETENSORS)


@dataclass(frozen=True)
class GgufFamily:
    """How a GGUF file of one llama.cpp architecture is converted to a transformers model."""

    kind: str  # the `model_type`
    # Maps the names of rare settings to their names in config.json.
    settings: Mapping[str, str] = field(default_factory=dict)
    adjacent_pairs: bool = False  # query and key dimensions that rotate together are adjacent
    raised_norms: bool = False  # the weights of norms are stored with 1 added
    interval: int = 0  # after how many layers one attends to all tokens; 0: all layers do
    local_theta: float = 0.0  # the rotary base of layers with windows, where it differs
    large_depth: int = 0  # layers of the model whose queries are scaled by hidden size / heads
    expert_kind: str = ""  # the `model_type` of files with experts
    window_kind: str = ""  # the `model_type` of files with windows
    # Settings that llama.cpp fixes in its code and that have another default in transformers.
    fixed: Mapping[str, Any] = field(default_factory=dict)
    rope: Mapping[str, Any] = field(default_factory=dict)


_WINDOW = {"attention.sliding_window": "sliding_window"}
_CAPS = {name: name for name in ("attn_logit_softcapping", "final_logit_softcapping")}
_GEMMA = _WINDOW | _CAPS
_SCALES = {
    "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
}  # fmt: skip
GGUF_FAMILIES: dict[str, GgufFamily] = {
    "llama": GgufFamily("llama", adjacent_pairs=True, expert_kind="mixtral"),
    "mistral3": GgufFamily("ministral3", adjacent_pairs=True),
    "qwen2": GgufFamily("qwen2"),
    "qwen3": GgufFamily("qwen3"),
    "qwen3moe": GgufFamily("qwen3_moe", fixed={"norm_topk_prob": True}),
    "gemma": GgufFamily("gemma", raised_norms=True),
    "gemma2": GgufFamily("gemma2", _GEMMA, raised_norms=True, interval=2, large_depth=46),
    "gemma3": GgufFamily(
        "gemma3_text", _GEMMA, raised_norms=True, interval=6, local_theta=1e4, large_depth=62
    ),
    "phi3": GgufFamily("phi3", _WINDOW),
    "smollm3": GgufFamily("smollm3", adjacent_pairs=True),
    "granite": GgufFamily("granite", _SCALES, adjacent_pairs=True),
    "gpt-oss": GgufFamily("gpt_oss", _WINDOW, interval=2, rope={"truncate": False}),
    "glm4": GgufFamily("glm4"),
    "olmo2": GgufFamily("olmo2", _WINDOW, window_kind="olmo3", interval=4),
    "cohere2": GgufFamily("cohere2", _WINDOW | {"logit_scale": "logit_scale"}, interval=4),
}
"""The conversion rules by llama.cpp's name of the architecture."""

_YARN = {
    "rope.scaling.yarn_beta_fast": "beta_fast", "rope.scaling.yarn_beta_slow": "beta_slow",
    "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    "attention.temperature_scale": "llama_4_scaling_beta",
}  # fmt: skip
_REQUIRED = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}  # fmt: skip
_NAMES: dict[str, tuple[str | None, ...]] = {
    **{key: (name,) for key, name in _REQUIRED.items()},
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", None),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_feed_forward_length": ("moe_intermediate_size", None),
    **dict.fromkeys((
        *_YARN, "vocab_size", "attention.key_length", "attention.value_length", "rope.freq_base",
        "rope.dimension_count", "rope.freq_base_swa", "rope.scale_linear", "rope.scaling.type",
        "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.attn_factor",
        "rope.scaling.finetuned", "attention.sliding_window_pattern", "tensor_data_layout",
    ), (None,)),
}  # fmt: skip
"""Maps GGUF settings to their possible names in config.json; None: config.json needs no name."""
_ORIGINAL = "original_max_position_embeddings"
_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}


def make_config_from_gguf(file: GgufFile, family: GgufFamily) -> Any:
    """Makes a transformers configuration. Raises ModelError: a setting is unknown or missing."""
    from transformers import AutoConfig

    experts = family.expert_kind if file.get_setting("expert_count") else ""
    windowed = family.window_kind if file.get_setting("attention.sliding_window") else ""
    kind = experts or windowed or family.kind
    default: Any = AutoConfig.for_model(kind)
    values = dict(family.fixed) | _read_gguf_settings(file, family, default)
    if "token_embd.weight" not in file.tensors:
        hint = "give the GGUF file of the language model, not of a projector or an adapter"
        raise ModelError(f"{file.path.name} has no token embeddings", hint)
    values["vocab_size"] = file.get_tensor_shape("token_embd.weight")[0]
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    for name, part in (("attention_bias", r"attn_q(kv)?"), ("mlp_bias", "ffn_up")):
        if hasattr(default, name):
            bias = re.compile(rf"blk\.0\.{part}\.bias")
            values[name] = any(bias.fullmatch(tensor) for tensor in file.tensors)
    for name, token in _TOKENS.items():
        values[name] = file.metadata.get(f"tokenizer.ggml.{token}_token_id")
    if (unknown := file.metadata.get("tokenizer.ggml.unknown_token_id")) is not None:
        values["unk_token_id"] = unknown  # part of the key of stored documents
    even = int(values["hidden_size"] // values["num_attention_heads"])
    head = int(file.get_setting("attention.key_length", even))
    if file.get_setting("attention.value_length", head) != head:
        raise file.make_unsupported_value_error("values", "of another size than keys")
    if hasattr(default, "head_dim") or head != even:
        values["head_dim"] = head
    if family.large_depth:
        large = values["num_hidden_layers"] == family.large_depth
        values["query_pre_attn_scalar"] = even if large else head
    rope = {**_read_rope_parameters(file, head, values, default), **family.rope}
    if hasattr(default, _ORIGINAL) and _ORIGINAL in rope:
        values[_ORIGINAL] = rope[_ORIGINAL]
    values["rope_parameters"] = rope
    if family.interval and file.get_setting("attention.sliding_window"):
        values["layer_types"] = _list_attention_types(file, family, values["num_hidden_layers"])
        if "full_attention" in default.rope_parameters:
            theta = file.get_setting("rope.freq_base_swa", family.local_theta or rope["rope_theta"])
            local = {"rope_type": "default", "rope_theta": float(theta)}
            values["rope_parameters"] = {"full_attention": rope, "sliding_attention": local}
    check_config_settings(values, file.path.name)
    config: Any = AutoConfig.for_model(kind, **values)
    return config


def _read_gguf_settings(file: GgufFile, family: GgufFamily, default_config: Any) -> dict[str, Any]:
    """Returns the settings in a GGUF file under the names that config.json gives to them."""
    values: dict[str, Any] = {}
    table = _NAMES | {key: (name,) for key, name in family.settings.items()}
    for key, value in file.metadata.items():
        name = key.removeprefix(f"{file.architecture}.")
        if name == key or (name in ("expert_count", "expert_used_count") and not value):
            continue
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        names = [n for n in table.get(name, ()) if n is None or hasattr(default_config, n)]
        if not names or (names[0] is not None and isinstance(value, list)):
            raise file.make_unsupported_value_error(f"the setting {key}", value)
        if names[0] is not None:
            values[names[0]] = value
    if missing := [name for name in _REQUIRED if file.get_setting(name) is None]:
        message = f"{file.path.name} lacks the setting {file.architecture}.{missing[0]}"
        raise ModelError(message, "convert the model to GGUF again with a newer llama.cpp")
    values.setdefault("num_key_value_heads", values["num_attention_heads"])
    return values


def _list_attention_types(file: GgufFile, family: GgufFamily, layer_count: int) -> list[str]:
    """Returns each layer's attention type: a sliding window, or at intervals full attention."""
    pattern = file.get_setting("attention.sliding_window_pattern")
    interval = pattern if isinstance(pattern, int) and pattern > 0 else family.interval
    slides = [layer % interval for layer in range(1, layer_count + 1)]
    slides = pattern[:layer_count] if isinstance(pattern, list) else slides
    return ["sliding_attention" if slide else "full_attention" for slide in slides]


def _read_rope_parameters(
    file: GgufFile, head_dim: int, config_settings: dict[str, Any], default_config: Any
) -> dict[str, Any]:
    """Returns the settings of a GGUF file's rotary embedding, named as in a config.json."""
    theta = float(file.get_setting("rope.freq_base", 10000.0))
    part = file.get_setting("rope.dimension_count", head_dim) / head_dim
    rope: dict[str, Any] = {"rope_theta": theta}
    usual = default_config.rope_parameters
    if part != 1 or (isinstance(usual, dict) and "partial_rotary_factor" in usual):
        rope["partial_rotary_factor"] = part
    factors = {
        name.removesuffix(".weight").removeprefix("rope_"): file.read_float_tensor(name).tolist()
        for name in file.tensors
        if name.startswith("rope_")
    }
    kind = file.get_setting("rope.scaling.type", "none")
    scaling = file.get_setting("rope.scaling.factor") or file.get_setting("rope.scale_linear")
    factor = float(scaling or 1)
    original = file.get_setting("rope.scaling.original_context_length")
    attention = file.get_setting("rope.scaling.attn_factor")
    if "factors_long" in factors:
        rope |= {"rope_type": "longrope", "long_factor": factors["factors_long"]}
        rope |= {"short_factor": factors["factors_short"]}
        rope[_ORIGINAL] = original or config_settings["max_position_embeddings"]
        return rope if attention is None else rope | {"attention_factor": attention}
    if "freqs" in factors:
        return rope | _make_llama3_rope(file, factors["freqs"], theta, int(part * head_dim))
    if factor == 1 or kind == "none":
        return rope | {"rope_type": "default"}
    rope |= {"rope_type": kind, "factor": factor}
    if attention in (None, 1) and kind == "linear":
        return rope
    if attention not in (None, 1) or kind != "yarn" or original is None:
        raise file.make_unsupported_value_error("a rotary embedding", f"scaled by {kind}")
    yarn = {name: file.get_setting(key) for key, name in _YARN.items()}
    yarn |= {"mscale": yarn["mscale_all_dim"], _ORIGINAL: original}
    return rope | {name: value for name, value in yarn.items() if value is not None}


def _make_llama3_rope(
    file: GgufFile, stored_factors: list[float], rope_theta: float, rotary_dim: int
) -> dict[str, Any]:
    """Returns Llama 3.1's settings of the rotary embedding if they give the frequency factors that
    a GGUF file stores, or the default if all factors are 1. Raises ModelError: neither fits."""
    import torch
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    if (factor := max(stored_factors)) == 1 == min(stored_factors):
        return {"rope_type": "default"}
    rule: dict[str, Any] = {
        "rope_type": "llama3", "factor": round(factor, 4), "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, _ORIGINAL: 8192,
    }  # fmt: skip
    config = LlamaConfig(head_dim=rotary_dim, rope_parameters={"rope_theta": rope_theta, **rule})
    slowed, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    wanted = rope_theta ** -(torch.arange(0, rotary_dim, 2) / rotary_dim) / slowed
    stored = torch.tensor(stored_factors)
    if len(stored) != len(wanted) or not torch.allclose(stored, wanted, rtol=1e-3):
        raise file.make_unsupported_value_error("a rotary embedding", "of unknown frequencies")
    return rule

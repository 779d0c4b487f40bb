"""A model's configuration of transformers, from the metadata of a GGUF file.

A setting that no entry knows is refused: a model that runs with a wrong one answers, but wrongly.
"""

from __future__ import annotations

import math
from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.gguf_families import GgufFamily
from esa_cli.models.gguf_file import GgufFile

_COMMON = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "expert_used_count": "num_experts_per_tok",
    "expert_weights_norm": "norm_topk_prob",
}
_ANY_OF = {
    # what one architecture or other calls it in config.json
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "norm_epsilon", "norm_eps", None),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_feed_forward_length": ("moe_intermediate_size", None),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
    ),
}
_TOKENS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}
_ELSEWHERE = {
    "vocab_size",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
    "tensor_data_layout",
}
"""Settings that are read by name, or that change nothing."""
_FREQUENCIES, _LONG, _SHORT = "rope_freqs", "rope_factors_long", "rope_factors_short"
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
"""Of all models so far; the file has only what follows from them."""


class GgufSettings:
    """The settings of one file. Raises ModelError: one is missing, or cannot be kept."""

    def __init__(self, file: GgufFile, family: GgufFamily) -> None:
        self._file, self._family = file, family
        self._prefix = f"{file.architecture}."
        self.kind = self._kind()

    def config(self) -> Any:
        """The configuration of transformers."""
        from transformers import AutoConfig

        default: Any = AutoConfig.for_model(self.kind)
        found: dict[str, Any] = dict(self._family.fixed)
        found |= self._named(default) | self._tokens() | self._tensors(default)
        found["rope_parameters"] = self._rope(default, found)
        if "original_max_position_embeddings" in found["rope_parameters"] and hasattr(
            default, "original_max_position_embeddings"
        ):
            length = found["rope_parameters"]["original_max_position_embeddings"]
            found["original_max_position_embeddings"] = length
        if hasattr(default, "head_dim") or self._head(found) != _even_head(found):
            found["head_dim"] = self._head(found)
        config: Any = AutoConfig.for_model(self.kind, **found)
        return config

    def _get(self, name: str, default: Any = None) -> Any:
        return self._file.metadata.get(self._prefix + name, default)

    def _kind(self) -> str:
        family = self._family
        if family.shared and self._get("expert_shared_feed_forward_length"):
            return family.shared
        if family.experts and self._get("expert_count"):
            return family.experts
        return family.kind

    def _named(self, default: Any) -> dict[str, Any]:
        """The settings that have a name in config.json."""
        found: dict[str, Any] = {}
        known = {**_COMMON, **self._family.settings}
        for key, value in self._file.metadata.items():
            name = key.removeprefix(self._prefix)
            if name == key or name in _ELSEWHERE:
                continue
            if isinstance(value, list) and value and value.count(value[0]) == len(value):
                value = value[0]
            target = known.get(name)
            if name in _ANY_OF:
                names = [one for one in _ANY_OF[name] if one is None or hasattr(default, one)]
                if names and names[0] is None:
                    continue
                target = names[0] if names else None
            if name in ("expert_count", "expert_used_count") and not value:
                continue
            if target is None or isinstance(value, list):
                raise self._refused(f"the setting {key}", value)
            found[target] = value
        if missing := [name for name in list(_COMMON)[:5] if self._get(name) is None]:
            raise ModelError(
                f"{self._file.path.name} lacks the setting {self._prefix}{missing[0]}",
                "convert the model again with a newer llama.cpp",
            )
        found.setdefault("num_key_value_heads", found["num_attention_heads"])
        if not (found.get("sliding_window") or self._family.fixed.get("sliding_window", 1)):
            found["sliding_window"] = None
            if hasattr(default, "layer_types"):
                found["layer_types"] = ["full_attention"] * found["num_hidden_layers"]
        return found

    def _tokens(self) -> dict[str, Any]:
        metadata = self._file.metadata
        found = {name: metadata.get(f"tokenizer.ggml.{key}") for name, key in _TOKENS.items()}
        if (unknown := metadata.get("tokenizer.ggml.unknown_token_id")) is not None:
            found["unk_token_id"] = unknown  # part of what stored rows are found by
        return found

    def _tensors(self, default: Any) -> dict[str, Any]:
        """What the presence of tensors and their sizes say."""
        tensors = self._file.tensors
        if "token_embd.weight" not in tensors:
            raise ModelError(
                f"{self._file.path.name} has no token embeddings",
                "give the file with the language model, not a projector or an adapter",
            )
        found: dict[str, Any] = {
            "vocab_size": tensors["token_embd.weight"].shape[0],
            "tie_word_embeddings": "output.weight" not in tensors,
        }
        for name in ("attention_bias", "use_qkv_bias"):
            if hasattr(default, name):
                found[name] = "blk.0.attn_q.bias" in tensors
        if hasattr(default, "mlp_bias"):
            found["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
        for name in ("qk_layernorm", "use_qk_norm"):
            if hasattr(default, name):
                found[name] = "blk.0.attn_q_norm.weight" in tensors
        return found

    def _head(self, found: dict[str, Any]) -> int:
        size = self._get("attention.key_length", _even_head(found))
        if self._get("attention.value_length", size) != size:
            raise self._refused("values", "of another size than keys")
        return int(size)

    def _rope(self, default: Any, found: dict[str, Any]) -> dict[str, Any]:
        rope: dict[str, Any] = {"rope_theta": float(self._get("rope.freq_base", 10000.0))}
        head = self._head(found)
        partial = self._get("rope.dimension_count", head) / head
        if partial != 1 or "partial_rotary_factor" in (default.rope_parameters or {}):
            rope["partial_rotary_factor"] = partial
        return rope | self._scaling(rope["rope_theta"], int(partial * head), found)

    def _scaling(self, theta: float, dims: int, found: dict[str, Any]) -> dict[str, Any]:
        """How the rotary embedding of `dims` dimensions is scaled."""
        tensors = {name.removesuffix(".weight"): name for name in self._file.tensors}
        kind = self._get("rope.scaling.type", "none")
        factor = float(self._get("rope.scaling.factor") or self._get("rope.scale_linear") or 1)
        if _LONG in tensors:
            return self._longrope(tensors, found)
        if _FREQUENCIES in tensors:
            return self._llama3(self._file.read(tensors[_FREQUENCIES]).tolist(), theta, dims)
        if factor == 1 or kind == "none":
            return {"rope_type": "default"}
        attention = self._get("rope.scaling.attn_factor", 1.0)
        original = self._get("rope.scaling.original_context_length")
        if kind == "linear" and attention == 1:
            return {"rope_type": "linear", "factor": factor}
        if kind == "yarn" and attention == 1 and original:
            return {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
            }
        raise self._refused("a rotary embedding", f"scaled by {kind}")

    def _longrope(self, tensors: dict[str, str], found: dict[str, Any]) -> dict[str, Any]:
        if _SHORT not in tensors:
            raise self._refused("a rotary embedding", "without factors for short texts")
        longest = found["max_position_embeddings"]
        scaling = {
            "rope_type": "longrope",
            "long_factor": self._file.read(tensors[_LONG]).tolist(),
            "short_factor": self._file.read(tensors[_SHORT]).tolist(),
            "original_max_position_embeddings": self._get(
                "rope.scaling.original_context_length", longest
            ),
        }
        if (attention := self._get("rope.scaling.attn_factor")) is not None:
            scaling["attention_factor"] = attention
        return scaling

    def _llama3(self, stored: list[float], theta: float, dims: int) -> dict[str, Any]:
        """The rule of Llama 3.1, if it gives the factors that are stored."""
        factor = max(stored)
        lengths = [2 * math.pi * theta ** (2 * i / dims) for i in range(dims // 2)]
        wanted = [_llama3_factor(length, factor) for length in lengths]
        if len(stored) != len(wanted) or any(
            abs(a - b) > 1e-3 * b for a, b in zip(stored, wanted, strict=True)
        ):
            raise self._refused("a rotary embedding", "with frequencies of no rule that is known")
        if factor == 1:
            return {"rope_type": "default"}
        return {"rope_type": "llama3", "factor": round(factor, 4), **_LLAMA3}

    def _refused(self, what: str, got: Any) -> ModelError:
        return ModelError(
            f"{self._file.path.name} has {what} that esa does not know from GGUF: {got}"[:300],
            "use the model's safetensors files",
        )


def _even_head(found: dict[str, Any]) -> int:
    """A head's size where all heads together are as wide as the hidden states."""
    return int(found["hidden_size"] // found["num_attention_heads"])


def _llama3_factor(length: float, factor: float) -> float:
    """What a wave of `length` positions is slowed by, as Llama 3.1 does."""
    original, low, high = 8192, _LLAMA3["low_freq_factor"], _LLAMA3["high_freq_factor"]
    if length < original / high:
        return 1.0
    if length > original / low:
        return factor
    smooth = (original / length - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)

"""A model's configuration of transformers, from the metadata of a GGUF file.

A setting that no entry knows is refused: a model that runs with a wrong one answers, but wrongly.
"""

from __future__ import annotations

from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import check_settings
from esa_cli.models.gguf.gguf_families import DIVIDED, GgufFamily
from esa_cli.models.gguf.gguf_file import GgufFile
from esa_cli.models.gguf.gguf_latents import by_sigmoid, latent_settings
from esa_cli.models.gguf.gguf_layers import GgufLayers
from esa_cli.models.gguf.gguf_rotary import GgufRotary, refused

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
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "layer_norm_epsilon"),
    "attention.layer_norm_epsilon": (
        "layer_norm_eps",
        "norm_epsilon",
        "norm_eps",
        "layer_norm_epsilon",
        None,
    ),
    "expert_count": ("moe_num_experts", "num_experts", "num_local_experts", "n_routed_experts"),
    "expert_shared_count": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "expert_weights_scale": ("routed_scaling_factor", "route_scale"),
    "expert_group_count": ("n_group",),
    "expert_group_used_count": ("topk_group",),
    "leading_dense_block_count": (
        "first_k_dense_replace",
        "num_dense_layers",
        "moe_layer_start_index",
    ),
    "expert_feed_forward_length": ("moe_intermediate_size", None),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        None,
    ),
}
_GROUPS = ("expert_group_count", "expert_group_used_count")
"""One group is none, also to models without groups."""
_TOKENS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}
_ELSEWHERE = {
    "vocab_size",
    "attention.key_length",
    "attention.value_length",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.freq_base_swa",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.attn_factor",
    "rope.scaling.finetuned",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
    "rope.dimension_sections",
    "attention.temperature_scale",
    "attention.sliding_window_pattern",
    "full_attention_interval",
    "nextn_predict_layers",
    "n_deepstack_layers",
    "tensor_data_layout",
}
"""Settings that are read by name, or that change nothing: parts of the rotary embedding are for
places in an image, and so are layers of `n_deepstack_layers`."""


_CONTEXT = ("context_length", "original_context_length", "sliding_window", "token_id")
"""Ends of the names of settings that are no sizes of weights."""


def check_counts(file: GgufFile) -> None:
    """Raises ModelError where a file says that it has more layers than tensors, or that something
    is larger than the file."""
    for name, value in file.metadata.items():
        if not name.startswith(f"{file.architecture}.") or name.endswith(_CONTEXT):
            continue
        layers = name.endswith(".block_count")
        most = len(file.tensors) if layers else file.size
        every = value if isinstance(value, list) else [value]
        if any(type(one) is int and one > most for one in every):
            what = "tensors" if layers else "bytes"
            raise ModelError(
                f"{file.path.name} has {most:,} {what}, which is too few for {name} = {value}"[
                    :300
                ],
                "it may be damaged; fetch it again",
            )


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
        if self._family.latents:
            found |= latent_settings(self._file, self.kind, found)
        head = found["qk_rope_head_dim"] if self._family.latents else self._head(found)
        if hasattr(default, "rope_parameters"):
            rope = self._rope(default, head, found["max_position_embeddings"])
            found["rope_parameters"] = {**rope, **self._family.rope}
            name = "original_max_position_embeddings"
            if name in found["rope_parameters"] and hasattr(default, name):
                found[name] = found["rope_parameters"][name]
        if self._family.latents:
            pass  # follows from the parts of a head
        elif hasattr(default, "head_dim") or head != _even_head(found):
            found["head_dim"] = head
        found |= GgufLayers(self._file, self._family).settings(default, found)
        if self._family.large:
            scalar = _even_head(found) if found["num_hidden_layers"] == self._family.large else head
            found["query_pre_attn_scalar"] = scalar
        check_settings(found, self._file.path.name)
        config: Any = AutoConfig.for_model(self.kind, **found)
        return config

    def _get(self, name: str, default: Any = None) -> Any:
        return self._file.metadata.get(self._prefix + name, default)

    def _kind(self) -> str:
        family = self._family
        if family.sigmoid and by_sigmoid(self._file):
            return family.sigmoid
        if family.shared and self._get("expert_shared_feed_forward_length"):
            return family.shared
        if family.experts and self._get("expert_count"):
            return family.experts
        if family.windowed and self._get("attention.sliding_window"):
            return family.windowed
        return family.kind

    def _named(self, default: Any) -> dict[str, Any]:
        """The settings that have a name in config.json."""
        found: dict[str, Any] = {}
        known = {**_COMMON, **self._family.settings}
        for key, value in self._file.metadata.items():
            name = key.removeprefix(self._prefix)
            if name == key or name in _ELSEWHERE:
                continue
            if name in self._family.implied and value == self._family.implied[name]:
                continue
            if name == "expert_gating_func" and self._family.sigmoid and value in (1, 2):
                continue
            value = self._of_all_layers(value)
            target = known.get(name)
            if name in _ANY_OF:
                names = [one for one in _ANY_OF[name] if one is None or hasattr(default, one)]
                if (names and names[0] is None) or (name in _GROUPS and not names and value < 2):
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
        found["num_hidden_layers"] -= self._get("nextn_predict_layers", 0)
        if "mamba_d_head" in found:
            found["mamba_expand"] = found["mamba_d_head"] // found["hidden_size"]
        for size in DIVIDED.keys() & found.keys():
            found[size] //= found[DIVIDED[size]]
        if not (found.get("sliding_window") or self._family.fixed.get("sliding_window", 1)):
            found["sliding_window"] = None
            if hasattr(default, "layer_types"):
                found["layer_types"] = ["full_attention"] * found["num_hidden_layers"]
        return found

    def _of_all_layers(self, value: Any) -> Any:
        """A setting that is listed for each layer, where it is the same in all that have it."""
        if not isinstance(value, list):
            return value
        found = {*value} - ({0} if self._family.states else set())
        return found.pop() if len(found) == 1 else value

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
                found[name] = bool({"blk.0.attn_q.bias", "blk.0.attn_qkv.bias"} & tensors.keys())
        if hasattr(default, "mlp_bias"):
            found["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
        if hasattr(default, "mamba_rms_norm"):
            found["mamba_rms_norm"] = "blk.0.ssm_norm.weight" in tensors
        for name in ("qk_layernorm", "use_qk_norm"):
            if hasattr(default, name):
                found[name] = "blk.0.attn_q_norm.weight" in tensors
        return found

    def _head(self, found: dict[str, Any]) -> int:
        size = self._get("attention.key_length", _even_head(found))
        if self._get("attention.value_length", size) != size:
            raise self._refused("values", "of another size than keys")
        return int(size)

    def _rope(self, default: Any, head: int, longest: int) -> dict[str, Any]:
        base = GgufRotary(self._file, head, longest, self._family.latents)
        partial = isinstance(default.rope_parameters, dict) and (
            "partial_rotary_factor" in default.rope_parameters
        )
        return base.parameters(partial)

    def _refused(self, what: str, got: Any) -> ModelError:
        return refused(self._file, what, got)


def _even_head(found: dict[str, Any]) -> int:
    """A head's size where all heads together are as wide as the hidden states."""
    return int(found["hidden_size"] // found["num_attention_heads"])

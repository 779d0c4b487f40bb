"""Reads the sizes of a model's layers and weights from files, without loading the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import (
    WeightInfo,
    compute_weight_bytes,
    list_language_model_weights,
    list_weight_files,
    list_weights_transformers_expects,
    read_config_json,
)
from esa_cli.models.files.families import (
    FAMILIES,
    get_kv_head_shape,
    get_model_family,
    list_layer_cache_kinds,
    list_unequal_kv_heads,
)
from esa_cli.models.loading.quantization import (
    estimate_bytes_per_quantised_weight,
    get_bytes_per_weight,
    read_quantization_method,
    weights_stay_quantised,
)


@dataclass(frozen=True)
class ModelShape:
    """The numbers and sizes of a model's layers, heads and states, as config.json sets them."""

    layers: int
    hidden: int
    heads: int
    groups: int
    dim: int
    inner: int  # the inner width of the MLP, or of the experts that a token passes
    rows: int  # the number of layers with a KV cache
    numbers: int  # what these layers cache of a token
    stateful: int = 0  # the number of layers with a state
    convolved: int = 0  # numbers of the model's type in a state
    recurrent: int = 0  # numbers in float32 in a state
    window: int = 0  # tokens of the sliding window; 0: there is none

    def count_recurrent_state_bytes(self, dtype_bytes: int) -> int:
        """Returns the bytes of the states of all recurrent layers, for one document."""
        return self.stateful * (self.convolved * dtype_bytes + self.recurrent * 4)


def read_model_shape(config: dict[str, Any]) -> ModelShape:
    """Reads a model's layer sizes from config.json. Raises ModelError: a size is missing."""
    if "model_type" in config and config["model_type"] not in FAMILIES:  # only by its sizes
        sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        config = {name: config[name] for name in sizes if name in config}
    try:
        settings = SimpleNamespace(**config)
        kinds = list_layer_cache_kinds(settings)
        groups, dim = get_kv_head_shape(settings)
        rows = sum(kind in ("attention", "both") for kind in kinds)
        shapes = list_unequal_kv_heads(settings) or [(groups, dim)] * rows
        width = sum(own * size for own, size in shapes)
        hidden = int(config["hidden_size"])
        convolved, recurrent = _read_recurrent_state_sizes(config, hidden)
        return ModelShape(
            layers=len(kinds), hidden=hidden, heads=int(config["num_attention_heads"]),
            groups=groups, dim=dim, inner=_read_mlp_width(config, hidden), rows=rows,
            numbers=width if get_model_family(settings).latent else 2 * width,
            stateful=kinds.count("state") + kinds.count("both"), convolved=convolved,
            recurrent=recurrent, window=_read_sliding_window(config),
        )  # fmt: skip
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"config.json must have the sizes of all layers, got {error}") from error


def _read_nonzero_size(config: Mapping[str, Any], *setting_names: str) -> int:
    """Returns the first setting of `setting_names` that is not 0; for a list, its maximum."""
    value = next((config[name] for name in setting_names if config.get(name)), 0)
    return int(max(value) if isinstance(value, list) else value)


def _read_mlp_width(config: Mapping[str, Any], hidden_width: int) -> int:
    dense = _read_nonzero_size(config, "intermediate_size", "ffn_hidden_size", "block_ff_dim")
    dense = dense or 4 * hidden_width
    width = _read_nonzero_size(config, "moe_intermediate_size", "expert_ffn_hidden_size") or dense
    return max(dense, width * _count_experts_per_token(config))


def _count_experts_per_token(config: Mapping[str, Any]) -> int:
    return _read_nonzero_size(config, "num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts")


def _read_sliding_window(config: Mapping[str, Any]) -> int:
    """Returns the size in tokens of a sliding attention window, or 0 if the model has none."""
    window = int(config.get("sliding_window") or 0)
    positions = config.get("max_position_embeddings")
    unused = positions is not None and window >= positions
    return 0 if unused or not config.get("use_sliding_window", True) else window


def _read_recurrent_state_sizes(config: Mapping[str, Any], hidden_width: int) -> tuple[int, int]:
    taps = _read_nonzero_size(config, "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel") or 4
    if keys := _read_nonzero_size(config, "linear_num_key_heads"):
        heads = _read_nonzero_size(config, "linear_num_value_heads")
        dim = _read_nonzero_size(config, "linear_key_head_dim")
        value = _read_nonzero_size(config, "linear_value_head_dim")
        return taps * (2 * keys * dim + heads * value), heads * dim * value
    if state := _read_nonzero_size(config, "mamba_d_state", "ssm_state_size"):
        wide = (_read_nonzero_size(config, "mamba_expand", "expand") or 2) * hidden_width
        wide = _read_nonzero_size(config, "mamba_d_ssm") or wide
        if heads := _read_nonzero_size(config, "mamba_num_heads"):
            wide = heads * _read_nonzero_size(config, "mamba_head_dim")
        groups = _read_nonzero_size(config, "mamba_n_groups", "n_groups") or 1
        return taps * (wide + 2 * groups * state), wide * state
    return (_read_nonzero_size(config, "conv_L_cache") or 3) * hidden_width, 0


class WeightSizes(NamedTuple):
    """The bytes of a model's weights in memory, with numbers of `size` bytes, and `body`, the
    numbers in the matrices of the layers and experts that a token passes."""

    nbytes: int
    body: int
    size: int

    def count_weight_bytes(self, dtype_bytes: int) -> int:
        return self.nbytes * dtype_bytes // self.size


def measure_weight_sizes(
    model_folder: Path, device: str, dtype_bytes: int, quantization: str = ""
) -> WeightSizes:
    """Measures the weights of the model in a folder, which may contain only config.json, with one
    of `QUANTIZATIONS` or "". Raises ModelError: files are damaged, or the model is not known."""
    config = read_config_json(model_folder)
    kept = not quantization and weights_stay_quantised(config, device)
    each = get_bytes_per_weight(quantization, dtype_bytes)
    try:
        list_weight_files(model_folder)
    except ModelError:  # the folder contains only config.json
        tensors, total = list_weights_transformers_expects(model_folder), 0.0
        for tensor in tensors:
            own = float(dtype_bytes)
            if _is_layer_matrix(tensor):
                if not kept:
                    own = each
                elif _is_expert_weight(tensor) or read_quantization_method(config) != "mxfp4":
                    own = estimate_bytes_per_quantised_weight(config)
            total += math.prod(tensor.shape) * own
    else:
        tensors = list_language_model_weights(model_folder)
        total = compute_weight_bytes(model_folder, dtype_bytes, each, kept)
    return WeightSizes(int(total), count_weights_used_per_token(tensors, config), dtype_bytes)


def count_weights_used_per_token(tensors: Iterable[WeightInfo], config: Mapping[str, Any]) -> int:
    """Counts the weights by which one token is multiplied in layers and in the experts it uses."""
    settings = config.get("text_config") or config
    names = "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"
    experts = _read_nonzero_size(settings, *names)
    share = min(1.0, _count_experts_per_token(settings) / experts) if experts else 1.0
    total = 0.0
    for tensor in tensors:
        if _is_layer_matrix(tensor):
            total += math.prod(tensor.shape) * (share if _is_expert_weight(tensor) else 1.0)
    return int(total)


def _is_layer_matrix(tensor: WeightInfo) -> bool:
    others = "embed", "lm_head", "wte", "wpe"
    return len(tensor.shape) > 1 and not any(part in tensor.name for part in others)


def _is_expert_weight(tensor: WeightInfo) -> bool:
    """Whether a weight tensor belongs to one expert, or to all experts of a layer."""
    return ".experts." in tensor.name or (len(tensor.shape) == 3 and "conv" not in tensor.name)

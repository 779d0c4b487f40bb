"""Sizes of a model: of its layers, from config.json; of its weights, from the headers of its files
or, before these are fetched, from a model on torch's meta device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import (
    StoredWeight,
    language_weights,
    read_config,
    unmade_weights,
    weight_files,
)
from esa_cli.models.files.families import FAMILIES, family_of, key_shape, key_shapes, layer_kinds
from esa_cli.models.loading.quantization import (
    bytes_needed,
    kept_bytes,
    packed_bytes,
    quantization_in,
    stays_quantised,
)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model's layers, in the symbols of docs/design.md.

    Args:
        inner: the inner width of the MLP, or of the experts that a token passes.
        shared: whether the keys are the values, too (MLA).
        rows: the number of layers with a KV cache. numbers: what these cache of a token.
        shapes: G and D of each of these layers, if they differ.
        stateful: the number of layers with a state, of `convolved` numbers of the model's type and
            `recurrent` ones in float32.
        window: tokens of the model's sliding window; 0: it has none.
    """

    layers: int
    hidden: int
    heads: int
    groups: int
    dim: int
    inner: int
    shared: bool
    rows: int
    numbers: int
    shapes: tuple[tuple[int, int], ...] = ()
    stateful: int = 0
    convolved: int = 0
    recurrent: int = 0
    window: int = 0

    @property
    def row(self) -> int:
        """Numbers that a layer with full attention caches of a token."""
        return (1 if self.shared else 2) * self.groups * self.dim

    def states(self, size: int) -> int:
        """Bytes of a document's states in all layers, with numbers of `size` bytes."""
        return self.stateful * (self.convolved * size + self.recurrent * 4)


def shape_of(config: dict[str, Any]) -> Shape:
    """The shape of a model with this config.json. Raises ModelError: it lacks a size."""
    if "model_type" in config and config["model_type"] not in FAMILIES:  # only by its sizes
        sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        config = {name: config[name] for name in sizes if name in config}
    try:
        settings, kinds = SimpleNamespace(**config), layer_kinds(config)
        groups, dim = key_shape(settings)
        shared, shapes = family_of(settings).latent, tuple(key_shapes(settings))
        rows = sum(kind in ("attention", "both") for kind in kinds)
        width = sum(own * size for own, size in shapes) if shapes else rows * groups * dim
        hidden = int(config["hidden_size"])
        convolved, recurrent = _state(config, hidden)
        return Shape(
            layers=len(kinds),
            hidden=hidden,
            heads=int(config["num_attention_heads"]),
            groups=groups,
            dim=dim,
            inner=_inner(config, hidden),
            shared=shared,
            rows=rows,
            numbers=(1 if shared else 2) * width,
            shapes=shapes,
            stateful=kinds.count("state") + kinds.count("both"),
            convolved=convolved,
            recurrent=recurrent,
            window=_window(config),
        )
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the model's config.json must have all sizes, got {error}") from error


def _largest(config: Mapping[str, Any], *names: str) -> int:
    """The first of these settings that is not 0, or the largest number of its list; else 0."""
    value = next((config[name] for name in names if config.get(name)), 0)
    return int(max(value) if isinstance(value, list) else value)


def _inner(config: Mapping[str, Any], hidden: int) -> int:
    dense = _largest(config, "intermediate_size", "ffn_hidden_size", "block_ff_dim") or 4 * hidden
    width = _largest(config, "moe_intermediate_size", "expert_ffn_hidden_size") or dense
    return max(dense, width * _used_experts(config))


def _used_experts(config: Mapping[str, Any]) -> int:
    return _largest(config, "num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts")


def _window(config: Mapping[str, Any]) -> int:
    """The sliding window; 0: there is none, or it is no shorter than the model's texts."""
    window = int(config.get("sliding_window") or 0)
    positions = config.get("max_position_embeddings")
    unused = positions is not None and window >= positions
    return 0 if unused or not config.get("use_sliding_window", True) else window


def _state(config: Mapping[str, Any], hidden: int) -> tuple[int, int]:
    """Numbers of a layer's convolution state, and of its recurrent state."""
    kernel = _largest(config, "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel") or 4
    if keys := _largest(config, "linear_num_key_heads"):
        heads, dim = (
            _largest(config, "linear_num_value_heads"),
            _largest(config, "linear_key_head_dim"),
        )
        value = _largest(config, "linear_value_head_dim")
        return kernel * (2 * keys * dim + heads * value), heads * dim * value
    if state := _largest(config, "mamba_d_state", "ssm_state_size"):
        wide = (_largest(config, "mamba_expand", "expand") or 2) * hidden
        wide = _largest(config, "mamba_d_ssm") or wide
        if heads := _largest(config, "mamba_num_heads"):
            wide = heads * _largest(config, "mamba_head_dim")
        groups = _largest(config, "mamba_n_groups", "n_groups") or 1
        return kernel * (wide + 2 * groups * state), wide * state
    return (_largest(config, "conv_L_cache") or 3) * hidden, 0


@dataclass(frozen=True)
class Weights:
    """The size of a model's weights.

    Args:
        nbytes: bytes in memory, with numbers of `size` bytes. body: numbers in the matrices of the
            layers and experts that a token passes.
    """

    nbytes: int
    body: int
    size: int

    def bytes_of(self, size: int) -> int:
        """Bytes in memory with numbers of another size, without regard to quantisation."""
        return self.nbytes * size // self.size


def weights_of(folder: Path, device: str, size: int, packing: str = "") -> Weights:
    """Measures the weights of the model in a folder, which may have no more than config.json.

    Args:
        device: of `choose_device`. size: bytes of a number in computations. packing: of
            `QUANTIZATIONS`; "": none.

    Raises ModelError: the files are damaged, or transformers does not know the model."""
    config = read_config(folder)
    kept = not packing and stays_quantised(config, device)
    if _has_weights(folder):
        nbytes = bytes_needed(folder, size, packing, kept)
        return Weights(nbytes, body_of(language_weights(folder), config), size)
    tensors, total = unmade_weights(folder), 0.0
    for tensor in tensors:
        each: float = size
        if _is_layer_matrix(tensor):
            if not kept:
                each = packed_bytes(packing, size)
            elif _is_of_experts(tensor) or quantization_in(config) != "mxfp4":
                each = kept_bytes(config)
        total += math.prod(tensor.shape) * each
    return Weights(int(total), body_of(tensors, config), size)


def _has_weights(folder: Path) -> bool:
    """Whether a folder has all files of weights, not only their index."""
    try:
        weight_files(folder)
    except ModelError:
        return False
    return True


def body_of(tensors: Iterable[StoredWeight], config: Mapping[str, Any]) -> int:
    """Counts the numbers in the matrices of the layers that a token passes."""
    settings = config.get("text_config") or config
    experts = _largest(
        settings, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"
    )
    share = min(1.0, _used_experts(settings) / experts) if experts else 1.0
    total = 0.0
    for tensor in tensors:
        if _is_layer_matrix(tensor):
            total += math.prod(tensor.shape) * (share if _is_of_experts(tensor) else 1.0)
    return int(total)


def _is_layer_matrix(tensor: StoredWeight) -> bool:
    return len(tensor.shape) > 1 and not any(
        part in tensor.name for part in ("embed", "lm_head", "wte", "wpe")
    )


def _is_of_experts(tensor: StoredWeight) -> bool:
    """Whether a tensor belongs to experts: one matrix for each, or one tensor for all."""
    return ".experts." in tensor.name or (len(tensor.shape) == 3 and "conv" not in tensor.name)

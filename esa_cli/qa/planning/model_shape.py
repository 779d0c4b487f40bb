"""The sizes of a model, from the settings in its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.attachment.families import (
    FAMILIES,
    family_of,
    key_shape,
    key_shapes,
    layer_kinds,
    layer_shapes,
    layer_types,
    source_layers,
)
from esa_cli.models.loading.quantization import (
    kept_bytes,
    packed_bytes,
    quantization_in,
    stays_quantised,
)

UNGATED = (
    "apertus",
    "arcee",
    "gpt_neox",
    "jais2",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "persimmon",
    "phi",
    "starcoder2",
)
"""Families whose MLPs have two maps; those of all others have a gate besides."""


def mlp_sizes(config: dict[str, Any]) -> tuple[int, int]:
    """Inner sizes of what a token passes in a layer, and of the layer's other experts.

    Raises KeyError: there is no inner size.
    """
    inner, experts = _plain(config), _experts(config)
    if not experts:
        return inner, 0
    width = first_of(config, "moe_intermediate_size") or inner
    used = min(experts, first_of(config, "num_experts_per_tok", "moe_k", "top_k_experts") or 1)
    shared = first_of(
        config,
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    )
    if config.get("enable_moe_block"):  # Gemma 4 has experts beside its MLP
        shared = inner
    several = first_of(config, "n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return used * width + (shared or several * width), (experts - used) * width


def dense_mlps(config: dict[str, Any]) -> tuple[int, int]:
    """Layers of a model with experts that have an MLP in their place, and its inner size."""
    if not _experts(config):
        return 0, 0
    if (types := config.get("mlp_layer_types")) is not None:
        return types.count("dense"), _plain(config)
    first = first_of(config, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    return first or len(config.get("mlp_only_layers") or []), _plain(config)


def first_of(config: dict[str, Any], *names: str) -> int:
    """The first of these settings that is a number; 0: there is none."""
    return next((int(config[name]) for name in names if config.get(name)), 0)


def mean_size(sizes: Any) -> int:
    """An inner size; where layers have one each (Gemma 3n), their mean."""
    return sum(sizes) // len(sizes) if isinstance(sizes, list) else int(sizes)


def _experts(config: dict[str, Any]) -> int:
    names = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    return first_of(config, *names)


def _plain(config: dict[str, Any]) -> int:
    """Of an MLP without experts. LFM2 names the size before two thirds are taken of it."""
    inner = mean_size(config.get("block_ff_dim") or config["intermediate_size"])
    if config.get("model_type") != "lfm2" or not config.get("block_auto_adjust_ff_dim", True):
        return inner
    inner = int(2 * inner / 3)
    if (factor := config.get("block_ffn_dim_multiplier", 1.0)) is None:
        return inner
    step = int(config.get("block_multiple_of") or 256)
    return -(-int(factor * inner) // step) * step


@dataclass(frozen=True)
class SharedRows:
    """Differences from a model whose layers are all like those with full attention.

    Args:
        saved: numbers of a token that are not kept, as rows of layers with a window are smaller.
        weights: of the layers that read others' rows, of what layers make of their own embeddings,
            and those that smaller heads have not, which count negative.
        embeddings: weights of embeddings that layers have for themselves.
        shapes: G and D of the layers that keep rows, where these are not alike.
    """

    saved: int = 0
    weights: int = 0
    embeddings: int = 0
    shapes: tuple[tuple[int, int], ...] = ()


ALIKE = SharedRows()


def shared_rows(config: Mapping[str, Any]) -> SharedRows:
    """Of a model with these settings, which has none where layers are alike. Raises AttributeError:
    a size is missing."""
    settings = SimpleNamespace(**config)
    readers, shapes = source_layers(settings), layer_shapes(settings)
    if not readers and len({*shapes}) == 1:
        return ALIKE
    hidden, heads = int(settings.hidden_size), int(settings.num_attention_heads)
    groups, dim = key_shape(settings)
    usual = hidden * dim * (2 * heads + 2 * groups)
    full = [kind == "full_attention" for kind in layer_types(settings)]
    weights = saved = 0
    for layer, (own, size) in enumerate(shapes):
        if layer in readers:
            weights += 2 * hidden * heads * size
        else:
            one = full[layer] and bool(config.get("attention_k_eq_v"))  # maps keys and values
            weights += hidden * size * (2 * heads + (1 if one else 2) * own) - usual
            saved += 2 * (groups * dim - own * size)
    if readers and config.get("use_double_wide_mlp"):
        weights += len(readers) * 3 * hidden * mean_size(config["intermediate_size"])
    table = int(config.get("vocab_size_per_layer_input") or 0) * len(shapes)
    width = int(config.get("hidden_size_per_layer_input") or 0)
    table, weights = table * width, weights + 3 * hidden * width * len(shapes)
    return SharedRows(saved, weights, table, tuple(key_shapes(settings)))


_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "tie_word_embeddings",
)

GATED = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "afmoe")
"""Families with a gate of attention's output."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, from its config.json; in the symbols of docs/design.md."""

    layers: int
    hidden: int
    heads: int
    groups: int
    dim: int
    inner: int
    """Of the MLP, or of the experts that a token passes."""
    vocabulary: int
    tied: bool
    idle: int = 0
    """Of the experts that it does not pass."""
    dense: int = 0
    """Layers with an MLP in place of experts."""
    dense_inner: int = 0
    """Of this MLP."""
    maps: int = 3
    """Of an MLP or an expert."""
    shared: bool = False
    """Whether the keys are the values, too."""
    projections: int = 0
    """Weights of a layer's projections where they are not those of queries, keys, values and
    output alone: they go through latents, or there is a gate."""
    packed: float = 1.0
    """Bytes of a weight of the layers, of those of a number."""
    packed_experts: float = 1.0
    """The same of the MLPs of a model with experts."""
    keyless: int = 0
    """Layers that keep no keys."""
    stateful: int = 0
    """Layers that keep a state."""
    mixer: int = 0
    """Weights of such a layer, without its MLP and attention."""
    convolved: int = 0
    """Numbers that its convolution keeps."""
    recurrent: int = 0
    """Numbers of its recurrent state, which are float32 whatever the model's type is."""
    single: int = 0
    """Layers that are an MLP alone; where there are any, the others have none."""
    window: int = 0
    """Tokens that the model's own window has, in layers that attend to one."""
    unlike: SharedRows = ALIKE
    """What some layers have that others have not, of families where they share rows."""

    @property
    def row(self) -> int:
        """Numbers that a layer keeps of a token."""
        return (1 if self.shared else 2) * self.groups * self.dim

    @property
    def rows(self) -> int:
        """Layers that keep keys and values."""
        return self.layers - self.keyless

    @property
    def numbers(self) -> int:
        """Numbers that all layers keep of a token."""
        return self.rows * self.row - self.unlike.saved

    def states(self, size: int) -> int:
        """Bytes of a document's states, all layers, with numbers of `size` bytes."""
        return self.stateful * (self.convolved * size + self.recurrent * 4)

    def _mlps(self, inner: int) -> int:
        """Weights of all layers' MLPs of this inner size, or experts."""
        return ((self.single or self.layers) - self.dense) * self.maps * self.hidden * inner

    @property
    def _others(self) -> int:
        """Weights of the layers but for these: projections, mixers, and MLPs in place of
        experts."""
        whole = self.hidden * self.dim * (2 * self.heads + 2 * self.groups)
        dense = self.dense * self.maps * self.hidden * self.dense_inner
        own = self.rows * (self.projections or whole) + self.unlike.weights
        return own + self.stateful * self.mixer + dense

    @property
    def body(self) -> int:
        """Weights of the layers that a token passes."""
        return self._others + self._mlps(self.inner)

    @property
    def weights(self) -> int:
        """All weights, embeddings and experts included."""
        mlps = self._mlps(self.inner + self.idle)
        packed = self.packed_experts if self.idle else self.packed
        layers = self._others * self.packed + mlps * packed
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return int(layers) + embeddings + self.unlike.embeddings


def shape_of(config: dict[str, Any]) -> Shape:
    """Raises ModelError when config.json lacks a size."""
    try:
        config = _common_names(config)
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        (inner, idle), settings = mlp_sizes(config), SimpleNamespace(**config)
        dense, dense_inner = dense_mlps(config)
        groups, dim = key_shape(settings)
        # The gate is as large as the queries.
        gate = config.get("model_type") in GATED
        sizes = 3 * heads + 2 * groups
        latent, kinds = family_of(settings).latent, layer_kinds(config)
        convolved, recurrent = _state(config, hidden)
        return Shape(
            layers=len(kinds),
            hidden=hidden,
            heads=heads,
            groups=groups,
            dim=dim,
            inner=inner,
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            idle=idle,
            dense=dense,
            dense_inner=dense_inner,
            maps=2 if config.get("model_type") in UNGATED else 3,
            shared=latent,
            projections=_low_rank(config) if latent else gate * hidden * dim * sizes,
            keyless=sum(kinds.count(one) for one in ("state", "idle", "reader")),
            stateful=kinds.count("state") + kinds.count("both"),
            mixer=_mixer(config, hidden),
            convolved=convolved,
            recurrent=recurrent,
            single=kinds.count("idle"),
            window=_window(config),
            unlike=shared_rows(config),
        )
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the model's config.json must have all sizes, got {error}") from error


def _window(config: dict[str, Any]) -> int:
    """Of `sliding_window`, where texts within the model's limit are longer."""
    window = int(config.get("sliding_window") or 0)
    longest = config.get("max_position_embeddings")
    within = longest is not None and window >= longest
    return 0 if within or not config.get("use_sliding_window", True) else window


def _common_names(config: dict[str, Any]) -> dict[str, Any]:
    """Hunyuan's and LongCat-Flash's settings as other models have them; else as they are. Of the
    first, a token passes an MLP beside its experts; the second's layers are two with an MLP each,
    and one of them has experts besides. Of a model of no supported family the sizes alone, which
    are those of `language_settings`."""
    if "model_type" in config and config["model_type"] not in FAMILIES:
        return {name: config[name] for name in _SIZES if name in config}
    if config.get("model_type") == "hunyuan_v1_moe":
        used = config.get("moe_topk") or 1
        most = max(used) if isinstance(used, list) else used
        inner = config["intermediate_size"]
        return {**config, "num_experts_per_tok": most, "shared_intermediate_size": inner}
    if config.get("model_type") != "longcat_flash":
        return config
    names = ("num_layers", "ffn_hidden_size", "expert_ffn_hidden_size", "moe_topk")
    layers, inner, width, used = (int(config[name]) for name in names)
    return {
        **config,
        "num_hidden_layers": 2 * layers,
        "moe_intermediate_size": width // 2,
        "num_experts_per_tok": used,
        "shared_intermediate_size": inner,
        "intermediate_size": inner,
    }


def _low_rank(config: dict[str, Any]) -> int:
    """Weights of a layer's projections with latents of queries, if there are any, and of keys."""
    names = ("num_attention_heads", "hidden_size", "kv_lora_rank", "qk_rope_head_dim")
    heads, hidden, latent, rotary = (int(config[name]) for name in names)
    rest, values = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
    rank, wide = first_of(config, "q_lora_rank"), heads * (rest + rotary)
    queries = rank * (hidden + wide) if rank else hidden * wide
    keys = hidden * (latent + rotary) + latent * heads * (rest + values)
    return queries + keys + heads * values * hidden


def _mixer(config: dict[str, Any], hidden: int) -> int:
    """Weights of a layer that keeps a state, without its MLP; short convolutions and small maps are
    left out."""
    if keys := first_of(config, "linear_num_key_heads"):
        key = keys * first_of(config, "linear_key_head_dim")
        value = first_of(config, "linear_num_value_heads") * first_of(
            config, "linear_value_head_dim"
        )
        return hidden * (2 * key + 3 * value)
    if state := first_of(config, "mamba_d_state", "ssm_state_size"):
        wide, groups = _mamba(config, hidden)
        return hidden * (3 * wide + 2 * groups * state)
    return 4 * hidden * hidden


def _mamba(config: dict[str, Any], hidden: int) -> tuple[int, int]:
    """Inner size and groups of a Mamba layer."""
    wide = (first_of(config, "mamba_expand", "expand") or 2) * hidden
    wide = first_of(config, "mamba_d_ssm") or wide
    if heads := first_of(config, "mamba_num_heads"):
        wide = heads * first_of(config, "mamba_head_dim")
    return wide, first_of(config, "mamba_n_groups", "n_groups") or 1


def _state(config: dict[str, Any], hidden: int) -> tuple[int, int]:
    """Numbers that a layer with a state keeps: of its convolution, and of its recurrent state."""
    kernel = first_of(config, "linear_conv_kernel_dim", "mamba_d_conv", "conv_kernel") or 4
    if keys := first_of(config, "linear_num_key_heads"):
        heads, dim = (
            first_of(config, "linear_num_value_heads"),
            first_of(config, "linear_key_head_dim"),
        )
        value = first_of(config, "linear_value_head_dim")
        return kernel * (2 * keys * dim + heads * value), heads * dim * value
    if state := first_of(config, "mamba_d_state", "ssm_state_size"):
        wide, groups = _mamba(config, hidden)
        return kernel * (wide + 2 * groups * state), wide * state
    return (first_of(config, "conv_L_cache") or 3) * hidden, 0


def with_packing(
    shape: Shape, config: dict[str, Any], device: str, packing: str, size: int
) -> Shape:
    """The shape of a model with the bytes of its weights on a device.

    Args:
        config: of config.json. device: of `choose_device`. packing: of `QUANTIZATIONS`; "": none.
        size: bytes of a number of the type that is computed in.
    """
    if packing or not stays_quantised(config, device):
        return replace(shape, packed=packed_bytes(packing, size) / size)
    stored = kept_bytes(config) / size
    experts_alone = quantization_in(config) == "mxfp4"
    return replace(shape, packed=1.0 if experts_alone else stored, packed_experts=stored)

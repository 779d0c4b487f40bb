"""Lists the model families to which ESA can be attached, and reads the types, attention windows and
key heads of a model's layers from the model's configuration.

Every `config` is a configuration of transformers, or an object with the settings of a config.json
as attributes. Importing this module imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

from esa_cli.errors import ModelError

if TYPE_CHECKING:
    from esa_cli.attention.rope import Pairs


@dataclass(frozen=True)
class ModelFamily:
    """What attaching ESA needs to know of a model family; the default values are Llama's."""

    pairs: Pairs = "half"  # which dimensions of a head rotate together
    # Which layers rotate queries and keys: "" all; "sliding" those with a window; "hybrid" those
    # with a window, or all if none has one; "prefix" those with a window and full layers without
    # experts; or the name of the setting that lists them.
    rotating: str = ""
    norms_after: tuple[str, str] | None = None  # modules that normalise rotated queries and keys
    half_table: bool = False  # the rotary module returns each angle once instead of twice
    complex_table: bool = False  # the rotary module returns complex numbers
    attention_cap: str = ""  # setting with the soft cap of attention logits
    latent: bool = False  # the cache receives latents of keys and values (MLA)
    all_layers_slide: bool = False  # the setting `sliding_window` applies to all layers
    switches_rope: bool = False  # `generate` drops the cache at `original_max_position_embeddings`
    sharing_layers: str = ""  # setting with the number of last layers that share keys
    skips_tokens: bool = False  # layers that share keys skip tokens as `logits_to_keep` says
    unequal_heads: bool = False  # full layers may differ in number and size of key heads
    projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")  # or modules that make latents


_LLAMA = ModelFamily()
_SLIDING = ModelFamily(all_layers_slide=True)
_INTERLEAVED = ModelFamily(pairs="interleaved")
_LATENT = ModelFamily(latent=True, projections=("q_proj", "q_b_proj", "kv_a_proj_with_mqa"))
_GEMMA3N = ModelFamily(sharing_layers="num_kv_shared_layers")
_TABLE: tuple[tuple[str, ModelFamily], ...] = (
    ("llama qwen2 qwen3 olmo2 qwen2_moe seed_oss arcee apertus olmo flex_olmo gemma dots1 jais2 "
     "solar_open bitnet hy_v3 olmo3 cwm ministral lfm2 lfm2_moe lfm3 nemotron_h olmo_hybrid mellum "
     "stablelm glm4_moe minimax_m2 phi nemotron qwen3_next qwen3_5_text qwen3_5_moe_text laguna "
     "granite granitemoe granitemoeshared granitemoehybrid hyperclovax falcon_h1 gemma3_text",
     _LLAMA),
    ("mistral mixtral qwen3_moe starcoder2 olmoe ministral3", _SLIDING),
    ("ernie4_5 ernie4_5_moe helium glm4 glm cohere", _INTERLEAVED),
    ("gemma2 vaultgemma", ModelFamily(attention_cap="attn_logit_softcapping")),
    ("exaone4 exaone_moe kolibri1", ModelFamily(rotating="hybrid")),
    ("hunyuan_v1_dense hunyuan_v1_moe",
     ModelFamily(norms_after=("query_layernorm", "key_layernorm"))),
    ("gpt_neox persimmon", ModelFamily(projections=("query_key_value",))),
    ("deepseek_v3 glm4_moe_lite youtu mistral4 longcat_flash axk1 minicpm3", _LATENT),
    ("deepseek_v2", replace(_LATENT, pairs="interleaved", complex_table=True)),
    ("phi3", ModelFamily(all_layers_slide=True, switches_rope=True, projections=("qkv_proj",))),
    ("phimoe", replace(_SLIDING, switches_rope=True)),
    ("smollm3", ModelFamily(rotating="no_rope_layers")),
    ("cohere2", replace(_INTERLEAVED, rotating="sliding")),
    ("cohere2_moe", replace(_INTERLEAVED, rotating="prefix")),
    ("nanochat", ModelFamily(pairs="reversed")),
    ("gemma3n_text", _GEMMA3N),
    ("gemma4_text gemma4_unified_text", replace(_GEMMA3N, skips_tokens=True, unequal_heads=True)),
    ("gpt_oss", ModelFamily(half_table=True)),
    ("afmoe flint", ModelFamily(rotating="sliding")),
)  # fmt: skip
FAMILIES: dict[str, ModelFamily] = {
    kind: family for kinds, family in _TABLE for kind in kinds.split()
}
"""The traits of each family by `model_type`; tests compare the logits with transformers'."""

INSTEAD_HINT = (
    "answer from passages (answer.from=text), as `esa ask` does without --method and --keep, or "
    "choose a model of a type that docs/models.md lists"
)
"""The hint of errors that say that methods cannot run in a model."""
FIXED_ALPHA = ("hunyuan_v1_dense", "hunyuan_v1_moe")
"""Families whose rotary embedding uses fixed frequencies if the setting `alpha` is present."""
STATIC_ROPE = ("default", "linear", "llama3", "yarn", "longrope", "proportional")


def get_model_family(config: object) -> ModelFamily:
    """Returns the family of a model, or for an unknown `model_type` Llama's."""
    return FAMILIES.get(getattr(config, "model_type", ""), _LLAMA)


def check_esa_supports_model_type(model_type: str | None) -> None:
    if model_type not in FAMILIES:
        raise ModelError(f"ESA's methods cannot run in models of type {model_type!r}", INSTEAD_HINT)


def check_esa_supports_config(config: Any) -> None:
    kind = getattr(config, "model_type", "unknown")
    check_esa_supports_model_type(kind)
    list_sliding_windows(config)
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        message = f"this {kind} model attends to later tokens, not only to earlier"
        raise ModelError(message, INSTEAD_HINT)
    if dynamic := sorted({*list_rope_types(config)} - {*STATIC_ROPE}):
        raise ModelError(
            f"the rotary embedding of type {dynamic[0]!r} changes with the input's length, "
            "so that cached keys would become wrong",
            INSTEAD_HINT,
        )


def list_rope_types(config: Any) -> list[str]:
    """Returns the types of a model's rotary embeddings, such as "yarn" or "llama3"."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if config.model_type in FIXED_ALPHA and parameters.get("alpha"):  # the type is named dynamic
        return ["default"]
    nested = [one for one in parameters.values() if isinstance(one, dict) and "rope_type" in one]
    return [str(part.get("rope_type", "default")) for part in nested or [parameters]]


FULL_TYPES = ("full_attention", "hybrid")
ATTENTION_TYPES = (*FULL_TYPES, "sliding_attention")
Kind = Literal["attention", "reader", "state", "both", "idle"]
_OTHER_KINDS: dict[str, Kind] = {
    "conv": "state", "linear_attention": "state", "mlp": "idle", "moe": "idle", "hybrid": "both"
}  # fmt: skip
"""Maps the types of layers that do not only store keys to what these layers store: a state, that is
a convolution's inputs or a recurrent state; both state and keys; or nothing ("idle")."""
_OTHER_NAMES = {
    "attention": "full_attention", "mamba": "linear_attention", "recurrent": "linear_attention",
    "*": "full_attention", "M": "linear_attention", "-": "mlp", "E": "moe",
}  # fmt: skip
"""Maps other names of layer types to transformers'; characters come from Nemotron's pattern."""


def list_layer_types(config: Any) -> list[str]:
    """Returns the type of each layer of a model, such as "full_attention", named as in
    transformers. Raises AttributeError: the number of layers is missing."""
    kind, family = getattr(config, "model_type", None), get_model_family(config)
    for name in ("layer_types", "hybrid_override_pattern", "layers_block_type"):
        if not family.all_layers_slide and (types := getattr(config, name, None)):
            return [_OTHER_NAMES.get(layer, layer) for layer in types]
    # LongCat-Flash counts as one layer what attends twice; unknown models may have other names.
    count = getattr(config, "num_hidden_layers", None)
    count = int(count or (2 * config.num_layers if kind in FAMILIES else 1))
    if family.all_layers_slide and getattr(config, "sliding_window", None) is not None:
        return ["sliding_attention"] * count
    if kind == "falcon_h1":
        return ["hybrid"] * count
    attending = getattr(config, "full_attn_idxs", None)
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        interval = int(getattr(config, "full_attention_interval", None) or 4)
        attending = range(interval - 1, count, interval)
    full = range(count) if attending is None else attending
    return ["full_attention" if layer in full else "conv" for layer in range(count)]


def has_recurrence(config: Any) -> bool:
    """Whether some layers of a model store a recurrent state or a convolution's last inputs."""
    return any(_OTHER_KINDS.get(kind) in ("state", "both") for kind in list_layer_types(config))


def list_sliding_windows(config: Any) -> list[int | None]:
    """Returns the sliding window of each layer in tokens, or None for a layer that attends to all
    tokens or has no attention. Raises ModelError: a layer type is unknown, or no layer is full."""
    types, window = list_layer_types(config), getattr(config, "sliding_window", None)
    longest = getattr(config, "max_position_embeddings", None)
    if window is not None and longest is not None and window >= longest:
        window = None
    reason, nothing = "", "so that no method can select tokens"
    if other := sorted({*types} - {*ATTENTION_TYPES, *_OTHER_KINDS}):
        reason = f"has layers of type {', '.join(other)}; ESA needs full or sliding attention"
    elif {*ATTENTION_TYPES}.isdisjoint(types):
        reason = f"has no layer with attention, {nothing}"
    elif window is not None and {*FULL_TYPES}.isdisjoint(types):
        reason = f"has a window of {window} tokens in every layer, {nothing}"
    if reason:
        raise ModelError(f"this {config.model_type} model {reason}", INSTEAD_HINT)
    return [window if kind == "sliding_attention" else None for kind in types]


def list_full_attention_layers(config: Any) -> list[int]:
    """Returns the indices of the layers in which methods select tokens. Raises ModelError."""
    layers = enumerate(zip(list_layer_types(config), list_sliding_windows(config), strict=True))
    return [i for i, (kind, window) in layers if kind in ATTENTION_TYPES and window is None]


def map_key_source_layers(config: Any) -> dict[int, int]:
    """Maps each layer that uses another layer's keys to that other layer. Raises ValueError."""
    count = int(getattr(config, get_model_family(config).sharing_layers or "", None) or 0)
    if not count:
        return {}
    types = list_layer_types(config)
    start = len(types) - count
    storing = types[: max(0, start)][::-1]
    return {i: start - 1 - storing.index(types[i]) for i in range(start, len(types))}


def list_layer_cache_kinds(config: Any) -> list[Kind]:
    """Returns what each layer of a model caches: "attention" for keys and values, "state" for a
    recurrent state, "both", "reader" if it uses another layer's keys, or "idle" for nothing."""
    readers, types = map_key_source_layers(config), enumerate(list_layer_types(config))
    return ["reader" if i in readers else _OTHER_KINDS.get(kind, "attention") for i, kind in types]


def get_latent_quantization_block_size(config: Any) -> int:
    """Returns how many numbers of an MLA latent share one scale in 8 bits, or 0 without MLA."""
    if not get_model_family(config).latent:
        return 0
    # No block has rotary and other dimensions, since the rotary ones may be much larger.
    return gcd(int(config.qk_rope_head_dim), int(config.kv_lora_rank))


def get_kv_head_shape(config: Any) -> tuple[int, int]:
    """Returns the number of key heads and their dimension in layers with full attention; the
    latents of MLA count as one key head. Raises AttributeError: the configuration lacks a size."""
    if get_model_family(config).unequal_heads:
        return _get_layer_kv_head_shape(config, list_layer_types(config).index("full_attention"))
    if get_model_family(config).latent:
        return 1, int(config.qk_rope_head_dim) + int(config.kv_lora_rank)
    return _read_usual_kv_head_settings(config)


def _read_usual_kv_head_settings(config: Any) -> tuple[int, int]:
    heads = int(config.num_attention_heads)
    dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return int(getattr(config, "num_key_value_heads", None) or heads), dim


def list_unequal_kv_heads(config: Any) -> list[tuple[int, int]]:
    """Returns number and dimension of key heads of layers that store keys, or [] if equal."""
    if not get_model_family(config).unequal_heads:
        return []
    storing = {*range(len(list_layer_types(config)))} - {*map_key_source_layers(config)}
    shapes = [_get_layer_kv_head_shape(config, layer) for layer in sorted(storing)]
    return shapes if len({*shapes}) > 1 else []


def _get_layer_kv_head_shape(config: Any, layer_index: int) -> tuple[int, int]:
    each: Any = getattr(config, "per_layer_config", None)
    if each is not None and not isinstance(each, Mapping):
        return int(each[layer_index].num_key_value_heads), int(each[layer_index].head_dim)
    groups, dim = _read_usual_kv_head_settings(config)
    if each is not None:
        changed = {int(i): settings for i, settings in each.items()}.get(layer_index, {})
        return int(changed.get("num_key_value_heads", groups)), int(changed.get("head_dim", dim))
    if list_layer_types(config)[layer_index] == "full_attention":
        shared = getattr(config, "attention_k_eq_v", False)
        groups = int((shared and getattr(config, "num_global_key_value_heads", None)) or groups)
        dim = int(getattr(config, "global_head_dim", None) or 512)  # as in Gemma 4
    return groups, dim

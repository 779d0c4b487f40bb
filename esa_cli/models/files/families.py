"""The model families that ESA can be attached to, and what follows from a configuration: the types,
windows and sizes of its layers.

Functions take a configuration of transformers, or the settings of a config.json as attributes.
Importing this costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import gcd
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

from esa_cli.errors import ModelError

if TYPE_CHECKING:
    from esa_cli.attention.rope import Pairs


@dataclass(frozen=True)
class Family:
    """Traits of a family; the defaults are Llama's.

    A norm of queries and keys before their rotation needs no entry: the cache receives normed keys.
    The factor of q . k is the attention module's own.

    Args:
        pairs: which dimensions rotate together.
        rotating: which layers rotate; "": all; "sliding": those with a window; "hybrid": those, or
            all if none has a window; "prefix": those, and layers without experts that are all full;
            else the setting that lists it for each layer.
        norms_after: modules that norm queries and keys after their rotation, with weights.
        half_table: its rotary module returns each angle once, not twice.
        complex_table: it returns one tensor of complex numbers.
        sinks: each head has a learned logit without a key.
        attention_cap: setting that is the soft cap of attention's logits.
        latent: keys and values are made from latents (MLA), which the cache receives.
        slides: a `sliding_window` is that of all layers, whatever `layer_types` says.
        switches: its `generate` drops the cache at `original_max_position_embeddings` tokens.
        sharing: setting that is how many of the last layers have queries alone, and read the rows
            of the last layer of their type before them.
        leaves_out: its body leaves out tokens in these layers, by `logits_to_keep`.
        wide: layers with full attention may have key heads of another number and size.
        projections: modules that make queries, keys and values, or latents, if they are there.
        multiply: setting that logits are multiplied by. divide: divided by. cap: soft cap of them.
    """

    pairs: Pairs = "half"
    rotating: str = ""
    norms_after: tuple[str, str] | None = None
    half_table: bool = False
    complex_table: bool = False
    sinks: bool = False
    attention_cap: str = ""
    latent: bool = False
    slides: bool = False
    switches: bool = False
    sharing: str = ""
    leaves_out: bool = False
    wide: bool = False
    projections: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    multiply: str = ""
    divide: str = ""
    cap: str = ""


_LLAMA = Family()
_SLIDES = Family(slides=True)
_NEIGHBOURS = Family(pairs="interleaved")
_SCALED = Family(divide="logits_scaling")
_CAPPED = Family(cap="final_logit_softcapping")
_CAPPED_TWICE = replace(_CAPPED, attention_cap="attn_logit_softcapping")
_HYBRID = Family(rotating="hybrid")
_COHERE = Family(pairs="interleaved", multiply="logit_scale")
_HUNYUAN = Family(norms_after=("query_layernorm", "key_layernorm"))
_FUSED = Family(projections=("query_key_value",))
_LATENT = Family(latent=True, projections=("q_proj", "q_b_proj", "kv_a_proj_with_mqa"))
_GEMMA3N = replace(_CAPPED, sharing="num_kv_shared_layers")
_GEMMA4 = replace(_GEMMA3N, leaves_out=True, wide=True)

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(
        (
            "llama", "qwen2", "qwen3", "olmo2", "qwen2_moe", "seed_oss", "arcee", "apertus", "olmo",
            "flex_olmo", "gemma", "dots1", "jais2", "solar_open", "bitnet", "hy_v3", "olmo3", "cwm",
            "ministral", "lfm2", "lfm2_moe", "lfm3", "nemotron_h", "olmo_hybrid", "mellum",
            "stablelm", "glm4_moe", "minimax_m2", "phi", "nemotron", "qwen3_next", "qwen3_5_text",
            "qwen3_5_moe_text", "laguna",
        ),
        _LLAMA,
    ),
    **dict.fromkeys(
        ("mistral", "mixtral", "qwen3_moe", "starcoder2", "olmoe", "ministral3"), _SLIDES
    ),
    **dict.fromkeys(("ernie4_5", "ernie4_5_moe", "helium", "glm4", "glm"), _NEIGHBOURS),
    **dict.fromkeys(("granite", "granitemoe", "granitemoeshared", "granitemoehybrid"), _SCALED),
    **dict.fromkeys(("gemma2", "vaultgemma"), _CAPPED_TWICE),
    **dict.fromkeys(("exaone4", "exaone_moe", "kolibri1"), _HYBRID),
    **dict.fromkeys(("hunyuan_v1_dense", "hunyuan_v1_moe"), _HUNYUAN),
    **dict.fromkeys(("gpt_neox", "persimmon"), _FUSED),
    **dict.fromkeys(
        ("deepseek_v3", "glm4_moe_lite", "youtu", "mistral4", "longcat_flash", "axk1"), _LATENT
    ),
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text"), _GEMMA4),
    "deepseek_v2": replace(_LATENT, pairs="interleaved", complex_table=True),
    "minicpm3": replace(_LATENT, divide="logits_scaling"),
    "phi3": Family(slides=True, switches=True, projections=("qkv_proj",)),
    "phimoe": replace(_SLIDES, switches=True),
    "smollm3": Family(rotating="no_rope_layers"),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, rotating="sliding"),
    "cohere2_moe": replace(_COHERE, rotating="prefix"),
    "nanochat": replace(_CAPPED, pairs="reversed"),
    "hyperclovax": Family(multiply="logits_scaling"),
    "falcon_h1": Family(multiply="lm_head_multiplier"),
    "gemma3_text": _CAPPED,
    "gemma3n_text": _GEMMA3N,
    "gpt_oss": Family(half_table=True, sinks=True),
    "afmoe": Family(rotating="sliding"),
    "flint": Family(rotating="sliding", sinks=True),
}  # fmt: skip
"""By `model_type`; docs/models.md names the models. Logits are tested against stock attention."""

INSTEAD = (
    "it answers from passages found by their words (answer.from=text), as `esa ask` does where no "
    "--method or --keep asks for more; methods run in the types of docs/models.md"
)
"""The hint where methods cannot run in a model."""
FIXED_ALPHA = ("hunyuan_v1_dense", "hunyuan_v1_moe")
"""Families whose rotary embedding has fixed frequencies where it has an alpha."""
STATIC_ROPE = ("default", "linear", "llama3", "yarn", "longrope", "proportional")


def family_of(config: object) -> Family:
    """The entry of a model's configuration. For a `model_type` that has none, Llama's, with the
    soft cap of logits that some have: `text_forward.plain_forward` tries whether that is all."""
    if (entry := FAMILIES.get(getattr(config, "model_type", ""))) is not None:
        return entry
    return _CAPPED if hasattr(config, _CAPPED.cap) else _LLAMA


def check_type(kind: str | None) -> None:
    """Raises ModelError when models of this `model_type` cannot be attached."""
    if kind not in FAMILIES:
        raise ModelError(f"ESA's methods cannot run in models of type {kind!r}", INSTEAD)


def check_supported(config: Any) -> None:
    """Raises ModelError with the reason when a model of this configuration cannot be attached."""
    kind = getattr(config, "model_type", "unknown")
    check_type(kind)
    layer_windows(config)
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        raise ModelError(f"this {kind} model reads in both directions", INSTEAD)
    for rope in rope_types(config):
        if rope not in STATIC_ROPE:
            raise ModelError(
                f"rotary embedding of type {rope!r} changes with the input's length, "
                "so keys cannot be cached once for all",
                INSTEAD,
            )


def rope_types(config: Any) -> list[str]:
    """Types of rotary embeddings: of the layers, or of each of their types where these differ."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if config.model_type in FIXED_ALPHA and parameters.get("alpha"):  # it is named dynamic
        return ["default"]
    nested = [one for one in parameters.values() if isinstance(one, dict) and "rope_type" in one]
    return [str(one.get("rope_type", "default")) for one in nested or [parameters]]


FULL_TYPES = ("full_attention", "hybrid")
ATTENTION_TYPES = (*FULL_TYPES, "sliding_attention")
STATE_TYPES = ("conv", "linear_attention")
"""Types of layers that keep a convolution's inputs or a recurrent state in place of keys; hybrid
ones have both: attention to all tokens and a state."""
IDLE_TYPES = ("mlp", "moe")
"""Types of layers that keep nothing of the tokens before."""
_OTHER_NAMES = {
    "attention": "full_attention", "mamba": "linear_attention", "recurrent": "linear_attention",
    "*": "full_attention", "M": "linear_attention", "-": "mlp", "E": "moe",
}  # fmt: skip
"""Of types in config.json; the letters are those of Nemotron's `hybrid_override_pattern`."""
_INTERVAL = 4
"""Every so many layers one of Qwen3-Next and Qwen3.5 has attention, unless the settings say."""


def layer_types(config: Any) -> list[str]:
    """The type of each layer, as transformers names them; config.json may list none. Raises
    AttributeError: it does not say how many layers there are."""
    kind, family = getattr(config, "model_type", None), family_of(config)
    for name in ("layer_types", "hybrid_override_pattern", "layers_block_type"):
        if not family.slides and (types := getattr(config, name, None)):
            return [_OTHER_NAMES.get(one, one) for one in types]
    # LongCat-Flash counts as one layer what attends twice; unknown models may have other names.
    count = getattr(config, "num_hidden_layers", None)
    count = int(count or (2 * config.num_layers if kind in FAMILIES else 1))
    if family.slides and getattr(config, "sliding_window", None) is not None:
        return ["sliding_attention"] * count
    if kind == "falcon_h1":
        return ["hybrid"] * count
    attending = getattr(config, "full_attn_idxs", None)
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        interval = int(getattr(config, "full_attention_interval", None) or _INTERVAL)
        attending = range(interval - 1, count, interval)
    full = range(count) if attending is None else attending
    return ["full_attention" if i in full else "conv" for i in range(count)]


def keeps_state(config: Any) -> bool:
    """Whether some layers of a model keep a state in place of keys: it cannot be cropped, and those
    of several documents cannot be joined."""
    return not {*STATE_TYPES, "hybrid"}.isdisjoint(layer_types(config))


def layer_windows(config: Any) -> list[int | None]:
    """The window of each layer; None where it attends to all tokens, or has no attention.

    A window that no text within the model's limit is longer than counts as none.

    Raises:
        ModelError: a layer is of another type, or none attends to all tokens.
    """
    types, window = layer_types(config), getattr(config, "sliding_window", None)
    longest = getattr(config, "max_position_embeddings", None)
    if window is not None and longest is not None and window >= longest:
        window = None
    reason = ""
    if other := sorted(set(types) - {*ATTENTION_TYPES, *STATE_TYPES, *IDLE_TYPES}):
        reason = f"has layers of type {', '.join(other)}; ESA needs full or sliding attention"
    elif {*ATTENTION_TYPES}.isdisjoint(types):
        reason = "has no layer with attention, so that nothing can be selected"
    elif window is not None and {*FULL_TYPES}.isdisjoint(types):
        reason = (
            f"attends in all layers to a window of {window} tokens only, so that nothing can be "
            "selected"
        )
    if reason:
        raise ModelError(f"this {config.model_type} model {reason}", INSTEAD)
    return [window if kind == "sliding_attention" else None for kind in types]


def method_layers(config: Any) -> list[int]:
    """Indices of the layers that run a method. Raises ModelError: as `layer_windows`."""
    each = enumerate(zip(layer_types(config), layer_windows(config), strict=True))
    return [i for i, (kind, window) in each if kind in ATTENTION_TYPES and window is None]


def source_layers(config: Any) -> dict[int, int]:
    """Index of each layer that keeps no rows and reads those of another one -> the index of that
    one: the last one of its type before all such layers. Raises ValueError: there is none."""
    count = int(getattr(config, family_of(config).sharing or "", None) or 0)
    if not count:
        return {}
    types = layer_types(config)
    first = len(types) - count
    own = types[: max(0, first)][::-1]
    return {i: first - 1 - own.index(types[i]) for i in range(first, len(types))}


Kind = Literal["attention", "reader", "state", "both", "idle"]


def layer_kinds(settings: Mapping[str, Any]) -> list[Kind]:
    """Whether each layer has attention, reads the keys of another one, keeps a state in place of
    keys, has attention and a state, or neither: by the settings of a config.json. Raises
    AttributeError, ValueError: as `layer_types` and `source_layers`."""
    kinds: dict[str, Kind] = {
        **dict.fromkeys(STATE_TYPES, "state"), **dict.fromkeys(IDLE_TYPES, "idle"), "hybrid": "both"
    }  # fmt: skip
    config = SimpleNamespace(**settings)
    types, readers = enumerate(layer_types(config)), source_layers(config)
    return ["reader" if i in readers else kinds.get(one, "attention") for i, one in types]


def latent_block(config: Any) -> int:
    """Numbers of a row that share a scale in 8 bits where a model keeps latents, else 0. Rotary
    parts are not normed as latents are, and may be many times as large."""
    if not family_of(config).latent:
        return 0
    return gcd(int(config.qk_rope_head_dim), int(config.kv_lora_rank))


def key_shape(config: Any) -> tuple[int, int]:
    """G and D of stored keys, of the layers with full attention; in families with latents these are
    one head of rotary and latent dimensions. Raises AttributeError: the configuration lacks a
    size."""
    if family_of(config).latent:
        return 1, int(config.qk_rope_head_dim) + int(config.kv_lora_rank)
    if family_of(config).wide:
        return _wide_shape(config, layer_types(config).index("full_attention"), True)
    return _plain_shape(config)


def layer_shapes(config: Any) -> list[tuple[int, int]]:
    """G and D of the keys that each layer attends to. Raises AttributeError: as `key_shape`."""
    types = layer_types(config)
    if not family_of(config).wide:
        return [key_shape(config)] * len(types)
    return [_wide_shape(config, i, one == "full_attention") for i, one in enumerate(types)]


def key_shapes(config: Any) -> list[tuple[int, int]]:
    """G and D of each layer that keeps rows, where they are not alike; else []. Raises
    AttributeError: as `key_shape`."""
    readers = source_layers(config)
    shapes = [one for i, one in enumerate(layer_shapes(config)) if i not in readers]
    return shapes if len({*shapes}) > 1 else []


def _plain_shape(config: Any) -> tuple[int, int]:
    heads = int(config.num_attention_heads)
    groups = getattr(config, "num_key_value_heads", None) or heads
    return int(groups), int(getattr(config, "head_dim", None) or config.hidden_size // heads)


FULL_DIM = 512
"""Of key heads in full layers of Gemma 4, where `global_head_dim` is not said."""


def _wide_shape(config: Any, layer: int, full: bool) -> tuple[int, int]:
    """Of one layer, which may have full attention, as transformers has completed the configuration,
    as it writes it or as it is in config.json."""
    each = getattr(config, "per_layer_config", None)
    if each is not None and not isinstance(each, Mapping):
        return int(each[layer].num_key_value_heads), int(each[layer].head_dim)
    groups, dim = _plain_shape(config)
    if each is not None:
        own = {int(i): settings for i, settings in each.items()}.get(layer, {})
        return int(own.get("num_key_value_heads", groups)), int(own.get("head_dim", dim))
    if not full:
        return groups, dim
    wanted = getattr(config, "attention_k_eq_v", False)
    shared = getattr(config, "num_global_key_value_heads", None) if wanted else None
    return int(shared or groups), int(getattr(config, "global_head_dim", None) or FULL_DIM)

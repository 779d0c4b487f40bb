"""The model families ESA can be attached to, one entry each, and what follows from a configuration:
the types, windows and sizes of its layers. Importing this costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, Any, Literal

from esa_cli.errors import ModelError

if TYPE_CHECKING:
    from esa_cli.attention.rope import Pairs


SLIDING_ROTATE = "layers with a window"
HYBRID_SLIDING_ROTATE = "layers with a window, if there are any"
PREFIX_SLIDING_ROTATE = "layers with a window, and the first ones without experts"
"""Values of `Family.rotating`."""
STATE_TYPES = ("conv", "linear_attention")
"""Types of layers that keep a convolution's inputs or a recurrent state in place of keys."""
MIXED_TYPES = ("hybrid",)
"""Types of layers that have both: attention to all tokens and a state."""
IDLE_TYPES = ("mlp", "moe")
"""Types of layers that keep nothing of the tokens before."""


@dataclass(frozen=True)
class Family:
    """Traits of a family; the defaults are Llama's.

    A norm of queries and keys before their rotation needs no entry: the cache receives normed keys.
    The factor of q . k is the attention module's own.

    Args:
        models: known ones, for the documentation.
        pairs: which dimensions rotate together.
        partial: a head's last dimensions may be left unrotated.
        rotating: setting that lists for each layer whether it rotates; "": all do;
            SLIDING_ROTATE: those with a window; HYBRID_SLIDING_ROTATE: those, or all if none has;
            PREFIX_SLIDING_ROTATE: those, and layers without experts that are all full.
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

    models: str
    pairs: Pairs = "half"
    partial: bool = False
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


INSTEAD = (
    "it answers from passages found by their words (answer.from=text), as `esa ask` does where no "
    "--method or --keep asks for more; methods run in the types of docs/models.md"
)
"""The hint where methods cannot run in a model."""

LATENT = Family("", latent=True, projections=("q_proj", "q_b_proj", "kv_a_proj_with_mqa"))
GEMMA4 = Family(
    "Gemma 4",
    sharing="num_kv_shared_layers",
    leaves_out=True,
    wide=True,
    cap="final_logit_softcapping",
)

FAMILIES: dict[str, Family] = {
    "llama": Family("Llama 2 and 3, SmolLM2, Yi"),
    "mistral": Family("Mistral from v0.2 on", slides=True),
    "qwen2": Family("Qwen2, Qwen2.5"),
    "qwen3": Family("Qwen3"),
    "granite": Family("Granite 3", divide="logits_scaling"),
    "olmo2": Family("OLMo 2"),
    "phi3": Family(
        "Phi-3-mini-128k, Phi-3.5-mini, Phi-4, Phi-4-mini",
        partial=True,
        slides=True,
        switches=True,
        projections=("qkv_proj",),
    ),
    "glm4": Family("GLM-4-0414", pairs="interleaved", partial=True),
    "smollm3": Family("SmolLM3", rotating="no_rope_layers"),
    "mixtral": Family("Mixtral", slides=True),
    "qwen2_moe": Family("Qwen1.5-MoE, Qwen2-57B-A14B"),
    "qwen3_moe": Family("Qwen3-30B-A3B, Qwen3-235B-A22B", slides=True),
    "starcoder2": Family("StarCoder2", slides=True),
    "stablelm": Family("StableLM 2, StableLM-3B", partial=True),
    "seed_oss": Family("Seed-OSS"),
    "ernie4_5": Family("ERNIE 4.5, dense", pairs="interleaved"),
    "ernie4_5_moe": Family("ERNIE 4.5, experts", pairs="interleaved"),
    "arcee": Family("AFM-4.5B"),
    "apertus": Family("Apertus"),
    "helium": Family("Helium 1", pairs="interleaved"),
    "granitemoe": Family("Granite 3 MoE", divide="logits_scaling"),
    "granitemoeshared": Family("Granite MoE with shared experts", divide="logits_scaling"),
    "glm": Family("GLM-4-9B-0124", pairs="interleaved", partial=True),
    "glm4_moe": Family("GLM-4.5, GLM-4.6", partial=True),
    "minimax_m2": Family("MiniMax-M2", partial=True),
    "olmo": Family("OLMo 1"),
    "olmoe": Family("OLMoE", slides=True),
    "flex_olmo": Family("FlexOlmo"),
    "gemma": Family("Gemma 1"),
    "phi": Family("Phi-1.5, Phi-2", partial=True),
    "phimoe": Family("Phi-3.5-MoE", slides=True, switches=True),
    "nemotron": Family("Nemotron-4, Minitron", partial=True),
    "cohere": Family("Command R, Aya", pairs="interleaved", multiply="logit_scale"),
    "dots1": Family("dots.llm1"),
    "nanochat": Family("nanochat", pairs="reversed", cap="final_logit_softcapping"),
    "hyperclovax": Family("HyperCLOVA X", multiply="logits_scaling"),
    "jais2": Family("Jais 2"),
    "solar_open": Family("Solar Open"),
    "bitnet": Family("BitNet b1.58"),
    "hy_v3": Family("Hunyuan 3"),
    **dict.fromkeys(
        ("hunyuan_v1_dense", "hunyuan_v1_moe"),
        Family("Hunyuan 1", norms_after=("query_layernorm", "key_layernorm")),
    ),
    "exaone4": Family("EXAONE-4.0-1.2B, EXAONE-4.0-32B", rotating=HYBRID_SLIDING_ROTATE),
    "gemma2": Family(
        "Gemma 2", attention_cap="attn_logit_softcapping", cap="final_logit_softcapping"
    ),
    "gemma3_text": Family("Gemma 3", cap="final_logit_softcapping"),
    "gemma3n_text": Family(
        "Gemma 3n", sharing="num_kv_shared_layers", cap="final_logit_softcapping"
    ),
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": replace(GEMMA4, models="Gemma 4, without encoders"),
    "gpt_oss": Family("gpt-oss-20b, gpt-oss-120b", half_table=True, sinks=True),
    "olmo3": Family("OLMo 3"),
    "cohere2": Family(
        "Command R7B, Command A",
        pairs="interleaved",
        rotating=SLIDING_ROTATE,
        multiply="logit_scale",
    ),
    "cwm": Family("Code World Model"),
    "ministral": Family("Ministral 8B"),
    "ministral3": Family("Ministral 3", slides=True),
    "deepseek_v3": replace(LATENT, models="DeepSeek-V3, DeepSeek-R1"),
    "deepseek_v2": replace(
        LATENT, models="DeepSeek-V2, DeepSeek-V2-Lite", pairs="interleaved", complex_table=True
    ),
    "glm4_moe_lite": replace(LATENT, models="GLM-4.7-Flash"),
    "minicpm3": replace(LATENT, models="MiniCPM3", divide="logits_scaling"),
    "youtu": replace(LATENT, models="Youtu-LLM"),
    "mistral4": replace(LATENT, models="Mistral Small 4"),
    "longcat_flash": replace(LATENT, models="LongCat-Flash"),
    "axk1": replace(LATENT, models="A.X K1"),
    "lfm2": Family("LFM2"),
    "lfm2_moe": Family("LFM2-8B-A1B"),
    "lfm3": Family("LFM3"),
    "qwen3_next": Family("Qwen3-Next-80B-A3B", partial=True),
    "qwen3_5_text": Family("Qwen3.5", partial=True),
    "qwen3_5_moe_text": Family("Qwen3.5, experts", partial=True),
    "granitemoehybrid": Family("Granite 4", divide="logits_scaling"),
    "nemotron_h": Family("Nemotron-H, Nemotron Nano 2 and 3"),
    "falcon_h1": Family("Falcon-H1", multiply="lm_head_multiplier"),
    "olmo_hybrid": Family("OLMo Hybrid"),
    "afmoe": Family("Trinity", rotating=SLIDING_ROTATE),
    "cohere2_moe": Family(
        "Command A+", pairs="interleaved", rotating=PREFIX_SLIDING_ROTATE, multiply="logit_scale"
    ),
    "exaone_moe": Family("K-EXAONE", rotating=HYBRID_SLIDING_ROTATE),
    "laguna": Family("Laguna", partial=True),
    "mellum": Family("Mellum 2"),
    "kolibri1": Family("Kolibri 1", rotating=HYBRID_SLIDING_ROTATE),
    "flint": Family("Flint", rotating=SLIDING_ROTATE, sinks=True),
    "vaultgemma": Family(
        "VaultGemma", attention_cap="attn_logit_softcapping", cap="final_logit_softcapping"
    ),
    "gpt_neox": Family("Pythia, GPT-NeoX-20B", partial=True, projections=("query_key_value",)),
    "persimmon": Family("Persimmon-8B", partial=True, projections=("query_key_value",)),
}
"""By `model_type`. Their logits are tested against stock attention."""


def check_type(kind: str | None) -> None:
    """Raises ModelError when models of this `model_type` cannot be attached."""
    if kind not in FAMILIES:
        raise ModelError(f"ESA's methods cannot run in models of type {kind!r}", INSTEAD)


def family_of(config: object) -> Family:
    """The entry of a model's configuration. For a `model_type` that has none, Llama's, with the
    soft cap of logits that some have: `text_forward.plain_forward` tries whether that is all."""
    if (entry := FAMILIES.get(getattr(config, "model_type", ""))) is not None:
        return entry
    cap = "final_logit_softcapping"
    return replace(FAMILIES["llama"], cap=cap if hasattr(config, cap) else "")


def layer_types(config: Any) -> list[str]:
    """The type of each layer, as transformers names them."""
    count = int(getattr(config, "num_hidden_layers", 1))  # others may name them otherwise
    if family_of(config).slides:
        window = getattr(config, "sliding_window", None)
        return ["full_attention" if window is None else "sliding_attention"] * count
    return list(getattr(config, "layer_types", None) or ["full_attention"] * count)


def keeps_state(config: Any) -> bool:
    """Whether some layers of a model keep a state in place of keys: it cannot be cropped, and those
    of several documents cannot be joined."""
    return not {*STATE_TYPES, *MIXED_TYPES}.isdisjoint(layer_types(config))


FULL_TYPES = ("full_attention", *MIXED_TYPES)
ATTENTION_TYPES = (*FULL_TYPES, "sliding_attention")


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


FULL_DIM = 512
"""Of key heads in full layers of Gemma 4, where `global_head_dim` is not said."""


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
    if not family_of(config).wide:
        return _plain_shape(config)
    types = layer_types(config)
    return _wide_shape(config, types.index("full_attention"), True)


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


def _plain_shape(config: Any) -> tuple[int, int]:
    heads = int(config.num_attention_heads)
    groups = getattr(config, "num_key_value_heads", None) or heads
    return int(groups), int(getattr(config, "head_dim", None) or config.hidden_size // heads)


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


Kind = Literal["attention", "reader", "state", "both", "idle"]

_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("conv", "linear_attention", "mamba", "recurrent", "M"), "state"),
    **dict.fromkeys(("mlp", "moe", "-", "E"), "idle"),
    "hybrid": "both",
}  # fmt: skip
"""By the names of types, and by the letters of Nemotron's `hybrid_override_pattern`; the others
have attention."""
INTERVAL = 4
"""Every how many layers one of Qwen3-Next and Qwen3.5 has attention, where nothing is said."""


def layer_kinds(settings: Mapping[str, Any]) -> list[Kind]:
    """Whether each layer has attention, reads the keys of another one, keeps a state in place of
    keys, has attention and a state, or neither: from config.json, which may list no types."""
    kinds = [_KINDS.get(name, "attention") for name in _listed_types(settings)]
    family, readers = FAMILIES.get(str(settings.get("model_type"))), 0
    if family is not None and family.sharing:
        readers = int(settings.get(family.sharing) or 0)
    last: list[Kind] = ["reader"] * readers
    return kinds[: len(kinds) - readers] + last


def _listed_types(settings: Mapping[str, Any]) -> Sequence[str]:
    for name in ("hybrid_override_pattern", "layer_types", "layers_block_type"):
        if types := settings.get(name):
            return list(types)
    # LongCat-Flash counts as one layer what attends twice.
    count = int(settings.get("num_hidden_layers") or 2 * settings["num_layers"])
    kind, attending = settings.get("model_type"), settings.get("full_attn_idxs")
    if kind == "falcon_h1":
        return ["hybrid"] * count
    if kind in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        every = int(settings.get("full_attention_interval") or INTERVAL)
        attending = range(every - 1, count, every)
    return ["attention" if attending is None or i in attending else "conv" for i in range(count)]

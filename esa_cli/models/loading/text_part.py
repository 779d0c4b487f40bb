"""The language model inside a checkpoint of several parts, such as one that also sees images.

Its settings are `text_config` in config.json, its weights have names of their own in the
safetensors files, and the other parts are not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import StoredWeight, read_config, reading, stored_weights
from esa_cli.models.files.families import FAMILIES
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.models.files.settings_cache import cache_config, cached_config

BODIES = (
    "model.language_model.", "language_model.model.", "model.text_model.",
    "model.language_model.model.", "text_model.model.", "language_model.", "text_model.",
)  # fmt: skip
"""The prefix in place of `model.` before the names of a language model's layers."""
HEADS = ("lm_head.", "language_model.lm_head.", "model.lm_head.", "text_model.lm_head.")
"""The prefix in place of `lm_head.`."""
_OTHER = "upgrade transformers, or choose another model"
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_EMBEDDING = "embed_tokens.weight"
_OF_TEXT = {"qwen3_vl_text": "qwen3"}
"""Language models whose rotary embedding knows places in an image, and the `model_type` of those
that compute the same where there is none."""
_PLACES = ("mrope_section", "mrope_interleaved")
LLAMA_4 = "llama4_text"
"""A `model_type` that answers from passages alone."""
BIDIRECTIONAL = "paligemma"
"""A `model_type` that reads its prompt in both directions, though its part alone would not."""
_UNPACKED = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "ignored_layers")
"""Settings of quantised checkpoints that list modules by name."""


def has_text_part(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of several parts, one of which is a language model."""
    kind, text = config.get("model_type"), config.get("text_config")
    if kind in FAMILIES or kind == BIDIRECTIONAL or not isinstance(text, dict):
        return False
    part = text.get("model_type")
    return isinstance(part, str) and part in (*FAMILIES, *_OF_TEXT, LLAMA_4)


def language_settings(folder: Path) -> dict[str, Any]:
    """The settings of the language model in a folder: config.json, or that of its part, completed
    by the defaults of transformers. Raises ModelError: as `read_config`."""
    config = read_config(folder)
    if config["model_type"] in FAMILIES:
        return config
    if not has_text_part(config):
        return _completed(folder) or config
    known, kind = cached_config(folder), config["text_config"]["model_type"]
    if known is None or known.get("model_type") != _OF_TEXT.get(kind, kind):
        completed = language_config(folder)
        cache_config(folder, completed)
        known = completed.to_dict()
    return known


_SIZES = {"num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": None}
"""Sizes that a model may name otherwise, and what they then count as."""


def _completed(folder: Path) -> dict[str, Any] | None:
    """The settings of a model of no supported family, with sizes as other families name them. None:
    transformers does not know it."""
    with suppress(ModelError), reading(folder):
        config = language_config(folder)
        settings: dict[str, Any] = config.to_dict()
        settings |= {name: getattr(config, name, other) for name, other in _SIZES.items()}
        hidden, inner = config.hidden_size, getattr(config, "intermediate_size", 0)
        return settings | {"hidden_size": hidden, "intermediate_size": inner or 4 * hidden}
    return None


def language_config(folder: Path) -> Any:
    """transformers' configuration of the language model in a folder. Raises ModelError:
    transformers cannot read it, or as `read_config`."""
    from transformers import AutoConfig

    with quiet_transformers(), reading(folder / "config.json", _OTHER):
        if not has_text_part(read_config(folder)):
            return AutoConfig.from_pretrained(folder, **_LOCAL)
        return _whole_config(folder).text_config


def _whole_config(folder: Path) -> Any:
    """transformers' configuration of several parts; what concerns the language model is in its
    `text_config`, too. Raises ModelError."""
    from transformers import AutoConfig

    with reading(folder / "config.json", _OTHER):
        whole: Any = AutoConfig.from_pretrained(folder, **_LOCAL)
        if whole.text_config.model_type in _OF_TEXT:
            settings = whole.text_config.to_dict()
            rope = settings.get("rope_parameters") or {}
            settings["rope_parameters"] = {key: rope[key] for key in rope if key not in _PLACES}
            plain = AutoConfig.for_model(_OF_TEXT[settings.pop("model_type")], **settings)
            whole.text_config = plain
    for name in ("eos_token_id", "quantization_config"):
        if getattr(whole, name, None) is not None:
            setattr(whole.text_config, name, getattr(whole, name))
    return whole


def language_weights(folder: Path) -> list[StoredWeight]:
    """The tensors in a folder's files that are the language model's, under their names there.
    Raises ModelError: as `stored_weights`, or there is no language model among several parts."""
    weights = stored_weights(folder)
    if not has_text_part(read_config(folder)):
        return weights
    own = name_mapping(folder, [one.name for one in weights])
    return [one for one in weights if any(re.match(before, one.name) for before in own)]


def unmade_weights(folder: Path) -> list[StoredWeight]:
    """Names and shapes of the weights that transformers makes for a folder's config.json; they take
    no memory. Raises ModelError: transformers knows no such model."""
    import torch
    from transformers import AutoModelForCausalLM

    automatic: Any = AutoModelForCausalLM
    config = language_config(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with quiet_transformers(), reading(folder / "config.json", _OTHER), torch.device("meta"):
        model = automatic.from_config(config, trust_remote_code=False)
    return [StoredWeight(name, "F32", tuple(one.shape)) for name, one in model.named_parameters()]


def name_mapping(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Patterns of names that a language model's weights have in a checkpoint of several parts ->
    what they begin with in the model by itself. `names` are those of all tensors. Raises
    ModelError: no names are as they are known."""
    known = set(names)
    body = next((one for one in BODIES if one + _EMBEDDING in known), None)
    if body is None:
        raise ModelError(
            f"{folder} must have a language model's embeddings under a known name, such as "
            f"{BODIES[0]}{_EMBEDDING}, and has none",
            "use a checkpoint of the language model alone",
        )
    mapping = {f"^{re.escape(body)}": "model."}
    heads = [one for one in HEADS if any(name.startswith(one) for name in names)]
    return mapping | {f"^{re.escape(one)}": "lm_head." for one in heads[:1]}


def reading_options(folder: Path) -> dict[str, Any]:
    """Arguments of transformers' `from_pretrained` with which it reads nothing but the language
    model from a checkpoint of several parts; none for other folders. Raises ModelError."""
    if not has_text_part(read_config(folder)):
        return {}
    whole = _whole_config(folder)
    config = whole.text_config
    mapping = name_mapping(folder, [one.name for one in stored_weights(folder)])
    if "lm_head." not in mapping.values():  # the whole decides; with a head, its part does
        config.tie_word_embeddings |= bool(whole.tie_word_embeddings)
    packing = getattr(config, "quantization_config", None)
    if isinstance(packing, dict):
        config.quantization_config = _renamed(packing, mapping)
    return {"config": config, "key_mapping": mapping}


def _renamed(packing: Mapping[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a quantised checkpoint, with its modules as they are named in the language model
    alone. The lists have names of before or after transformers' own renaming."""
    before = {**{f"^{re.escape(one)}": "model." for one in BODIES}, **mapping}

    def own(name: Any) -> Any:
        pattern = next((p for p in before if isinstance(name, str) and re.match(p, name)), None)
        return name if pattern is None else re.sub(pattern, before[pattern], name)

    lists = {name: packing[name] for name in _UNPACKED if isinstance(packing.get(name), list)}
    return {**packing, **{name: [own(one) for one in lists[name]] for name in lists}}

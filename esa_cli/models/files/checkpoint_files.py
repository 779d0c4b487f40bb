"""Reads and checks config.json and the headers of safetensors files before torch is imported. In a
model that also takes images or sound, finds the weights of the language model."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open

from esa_cli.errors import EsaError, ModelError, UsageError, get_first_line
from esa_cli.models.files.families import FAMILIES
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.system.files import replace_atomically
from esa_cli.system.machine import get_esa_home_folder, is_out_of_memory_error
from esa_cli.system.text import digest_text

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json",
    "tiktoken.model",
)  # fmt: skip
PLAIN_WEIGHTS_HINT = "use the model's unquantised weights, or a GGUF file"
_FETCH_AGAIN = "fetch the model again"
_UPGRADE = "upgrade transformers, or choose another model; esa never runs a model's own code"


@contextmanager
def convert_read_errors(file_name: object, hint: str = _FETCH_AGAIN) -> Iterator[None]:
    """Turns errors of other libraries, but not a lack of memory, into ModelError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, EsaError) or is_out_of_memory_error(error):
            raise
        reason = get_first_line(error)[:300]
        raise ModelError(f"{file_name} cannot be read: {reason}", hint) from error


# -- Settings

_LARGEST = 1 << 40
_COUNTS = {
    "num_hidden_layers": (1, 4096), "hidden_size": (1, _LARGEST),
    "num_attention_heads": (1, _LARGEST), "num_key_value_heads": (0, _LARGEST),
    "head_dim": (0, _LARGEST), "intermediate_size": (0, _LARGEST), "vocab_size": (0, _LARGEST),
    "max_position_embeddings": (0, _LARGEST),
}  # fmt: skip
"""The smallest and the largest valid value of each setting that counts something."""
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def read_config_json(folder: Path) -> dict[str, Any]:
    """Returns the settings in a model's config.json. Raises ModelError: config.json is missing, or
    a setting, or a token id in generation_config.json, has a value that no model can have."""
    path, generation = folder / "config.json", folder / "generation_config.json"
    with convert_read_errors(path):
        config = json.loads(path.read_text("utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path} has no setting model_type", _FETCH_AGAIN)
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            check_config_settings(part, path)
    if generation.is_file():
        with convert_read_errors(generation):
            tokens = dict(json.loads(generation.read_text("utf-8")))
        check_config_settings({name: tokens.get(name) for name in _TOKENS}, generation)
    return config


def check_config_settings(settings: Mapping[str, Any], file_name: object) -> None:
    """Raises ModelError, with the file's name, if a setting of a model has an impossible value."""
    rope = settings.get("rope_parameters")
    for name, value in {**(rope if isinstance(rope, dict) else {}), **settings}.items():
        if value is not None and (rule := _find_rule_broken_by_setting(name, value)):
            message = f"{file_name}: {name} must {rule}, got {repr(value)[:80]}"
            raise ModelError(message, _FETCH_AGAIN)


def _find_rule_broken_by_setting(setting_name: str, value: Any) -> str:
    """Returns the rule that a config.json setting breaks, such as "be above 0", or "" for none."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if setting_name in _COUNTS or setting_name in _TOKENS:
        low, high = _COUNTS.get(setting_name, (-1, _LARGEST))
        values = value if isinstance(value, list) else [value]
        good = all(type(n) is int and low <= n <= high for n in values if n is not None)
        return "" if good else f"be a whole number from {low} to {high:,}"
    if setting_name in ("rope_theta", "partial_rotary_factor"):
        return "" if 0 < number < math.inf else "be above 0"
    if setting_name.endswith(("eps", "epsilon")):
        return "" if 0 <= number < 1 else "be from 0 to 1"
    return "be a number" if isinstance(value, float) and math.isnan(value) else ""


def find_quantization_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `quantization_config` in a config.json's settings, or {} if there is none."""
    for part in (config, config.get("text_config")):
        settings = part.get("quantization_config") if isinstance(part, Mapping) else None
        if settings and isinstance(settings, dict):
            return settings
    return {}


def check_tokenizer_files_exist(folder: Path) -> None:
    """Raises ModelError if a model's folder has no file from which a tokenizer can be loaded."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{folder} has no tokenizer", f"copy a tokenizer.json to {folder}")


# -- Headers of weights


class WeightInfo(NamedTuple):
    """The name, number type (`kind`, such as BF16) and shape of a tensor in a safetensors file."""

    name: str
    kind: str
    shape: tuple[int, ...]


def list_stored_weights(folder: Path) -> list[WeightInfo]:
    """Returns all tensors in a model folder's safetensors files. Raises ModelError."""
    weights = []
    for path in list_weight_files(folder):
        damaged, hint = f"the damaged file {path}", "delete the model and fetch it again"
        # Only headers are read, without torch.
        with convert_read_errors(damaged, hint), safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                weights.append(WeightInfo(name, str(part.get_dtype()), tuple(part.get_shape())))
    return weights


def list_weight_files(folder: Path) -> list[Path]:
    """Returns a model folder's safetensors files. Raises ModelError: a file is missing."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(
            f"{folder} has no model.safetensors",
            "convert the model's weights to safetensors, or choose another model; esa refuses "
            "pickled weights (.bin, .pt), which can run code",
        )
    with convert_read_errors(index):
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    if missing := [name for name in names if not (folder / name).is_file()]:
        lacking = f"lacks {len(missing)} of {len(names)} weight files, such as {missing[0]}"
        raise ModelError(f"{folder} {lacking}", _FETCH_AGAIN)
    return [folder / name for name in names]


_FLOATS = ("F64", "F32", "F16", "BF16")
"""Types in safetensors files that are converted to the number type of the computation."""
_NUMBERS = re.compile(r"(weight|qweight|_packed|_blocks|\.compressed|\.bitmask)$")
_BESIDE = re.compile(r"(scales?|scale_inv|scale_2|zero_point|shape|g_idx)$")
"""The name endings of tensors that are stored beside a quantised weight, such as scales."""
_SCALES = ("weight_scale_inv", "scale", "qscale_weight")


def check_weight_dtypes(weights: Iterable[WeightInfo], quantization: Mapping[str, Any]) -> None:
    """Raises ModelError if transformers 5.23 would silently load wrong numbers for a quantised
    weight, because scales are missing or blocks of numbers do not fit the weight's shape."""
    shapes = {weight.name: weight.shape for weight in weights}
    scaled, block = any(map(_BESIDE.search, shapes)), quantization.get("weight_block_size")
    for name, kind, shape in weights:
        few = kind not in _FLOATS and _NUMBERS.search(name)
        wrong = bool(few and not quantization and (scaled or not kind.startswith("F8")))
        if quantization.get("quant_method") in ("fp8", "mxfp8") and kind.startswith("F8"):
            names = (name.removesuffix("weight") + end for end in _SCALES)
            scales = next((shapes[scale] for scale in names if scale in shapes), None)
            wrong = name.endswith("weight") and scales is None
            if scales and len(scales) > 1 and isinstance(block, (list, tuple)):
                sides = zip(shape[-2:], scales[-2:], block, strict=True)
                wrong |= any(count > 1 and size != count * width for size, count, width in sides)
        if wrong:
            message = f"{name} {shape} is stored as {kind}, and the files do not say how to read it"
            raise ModelError(message, PLAIN_WEIGHTS_HINT)


def compute_weight_bytes(
    folder: Path, weight_bytes: int, matrix_weight_bytes: float = 0, keep_quantised: bool = False
) -> int:
    """Returns the bytes in memory of a folder's weights, if one takes `weight_bytes`, and one in a
    matrix that esa quantises `matrix_weight_bytes`, or 0 for none. Quantised ones may be kept."""
    weights = list_language_model_weights(folder)
    settings = find_quantization_config(read_config_json(folder))
    check_weight_dtypes(weights, settings)
    if keep_quantised:
        return sum(path.stat().st_size for path in list_weight_files(folder))
    total = 0.0
    for name, kind, shape in weights:
        count = math.prod(shape)
        if kind in _FLOATS or (kind.startswith("F8") and not settings):
            matrix = len(shape) == 2 and ".layers." in name
            total += count * ((matrix and matrix_weight_bytes) or weight_bytes)
        elif not _BESIDE.search(name):
            packed = {"U8": 2, "I32": 32 // (read_bits_per_weight(settings) or 8)}.get(kind, 1)
            total += count * packed * weight_bytes
    return int(total)


def read_bits_per_weight(quantization_config: Mapping[str, Any]) -> int:
    """Returns the number of bits per weight in a model's `quantization_config`, or 0 if unknown."""
    text = str(quantization_config).lower()
    bits = [int(count) for count in re.findall(r"'(?:n|num_)?bits': (\d+)", text)]
    if "'load_in_4bit': true" in text or "int4" in text:
        bits.append(4)
    return min(bits, default=0)


# -- The language model

_BODIES = (
    "model.language_model.", "language_model.model.", "model.text_model.",
    "model.language_model.model.", "text_model.model.", "language_model.", "text_model.",
)  # fmt: skip
"""The prefixes that replace `model.` in the language model of a checkpoint of several parts."""
_HEADS = ("lm_head.", "language_model.lm_head.", "model.lm_head.", "text_model.lm_head.")
"""The prefixes that replace `lm_head.` in a checkpoint of several parts."""
_PLAIN_KINDS = {"qwen3_vl_text": "qwen3"}
"""Maps types whose rotary embedding depends on positions in an image to types for text alone."""
_TEXT_KINDS = {*FAMILIES, *_PLAIN_KINDS, "llama4_text"}
_BIDIRECTIONAL = "paligemma"
"""A model type that attends to its prompt in both directions, unlike its language model."""


def has_language_model_part(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a model of several parts, one of them a language model."""
    kind, text = config.get("model_type"), config.get("text_config")
    if kind in FAMILIES or kind == _BIDIRECTIONAL or not isinstance(text, dict):
        return False
    return str(text.get("model_type")) in _TEXT_KINDS


def read_language_model_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of a model folder's language model: the contents of config.json if the
    family is known, else the settings with transformers' defaults. Raises ModelError."""
    config = read_config_json(folder)
    if config["model_type"] in FAMILIES:
        return config
    with nullcontext() if has_language_model_part(config) else suppress(ModelError):
        known = read_language_model_config(folder)
        sizes = {name: getattr(known, name, None) for name in _COUNTS}  # families rename these
        settings = {"num_attention_heads": 1, **known.to_dict()}
        return settings | {name: size for name, size in sizes.items() if size is not None}
    return config


def read_language_model_config(folder: Path) -> Any:
    """Returns transformers' configuration of the language model in a folder. Raises ModelError."""
    return _read_model_and_checkpoint_configs(folder)[0]


def _read_model_and_checkpoint_configs(folder: Path) -> tuple[Any, Any]:
    several = has_language_model_part(read_config_json(folder))
    with quiet_transformers(), convert_read_errors(folder / "config.json", _UPGRADE):
        from transformers import AutoConfig

        whole: Any = AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        if not several:
            return whole, whole
        text = whole.text_config
        if kind := _PLAIN_KINDS.get(text.model_type):
            settings = text.to_dict() | {"model_type": kind}
            rope = settings.get("rope_parameters") or {}
            settings["rope_parameters"] = {n: rope[n] for n in rope if not n.startswith("mrope_")}
            text = AutoConfig.for_model(**settings)
        for name in ("eos_token_id", "quantization_config"):  # of the whole checkpoint
            if getattr(whole, name, None) is not None:
                setattr(text, name, getattr(whole, name))
        return text, whole


def list_language_model_weights(folder: Path) -> list[WeightInfo]:
    """Returns the stored tensors of a model folder's language model, named as in the files. Raises
    ModelError: a file is damaged, or the checkpoint contains no language model."""
    weights = list_stored_weights(folder)
    if not has_language_model_part(read_config_json(folder)):
        return weights
    prefixes = _map_checkpoint_prefixes(folder, [weight.name for weight in weights])
    return [weight for weight in weights if weight.name.startswith(tuple(prefixes))]


def list_weights_transformers_expects(folder: Path) -> list[WeightInfo]:
    """Returns the names and shapes of the weights that transformers creates for a config.json,
    without allocating the weights. Raises ModelError: transformers does not know the model."""
    config = read_language_model_config(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with quiet_transformers(), convert_read_errors(folder / "config.json", _UPGRADE):
        import torch
        from transformers import AutoModelForCausalLM

        automatic: Any = AutoModelForCausalLM
        with torch.device("meta"):
            model = automatic.from_config(config, trust_remote_code=False)
    return [WeightInfo(name, "F32", tuple(one.shape)) for name, one in model.named_parameters()]


def _map_checkpoint_prefixes(folder: Path, weight_names: Sequence[str]) -> dict[str, str]:
    """Maps the prefixes of a language model's weights in a checkpoint of several parts to the
    prefixes in a plain language model. Raises ModelError: the prefixes are unknown."""
    embeddings = "embed_tokens.weight"
    body = next((prefix for prefix in _BODIES if prefix + embeddings in weight_names), None)
    if body is None:
        known = f"a known name, such as {_BODIES[0]}{embeddings}"
        message = f"{folder} must have a language model's embeddings under {known}"
        raise ModelError(message, "choose a checkpoint of the language model alone")
    head = next((one for one in _HEADS if any(n.startswith(one) for n in weight_names)), None)
    return {body: "model."} | ({head: "lm_head."} if head else {})


def make_from_pretrained_arguments(folder: Path) -> dict[str, Any]:
    """Returns arguments for transformers' `from_pretrained` by which only the language model in a
    folder is loaded: its configuration and, if necessary, a mapping of weight names."""
    config, whole = _read_model_and_checkpoint_configs(folder)
    if not has_language_model_part(read_config_json(folder)):
        return {"config": config}
    prefixes = _map_checkpoint_prefixes(folder, [one.name for one in list_stored_weights(folder)])
    if "lm_head." not in prefixes.values():  # the whole decides; with a head, the part does
        config.tie_word_embeddings |= bool(whole.tie_word_embeddings)
    if isinstance(packing := getattr(config, "quantization_config", None), dict):
        # Lists of modules have names from before or after transformers' own renaming.
        known = {**dict.fromkeys(_BODIES, "model."), **prefixes}
        config.quantization_config = {
            name: [_map_module_name(v, known) for v in value] if isinstance(value, list) else value
            for name, value in packing.items()
        }
    mapping = {f"^{re.escape(prefix)}": plain for prefix, plain in prefixes.items()}
    return {"config": config, "key_mapping": mapping}


def _map_module_name(module_name: Any, new_prefixes: Mapping[str, str]) -> Any:
    before = next((one for one in new_prefixes if str(module_name).startswith(one)), None)
    return new_prefixes[before] + module_name[len(before) :] if before else module_name


# -- Metadata that only transformers knows of a model, for processes that do not import it

_FILES = {
    "config": ("config.json", "generation_config.json"),
    "plain tokenizer": (
        "config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json", "tekken.json",
        "vocab*", "merges*", "*.model", "chat_template*", "additional_chat_templates/*.jinja",
    ),
}  # fmt: skip
"""The files of a model's folder from which transformers derives each kind of metadata."""
_UNUSABLE = (OSError, ValueError, UsageError)
"""Errors of a cache that cannot be read or written; after such an error nothing is cached."""


def _make_metadata_path(metadata_kind: str, folder: Path) -> Path:
    """Returns the path of the cached metadata of one kind, named by a hash of the model's files."""
    packages = f"{version('transformers')} {version('tokenizers')}"
    digest = hashlib.sha256(f"{metadata_kind} {packages}".encode())
    for file in sorted({file for one in _FILES[metadata_kind] for file in folder.glob(one)}):
        if file.is_file():
            content = file.read_bytes()
            digest.update(f"\n{file.name} {len(content)}\n".encode() + content)
    return get_esa_home_folder() / "settings" / f"{digest.hexdigest()[:32]}.json"


def load_cached_metadata(metadata_kind: str, folder: Path) -> dict[str, Any] | None:
    """Returns metadata that `cache_model_metadata` stored with the same packages, or None."""
    with suppress(*_UNUSABLE):
        stored = _make_metadata_path(metadata_kind, folder).read_text("utf-8")
        digest, _, text = stored.partition("\n")
        if digest == digest_text(text):
            metadata: dict[str, Any] = json.loads(text)
            return metadata
    return None


def cache_model_metadata(
    metadata_kind: str, folder: Path, make_metadata: Callable[[], dict[str, Any]]
) -> None:
    """Caches metadata that transformers derives from a model's files, such as default settings."""
    if load_cached_metadata(metadata_kind, folder) is None:
        text = json.dumps(make_metadata(), default=str)
        with suppress(*_UNUSABLE):
            path = _make_metadata_path(metadata_kind, folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_atomically(path) as part:
                part.write_text(f"{digest_text(text)}\n{text}", "utf-8")

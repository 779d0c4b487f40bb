"""A model's folder before its weights are loaded: settings, headers of the safetensors files, and
the language model inside a checkpoint of several parts, such as a model that also sees images.

Missing, damaged and malicious files are reported from the files alone, before any slow import."""

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

from esa_cli.errors import EsaError, ModelError, UsageError, first_line
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
def convert_read_errors(source: object, hint: str = _FETCH_AGAIN) -> Iterator[None]:
    """Turns an error that another library raises when it reads a model's file into a ModelError,
    whose message calls the file `source`. Errors for lack of memory are passed on."""
    try:
        yield
    except Exception as error:
        if isinstance(error, EsaError) or is_out_of_memory_error(error):
            raise
        raise ModelError(f"{source} cannot be read: {first_line(error)[:300]}", hint) from error


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
    """Returns the contents of config.json. Raises ModelError: config.json is missing, or a setting
    in config.json or a token id in generation_config.json has a value that no model can have."""
    path, generation = folder / "config.json", folder / "generation_config.json"
    with convert_read_errors(path):
        config = json.loads(path.read_text("utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path} has no model_type, which names the kind of model", _FETCH_AGAIN)
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            check_setting_values(part, path)
    if generation.is_file():
        with convert_read_errors(generation):
            tokens = dict(json.loads(generation.read_text("utf-8")))
        check_setting_values({name: tokens.get(name) for name in _TOKENS}, generation)
    return config


def check_setting_values(settings: Mapping[str, Any], path: object) -> None:
    """Raises ModelError, which names the file `path`, if a setting in config.json has a value that
    no model has or that cannot be used in computations."""
    rope = settings.get("rope_parameters")
    for name, value in {**(rope if isinstance(rope, dict) else {}), **settings}.items():
        if value is not None and (rule := _find_broken_setting_rule(name, value)):
            raise ModelError(f"{path}: {name} must {rule}, got {repr(value)[:80]}", _FETCH_AGAIN)


def _find_broken_setting_rule(setting_name: str, value: Any) -> str:
    """Returns the rule that a setting in config.json breaks, or "" for a valid value."""
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
    """Returns the `quantization_config` in a config.json, or {} if there is none."""
    for part in (config, config.get("text_config")):
        settings = part.get("quantization_config") if isinstance(part, Mapping) else None
        if settings and isinstance(settings, dict):
            return settings
    return {}


def check_tokenizer_files_exist(folder: Path) -> None:
    """Raises ModelError if a model's folder has no file from which a tokenizer can be loaded."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{folder} has no tokenizer", f"copy its tokenizer.json to {folder}")


# -- Headers of weights


class StoredWeight(NamedTuple):
    """The name, type in the file header (`kind`, such as BF16) and shape of a stored tensor."""

    name: str
    kind: str
    shape: tuple[int, ...]


def list_stored_weights(folder: Path) -> list[StoredWeight]:
    """Returns the tensors of the folder's safetensors files, according to the file headers. Raises
    ModelError: a file is missing, damaged or cut off."""
    weights = []
    for path in list_weight_files(folder):
        damaged, hint = f"the damaged file {path}", "delete the model and fetch it again"
        # Only headers are read, without torch.
        with convert_read_errors(damaged, hint), safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                weights.append(StoredWeight(name, str(part.get_dtype()), tuple(part.get_shape())))
    return weights


def list_weight_files(folder: Path) -> list[Path]:
    """Returns the paths of the folder's safetensors files. Raises ModelError: a file is missing."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(
            f"{folder} has no model.safetensors",
            "convert the weights to safetensors, or choose another model; esa refuses "
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
"""Name endings of tensors that are stored beside a quantised weight, such as scales."""
_SCALES = ("weight_scale_inv", "scale", "qscale_weight")


def check_weight_types(weights: Iterable[StoredWeight], quantization: Mapping[str, Any]) -> None:
    """Raises ModelError if a tensor has numbers of few bits without scales, or blocks that do not
    divide the tensor's size evenly: transformers 5.23 would silently load wrong weights."""
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
    folder: Path, number_bytes: int, matrix_number_bytes: float = 0, stay_quantised: bool = False
) -> int:
    """Returns how many bytes the weights in a model's folder take in memory. A number takes
    `number_bytes`, or `matrix_number_bytes` in matrices of layers that esa quantises. If
    `stay_quantised`, weights that are stored quantised stay quantised."""
    weights = list_language_model_weights(folder)
    settings = find_quantization_config(read_config_json(folder))
    check_weight_types(weights, settings)
    if stay_quantised:
        return sum(path.stat().st_size for path in list_weight_files(folder))
    total = 0.0
    for name, kind, shape in weights:
        count = math.prod(shape)
        if kind in _FLOATS or (kind.startswith("F8") and not settings):
            matrix = len(shape) == 2 and ".layers." in name
            total += count * ((matrix and matrix_number_bytes) or number_bytes)
        elif not _BESIDE.search(name):
            packed = {"U8": 2, "I32": 32 // (read_bits_per_weight(settings) or 8)}.get(kind, 1)
            total += count * packed * number_bytes
    return int(total)


def read_bits_per_weight(quantization_config: Mapping[str, Any]) -> int:
    """Returns how many bits a weight has according to a model's `quantization_config`, or 0 if the
    configuration does not say how many."""
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
"""The prefixes, in place of `model.`, of a language model in a checkpoint of several parts."""
_HEADS = ("lm_head.", "language_model.lm_head.", "model.lm_head.", "text_model.lm_head.")
"""The prefixes of a language model's output matrix, in place of `lm_head.`."""
_PLAIN_KINDS = {"qwen3_vl_text": "qwen3"}
"""Maps types of language models whose rotary embedding depends on positions in an image to the type
that computes the same for text."""
_TEXT_KINDS = {*FAMILIES, *_PLAIN_KINDS, "llama4_text"}
_BIDIRECTIONAL = "paligemma"
"""A model type with several parts that attends to its prompt in both directions, although its
language model alone does not."""


def has_language_model_part(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes several parts, one of which is a language model."""
    kind, text = config.get("model_type"), config.get("text_config")
    if kind in FAMILIES or kind == _BIDIRECTIONAL or not isinstance(text, dict):
        return False
    return str(text.get("model_type")) in _TEXT_KINDS


def read_language_model_settings(folder: Path) -> dict[str, Any]:
    """Returns the contents of config.json if the model's family is known, or else the settings of
    the language model as transformers completes them. Raises ModelError: see `read_config_json`."""
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
    """Returns transformers' configuration of the language model in a folder. Raises ModelError:
    transformers cannot read the configuration."""
    return _read_language_model_and_whole_configs(folder)[0]


def _read_language_model_and_whole_configs(folder: Path) -> tuple[Any, Any]:
    """Returns transformers' configurations of the language model and of the whole checkpoint.
    Settings of the checkpoint that concern the language model are copied to its configuration."""
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
        for name in ("eos_token_id", "quantization_config"):
            if getattr(whole, name, None) is not None:
                setattr(text, name, getattr(whole, name))
        return text, whole


def list_language_model_weights(folder: Path) -> list[StoredWeight]:
    """Returns the stored tensors of the language model in a folder, named as in the files. Raises
    ModelError: a file is damaged, or the checkpoint contains no language model."""
    weights = list_stored_weights(folder)
    if not has_language_model_part(read_config_json(folder)):
        return weights
    prefixes = _map_weight_prefixes(folder, [weight.name for weight in weights])
    return [weight for weight in weights if weight.name.startswith(tuple(prefixes))]


def list_expected_weights(folder: Path) -> list[StoredWeight]:
    """Returns the names and shapes of the weights that transformers would create for a folder's
    config.json, without using memory. Raises ModelError: transformers does not know the model."""
    config = read_language_model_config(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with quiet_transformers(), convert_read_errors(folder / "config.json", _UPGRADE):
        import torch
        from transformers import AutoModelForCausalLM

        automatic: Any = AutoModelForCausalLM
        with torch.device("meta"):
            model = automatic.from_config(config, trust_remote_code=False)
    return [StoredWeight(name, "F32", tuple(one.shape)) for name, one in model.named_parameters()]


def _map_weight_prefixes(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Maps the prefixes of a language model's weights in a checkpoint of several parts to their
    prefixes in a plain language model. `names` are the names of all weights in the checkpoint.
    Raises ModelError: the prefixes are unknown."""
    embeddings = "embed_tokens.weight"
    body = next((prefix for prefix in _BODIES if prefix + embeddings in names), None)
    if body is None:
        known = f"a known name, such as {_BODIES[0]}{embeddings}"
        message = f"{folder} must have a language model's embeddings under {known}"
        raise ModelError(message, "use a checkpoint of the language model alone")
    head = next((prefix for prefix in _HEADS if any(n.startswith(prefix) for n in names)), None)
    return {body: "model."} | ({head: "lm_head."} if head else {})


def choose_from_pretrained_options(folder: Path) -> dict[str, Any]:
    """Returns arguments for transformers' `from_pretrained`: the configuration and, for a
    checkpoint of several parts, the renaming that selects the language model's weights."""
    config, whole = _read_language_model_and_whole_configs(folder)
    if not has_language_model_part(read_config_json(folder)):
        return {"config": config}
    prefixes = _map_weight_prefixes(folder, [weight.name for weight in list_stored_weights(folder)])
    if "lm_head." not in prefixes.values():  # the whole decides; with a head, the part does
        config.tie_word_embeddings |= bool(whole.tie_word_embeddings)
    if isinstance(packing := getattr(config, "quantization_config", None), dict):
        # Lists of modules have names from before or after transformers' own renaming.
        known = {**dict.fromkeys(_BODIES, "model."), **prefixes}
        config.quantization_config = {
            name: [_replace_prefix(v, known) for v in value] if isinstance(value, list) else value
            for name, value in packing.items()
        }
    mapping = {f"^{re.escape(prefix)}": plain for prefix, plain in prefixes.items()}
    return {"config": config, "key_mapping": mapping}


def _replace_prefix(module_name: Any, new_prefixes: Mapping[str, str]) -> Any:
    """Returns a module's name with the first prefix in `new_prefixes` that it has replaced."""
    before = next((one for one in new_prefixes if str(module_name).startswith(one)), None)
    return new_prefixes[before] + module_name[len(before) :] if before else module_name


# -- Facts that only transformers knows of a model, for processes that do not import it

_UNUSABLE = (OSError, ValueError, UsageError)
"""Errors of a cache that cannot be read or written; after such an error nothing is cached."""


def _find_facts_cache_file(kind: str, folder: Path, patterns: Sequence[str]) -> Path:
    """Returns the cache file for facts that depend on the contents of files in a model's folder."""
    packages = f"{version('transformers')} {version('tokenizers')}"
    digest = hashlib.sha256(f"{kind} {packages}".encode())
    for file in sorted({file for pattern in patterns for file in folder.glob(pattern)}):
        if file.is_file():
            content = file.read_bytes()
            digest.update(f"\n{file.name} {len(content)}\n".encode() + content)
    return get_esa_home_folder() / "settings" / f"{digest.hexdigest()[:32]}.json"


def load_model_facts(kind: str, folder: Path, patterns: Sequence[str]) -> dict[str, Any] | None:
    """Returns what `store_model_facts` has stored about a model's files under `kind`, or None if it
    is missing or damaged, or was stored with another version of transformers."""
    with suppress(*_UNUSABLE):
        stored = _find_facts_cache_file(kind, folder, patterns).read_text("utf-8")
        digest, _, text = stored.partition("\n")
        if digest == digest_text(text):
            facts: dict[str, Any] = json.loads(text)
            return facts
    return None


def store_model_facts(
    kind: str, folder: Path, patterns: Sequence[str], make_facts: Callable[[], dict[str, Any]]
) -> None:
    """Stores facts about a model's files, such as settings, under `kind` for `load_model_facts`,
    unless they are stored already. Values that JSON cannot represent are stored as text."""
    if load_model_facts(kind, folder, patterns) is None:
        text = json.dumps(make_facts(), default=str)
        with suppress(*_UNUSABLE):
            path = _find_facts_cache_file(kind, folder, patterns)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_atomically(path) as part:
                part.write_text(f"{digest_text(text)}\n{text}", "utf-8")

"""Checks of a model folder's files before anything heavy is imported.

They read config.json and the headers of the safetensors files, so that what is missing, cut off or
too large is reported at once. The weights themselves are not read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open

from esa_cli.errors import EsaError, ModelError
from esa_cli.system.machine import memory_ran_out

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json",
    "tiktoken.model",
)  # fmt: skip
_AGAIN = "fetch the model again"
MOST_LAYERS, MOST = 4096, 1 << 40
"""Of a model, and of any other count in its settings."""
_COUNTS = (
    "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "vocab_size", "max_position_embeddings",
)  # fmt: skip
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


@contextmanager
def reading(what: object, hint: str = _AGAIN) -> Iterator[None]:
    """A block that reads `what`, a file of a model, by other libraries, which raise whatever a
    damaged one makes them raise: ModelError in place of any error but esa's own and a lack of
    memory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, EsaError) or memory_ran_out(error):
            raise
        raise ModelError(f"{what} cannot be read: {one_line(error)}", hint) from error


def one_line(error: Exception) -> str:
    """What an error of another library says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]} ..."


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of config.json. Raises ModelError if it is missing or not valid, or if what
    generation_config.json says of tokens is not."""
    path, generation = folder / "config.json", folder / "generation_config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder} has no config.json, so it is not a model", "give a model's folder"
        )
    with reading(path):
        config = json.loads(path.read_text("utf-8"))
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"{path} does not say which kind of model this is (model_type)")
    for part in (config, config.get("text_config")):
        if isinstance(part, dict):
            check_settings(part, path)
    if generation.is_file():
        with reading(generation):
            check_settings({**json.loads(generation.read_text("utf-8"))}, generation, _TOKENS)
    return config


def check_settings(settings: Mapping[str, Any], what: object, names: tuple[str, ...] = ()) -> None:
    """Raises ModelError where a model's settings have a count that no model has, or a number with
    which nothing can be computed. `what` is the file; `names` those that are checked, (): all."""
    rope = settings.get("rope_parameters")
    for name, value in {**(rope if isinstance(rope, dict) else {}), **settings}.items():
        checked = value is not None and (not names or name in names)
        if checked and (rule := _rule(name, value)):
            raise ModelError(f"{what}: {name} must {rule}, got {repr(value)[:80]}", _AGAIN)


def _rule(name: str, value: Any) -> str:
    """What a setting must be and is not; "": it may be so."""
    each = value if isinstance(value, list) else [value]
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if name in _COUNTS:
        least, most = int(name in _COUNTS[:3]), MOST_LAYERS if name == _COUNTS[0] else MOST
        good = all(type(one) is int and least <= one <= most for one in each if one is not None)
        return "" if good else f"be a whole number from {least} to {most:,}"
    if name in _TOKENS:
        good = all(type(one) is int and -1 <= one <= MOST for one in each)
        return "" if good else "be ids of tokens"
    if name in ("rope_theta", "partial_rotary_factor"):
        return "" if 0 < number < math.inf else "be above 0"
    if name.endswith(("eps", "epsilon")):
        return "" if 0 <= number < 1 else "be from 0 to 1"
    return "be a number" if isinstance(value, float) and math.isnan(value) else ""


def check_tokenizer(folder: Path) -> None:
    """Raises ModelError if the folder has none of the files a tokenizer is read from."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(f"{folder} has no tokenizer", "copy the model's tokenizer.json there")


class StoredWeight(NamedTuple):
    """A tensor of a safetensors file; `kind` is its type as the header has it, such as BF16."""

    name: str
    kind: str
    shape: tuple[int, ...]


def stored_weights(folder: Path) -> list[StoredWeight]:
    """The tensors of the folder's safetensors files, read from their headers. Raises ModelError:
    there is none, one that the index names is missing, or one is not whole."""
    weights = []
    for path in weight_files(folder):
        with (
            reading(f"{path}, which is damaged or cut off,", "remove the model and fetch it again"),
            safe_open(path, framework="np") as file,  # only headers are read, without torch
        ):
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                weights.append(StoredWeight(name, str(part.get_dtype()), tuple(part.get_shape())))
    return weights


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files. Raises ModelError when there is none, or one is missing."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(
            f"{folder} has no model.safetensors",
            "convert the weights or choose another model: esa reads safetensors only, since "
            "pickled weights (.bin, .pt) can run code",
        )
    with reading(index):
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files, such as {missing[0]}",
            _AGAIN,
        )
    return [folder / name for name in names]

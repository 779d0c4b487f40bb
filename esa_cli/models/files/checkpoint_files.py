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
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
    "tiktoken.model",
)
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
    """A block that reads files of a model by other libraries, which raise whatever a damaged one
    makes them raise.

    Args:
        what: the file or folder, for the message.

    Raises:
        ModelError: in place of any error but esa's own and a lack of memory.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, EsaError) or memory_ran_out(error):
            raise
        raise ModelError(f"{what} cannot be read: {said(error)}", hint) from error


def said(error: Exception) -> str:
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
            check_tokens(json.loads(generation.read_text("utf-8")), generation)
    return config


def check_settings(settings: Mapping[str, Any], what: object) -> None:
    """Raises ModelError where a model's settings have a count that no model has, or a number with
    which nothing can be computed.

    Args:
        what: the file, for the message.
    """
    for name in _COUNTS:
        most = MOST_LAYERS if name == "num_hidden_layers" else MOST
        every = value if isinstance(value := settings.get(name), list) else [value]
        if not all(one is None or (type(one) is int and 0 <= one <= most) for one in every) or (
            value == 0 and name in _COUNTS[:3]
        ):
            raise _refused(what, name, f"be a whole number from 1 to {most:,}", value)
    check_tokens(settings, what)
    rope = settings.get("rope_parameters")
    for name, value in [*settings.items(), *(rope.items() if isinstance(rope, dict) else ())]:
        if name in ("rope_theta", "partial_rotary_factor") and value is not None:
            if not _is_number(value) or not 0 < value < math.inf:
                raise _refused(what, name, "be above 0", value)
        elif name.endswith(("eps", "epsilon")) and value is not None:
            if not _is_number(value) or not 0 <= value < 1:
                raise _refused(what, name, "be from 0 to 1", value)
        elif isinstance(value, float) and math.isnan(value):
            raise _refused(what, name, "be a number", value)


def check_tokens(settings: Any, what: object) -> None:
    """Raises ModelError where special tokens are no ids."""
    if not isinstance(settings, Mapping):
        raise ModelError(f"{what} must have settings by name", _AGAIN)
    for name in _TOKENS:
        value = settings.get(name)
        every = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(one) is int and -1 <= one <= MOST for one in every):
            raise _refused(what, name, "be ids of tokens", value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _refused(what: object, name: str, rule: str, value: object) -> ModelError:
    return ModelError(f"{what}: {name} must {rule}, got {repr(value)[:80]}", _AGAIN)


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
    return [one for path in weight_files(folder) for one in _in_file(path)]


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


def _in_file(path: Path) -> list[StoredWeight]:
    """Of a safetensors file, whose size is compared with what its header says."""
    with (
        reading(f"{path}, which is damaged or cut off,", "remove the model and fetch it again"),
        safe_open(path, framework="np") as file,  # only headers are read, without torch
    ):
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return [
            StoredWeight(name, str(one.get_dtype()), tuple(one.get_shape()))
            for name, one in slices.items()
        ]

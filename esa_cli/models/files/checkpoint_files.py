"""Checks of a model folder's files before anything heavy is imported.

They read config.json and the headers of the safetensors files, so that what is missing, cut off or
too large is reported at once. The weights themselves are not read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from esa_cli.errors import ModelError

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


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of config.json. Raises ModelError if it is missing or not valid."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder} has no config.json, so it is not a model", "give a model's folder"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", _AGAIN) from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelError(f"{path} does not say which kind of model this is (model_type)")
    return config


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
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index} is damaged", _AGAIN) from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} of {len(names)} weight files, such as {missing[0]}",
            _AGAIN,
        )
    return [folder / name for name in names]


def _in_file(path: Path) -> list[StoredWeight]:
    """Of a safetensors file, whose size is compared with what its header says."""
    try:
        with safe_open(path, framework="np") as file:  # only headers are read, without torch
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return [
                StoredWeight(name, str(one.get_dtype()), tuple(one.get_shape()))
                for name, one in slices.items()
            ]
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} is damaged or cut off: {error}", "remove the model and fetch it again"
        ) from error

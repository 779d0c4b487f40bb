"""Loads the token encoder of a preset's finder, and the finder's sizes before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from esa_cli.errors import ModelError
from esa_cli.qa.adapter_files import finder_folder
from esa_cli.qa.answer_settings import AnswerSettings
from esa_cli.qa.finding.token_encoder import MAPS, TokenEncoder


class FinderSizes(NamedTuple):
    """The model's layers that run for a finder, and R, the numbers of a reduced key."""

    layers: int
    dim: int


def load_encoder(settings: AnswerSettings, model: Any, tokenizer: Any) -> TokenEncoder | None:
    """The encoder of the finder that answers from text use; None where there is none.

    Raises:
        PresetError: there is no such folder. ModelError: it cannot be read, or is of another model.
    """
    if settings.source != "text" or settings.finder is None:
        return None
    return TokenEncoder.load(finder_folder(settings.finder), model, tokenizer, fixed=True)


def index_sizes(settings: AnswerSettings) -> FinderSizes | None:
    """The sizes of that finder, from its file alone, where documents are read for its index and
    nothing else; None elsewhere.

    Raises:
        PresetError: there is no such folder. ModelError: it cannot be read.
    """
    if settings.needs_rows or settings.finder is None:
        return None
    path = finder_folder(settings.finder) / MAPS
    try:
        return _sizes(path)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(
            f"no finder can be read from {path.parent}: {error}", "--set answer.finder=null"
        ) from error


def _sizes(path: Path) -> FinderSizes:
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["finder"])
        return FinderSizes(int(facts["layers"]), int(file.get_slice("key_map").get_shape()[1]))

"""Loads the token encoder of a preset's finder, and tells what its indexes are before a model is
loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open

from esa_cli.models.files.checkpoint_files import reading
from esa_cli.qa.finding.late_interaction import index_layout
from esa_cli.qa.finding.token_encoder import MAPS, TokenEncoder
from esa_cli.qa.presets.adapter_files import finder_folder
from esa_cli.qa.presets.preset import AnswerSettings, Preset
from esa_cli.storage.library import Layout


class FinderSizes(NamedTuple):
    """The model's layers that run for a finder, and R, the numbers of a reduced key."""

    layers: int
    dim: int

    @property
    def layout(self) -> Layout:
        """The layout of its index."""
        return index_layout(self.dim)


def load_encoder(settings: AnswerSettings, model: Any, tokenizer: Any) -> TokenEncoder | None:
    """The encoder of the finder that answers from text use; None where there is none.

    Raises:
        PresetError: there is no such folder. ModelError: it cannot be read, or is of another model.
    """
    if settings.source != "text" or settings.finder is None:
        return None
    return TokenEncoder.load(finder_folder(settings.finder), model, tokenizer, fixed=True)


def index_sizes(preset: Preset) -> FinderSizes | None:
    """The sizes of the preset's token indexes, from the finder's file; None where there are none.

    Raises:
        PresetError: there is no such folder. ModelError: it cannot be read.
    """
    settings = preset.answer
    if settings.needs_rows or settings.finder is None:
        return None
    path = finder_folder(settings.finder) / MAPS
    with reading(f"the finder {path.parent}", "use --set answer.finder=null"):
        return _sizes(path)


def _sizes(path: Path) -> FinderSizes:
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["finder"])
        return FinderSizes(int(facts["layers"]), int(file.get_slice("key_map").get_shape()[1]))

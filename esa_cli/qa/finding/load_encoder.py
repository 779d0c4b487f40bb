"""Loads the token encoder of a preset's finder, and tells what its indexes are before a model is
loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open

from esa_cli.errors import PresetError
from esa_cli.models.files.checkpoint_files import reading
from esa_cli.qa.finding.reduced_keys import index_layout
from esa_cli.qa.finding.token_encoder import MAPS, TokenEncoder
from esa_cli.qa.finding.voting_heads import VotingHeads
from esa_cli.qa.planning.model_shape import Shape
from esa_cli.qa.presets.adapter_files import finder_folder
from esa_cli.qa.presets.answer_settings import AnswerSettings
from esa_cli.qa.presets.preset import Preset
from esa_cli.storage.library import Layout


class FinderSizes(NamedTuple):
    """The model's layers that run for a finder, and R, the numbers of a reduced key."""

    layers: int
    dim: int

    @property
    def bare(self) -> bool:
        """Whether nothing is attached to the model that computes it."""
        return True

    def layout(self, shape: Shape) -> Layout:
        """The layout of its index, whatever the model's shape."""
        return index_layout(self.dim)


IndexSizes = FinderSizes | VotingHeads
"""What the size of a token index, and the time to compute it, follow from."""


def load_encoder(settings: AnswerSettings, model: Any, tokenizer: Any) -> TokenEncoder | None:
    """The encoder of the finder that answers from text use; None where there is none.

    Raises:
        PresetError: there is no such folder. ModelError: it cannot be read, or is of another model.
    """
    if settings.source != "text" or settings.finder is None:
        return None
    return TokenEncoder.load(finder_folder(settings.finder), model, tokenizer, fixed=True)


def voting_heads(preset: Preset) -> VotingHeads | None:
    """The heads that vote for passages; None where none do.

    Raises:
        PresetError: `answer.votes` is set, and the preset names no heads, or has a finder, too.
    """
    if not preset.answer.has_votes:
        return None
    if preset.answer.finder is not None:
        raise PresetError(
            f"preset {preset.name}: answer.votes must be 0 where there is an answer.finder, as a "
            "document is read for one of them",
            "use --set answer.votes=0, or --set answer.finder=null",
        )
    pairs = preset.score.get("heads") if preset.score["name"] == "vote" else None
    if not pairs:
        raise PresetError(
            f"preset {preset.name}: answer.votes needs the heads that vote (score vote, "
            "score.heads), and there are none",
            "esa heads finds them; or use --set answer.votes=0",
        )
    return VotingHeads(tuple((int(layer), int(head)) for layer, head in pairs))


def index_sizes(preset: Preset) -> IndexSizes | None:
    """The sizes of the preset's token indexes, from the finder's file or the heads alone; None
    where answers come from rows, or nothing is read.

    Raises:
        PresetError: there is no such folder, or no heads are named that could vote. ModelError: it
            cannot be read.
    """
    settings = preset.answer
    if (heads := voting_heads(preset)) is not None:
        return heads
    if settings.needs_rows or settings.finder is None:
        return None
    path = finder_folder(settings.finder) / MAPS
    with reading(f"the finder {path.parent}", "use --set answer.finder=null"):
        return _sizes(path)


def _sizes(path: Path) -> FinderSizes:
    with safe_open(path, "pt") as file:
        facts = json.loads(file.metadata()["finder"])
        return FinderSizes(int(facts["layers"]), int(file.get_slice("key_map").get_shape()[1]))

"""What finds passages by more than their words: an array per token of a document, compared with
those of a question by late interaction. Here it is chosen; `token_encoder` has the one there is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from safetensors import safe_open
from torch import Tensor

from esa_cli.models.files.checkpoint_files import reading
from esa_cli.qa.finding.late_interaction import index_layout
from esa_cli.qa.finding.token_encoder import TokenEncoder
from esa_cli.qa.presets.adapter_files import MAPS, finder_folder
from esa_cli.qa.presets.preset import AnswerSettings, Preset
from esa_cli.storage.library import Layout


class Finder(Protocol):
    """Encodes documents and questions; nothing here depends on the model that words the answer.
    Without a finder passages are found by their words alone."""

    @property
    def layout(self) -> Layout:
        """Of a document's stored keys, which says what they cost."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of everything that shapes the keys of a document."""
        ...

    def encode(self, ids: Sequence[int], first: int, last: int) -> Tensor:
        """Reduced keys (last - first, R) of the tokens [first, last) of a document, float32, on the
        CPU; the same for every way of dividing a document at multiples of `SEGMENT_TOKENS`."""
        ...

    def questions(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Reduced queries (B, M, R) of unit length, and weights (B, M) that sum to 1 a question."""
        ...


class FinderSizes(NamedTuple):
    """The model's layers that run for a finder, and R, the numbers of a reduced key."""

    layers: int
    dim: int

    @property
    def layout(self) -> Layout:
        """The layout of its index."""
        return index_layout(self.dim)


def load_finder(settings: AnswerSettings, model: Any, tokenizer: Any) -> TokenEncoder | None:
    """The finder that answers from text use; None: they are found by their words. Raises
    PresetError: there is no such folder. ModelError: it cannot be read, or is of another model."""
    if settings.source != "text" or settings.finder is None:
        return None
    return TokenEncoder.load(finder_folder(settings.finder), model, tokenizer, fixed=True)


def index_sizes(preset: Preset) -> FinderSizes | None:
    """The sizes of the preset's token indexes, from the finder's file, before a model is loaded;
    None where there are none. Raises PresetError: there is no such folder. ModelError: it cannot be
    read."""
    settings = preset.answer
    if settings.needs_rows or settings.finder is None:
        return None
    path = finder_folder(settings.finder) / MAPS
    with (
        reading(f"the finder {path.parent}", "use --set answer.finder=null"),
        safe_open(path, "pt") as file,
    ):
        facts = json.loads(file.metadata()["finder"])
        return FinderSizes(int(facts["layers"]), int(file.get_slice("key_map").get_shape()[1]))

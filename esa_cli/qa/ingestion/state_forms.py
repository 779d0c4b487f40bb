"""The shapes and types of the states that a model's layers keep, to check stored ones by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.storage.library.formats.checksummed_file import damage_error

if TYPE_CHECKING:  # it imports transformers
    from esa_cli.qa.answering.session import Session

StateForm = dict[str, tuple[torch.Size, torch.dtype]]
"""Shape and type of each tensor of one layer's state, by its name."""


@torch.inference_mode()
def state_forms(session: Session) -> list[StateForm]:
    """The form of each layer's state, of one token that passes the model.

    Only the model's own code knows them: configurations name the sizes otherwise in each family.
    """
    from esa_cli.qa.ingestion.prefill import feed

    cache = session.attachment.new_cache()
    cache.begin(QueryState(Phase.PREFILL))
    feed(session.model, session.prompt.document("")[:1] or [0], cache)
    return [form_of(state) for state in cache.states.taken()]


def form_of(state: Mapping[str, Tensor]) -> StateForm:
    return {name: (one.shape, one.dtype) for name, one in state.items()}


def check_states(
    states: Sequence[Mapping[str, Tensor]], forms: Sequence[StateForm], path: Path, key: str
) -> None:
    """Raises LibraryError where a file's states are not of these forms: a stranger's export can
    have any tensors, and the model would fail in the midst of a question.

    Args:
        path, key: the file, and its document's.
    """
    if [form_of(state) for state in states] != list(forms):
        raise damage_error(path, "its states have other shapes than this model's", key)

"""The file of a document's states: of the layers that keep one in place of rows, or beside them.

They are the states behind the last token of a segment. While a document is written, that is the
last whole one, and the file is replaced with each: an interrupted ingest resumes from there. Of a
finished document it is the last segment, behind which questions are asked. Numbers are stored as
they are, whatever is done with rows.

The payload is a line with the first part of the segment's name, which covers all tokens up to its
end, and the tensors as safetensors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.checksummed_file import damage_error
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.formats.row_layout import Layout

State = dict[str, Tensor]
"""One layer's state, by the name of the tensor."""
_NAME = re.compile(r"([0-9]+)\.((?:conv|recurrent)\.[0-9]+)")
_UNPACKING = (SafetensorError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
"""What tensors of other names and shapes bring about."""


class StoredStates(NamedTuple):
    """Each layer's state behind the last token of a segment, by the first part of its name."""

    segment: str
    states: list[State]


def pack_states(segment: str, states: Sequence[Mapping[str, Tensor]]) -> bytes:
    """The states behind the last token of the segment of that name, as bytes."""
    tensors = {
        f"{layer}.{name}": one.cpu().contiguous()
        for layer, state in enumerate(states)
        for name, one in state.items()
    }
    return f"{segment}\n".encode() + save({"layers": torch.tensor(len(states)), **tensors})


def _unpacked(packed: bytes, path: Path, layout: Layout, key: str) -> StoredStates:
    """What `pack_states` packed; `path` and `key` are for messages. Raises LibraryError."""
    segment, _, rest = packed.partition(b"\n")
    try:
        tensors = load(rest)
        # Before a list of so many is made: a stranger's file may say any number.
        if not int(tensors.pop("layers")) == layout.states <= len(tensors):
            raise ValueError("other layers")
        states: list[State] = [{} for _ in range(layout.states)]
        for name, one in sorted(tensors.items()):
            found = _NAME.fullmatch(name)
            if found is None:
                raise ValueError(name)
            states[int(found[1])][found[2]] = one
        return StoredStates(segment.decode("ascii"), states)
    except (*_UNPACKING, IndexError) as error:
        raise damage_error(path, "it has no states as esa writes them", key) from error


def read_unfinished(path: Path, layout: Layout, key: str) -> StoredStates:
    """Those of a document that is not finished. Raises LibraryError: they are missing, damaged or
    of another version."""
    return _unpacked(checksummed_file.read(path, "states", key), path, layout, key)


def read_states(path: Path, entry: Entry) -> StoredStates:
    """Those of a finished document. Raises LibraryError: they are missing, damaged, of another
    version, or another document's."""
    return check_states(checksummed_file.read(path, "states", entry.key), path, entry)


def check_states(payload: bytes, path: Path, entry: Entry) -> StoredStates:
    """As `read_states`, of the payload of a file. Raises LibraryError."""
    found = _unpacked(payload, path, entry.layout, entry.key)
    if found.segment != entry.segments[-1].partition("-")[0]:
        raise damage_error(path, "it has the states of another document", entry.key)
    return found

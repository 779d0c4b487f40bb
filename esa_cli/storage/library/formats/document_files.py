"""A document's small files: token ids, offsets, projections and states; and a stored document that
is open.

States are those of the layers that keep one in place of rows, or beside them, after the last token
of a segment. While a document is written, that is the last complete one, and the file is replaced
with each: an interrupted ingest resumes from there. Of a finished document it is the last segment,
after which questions are asked. Numbers are stored as they are, whatever is done with rows. The
payload is a line with the first part of the segment's name, which covers all tokens up to its end,
and the tensors as safetensors.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from esa_cli.attention.compression import Linear, map_tensors
from esa_cli.storage.library.disk_store import DiskStore, disk_stores
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.checksummed_file import damage_error
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry, read_text
from esa_cli.storage.library.formats.row_layout import Layout
from esa_cli.storage.library.formats.segment import Segment

State = dict[str, Tensor]
"""One layer's state, by the name of the tensor."""
_NAME = re.compile(r"([0-9]+)\.((?:conv|recurrent)\.[0-9]+)")
_UNPACKING = (SafetensorError, KeyError, OverflowError, RuntimeError, TypeError, ValueError)
"""What tensors of other names and shapes bring about."""


class StoredStates(NamedTuple):
    """Each layer's state after the last token of a segment, by the first part of its name."""

    segment: str
    states: list[State]


def pack_states(segment: str, states: Sequence[Mapping[str, Tensor]]) -> bytes:
    """The states after the last token of the segment of that name, as bytes."""
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


Projections = Sequence[Linear | None]
"""One for each layer; None where a layer scores with the whole folded keys."""
NO_FIT = "none"


def pack_tokens(ids: Sequence[int], offsets: Sequence[tuple[int, int]] | Tensor) -> bytes:
    """Token ids (n,) and their character offsets (n, 2) as bytes."""
    spans = torch.as_tensor(offsets, dtype=torch.int64).reshape(-1, 2)
    if spans.shape[0] != len(ids):
        raise ValueError(f"offsets must be {len(ids)}, one for each token, got {spans.shape[0]}")
    numbers = torch.from_numpy(numpy.array(ids, dtype=numpy.int64))
    return save({"ids": numbers, "offsets": spans.contiguous()})


def pack_fit(projections: Projections) -> bytes:
    """The maps (F, R) of all layers as bytes."""
    return save({"layers": torch.tensor(len(projections)), **map_tensors(projections)})


def fit_name(packed: bytes) -> str:
    """A content hash of packed projections."""
    return hashlib.blake2b(packed, digest_size=12).hexdigest()


def read_fit(paths: LibraryPaths, name: str, key: str) -> list[Linear | None] | None:
    """The projections of that name, or None for "none". Raises LibraryError: they are missing or
    damaged."""
    if name == NO_FIT:
        return None
    packed = checksummed_file.read(paths.fit(name), "fit", key)
    if fit_name(packed) != name:
        raise damage_error(paths.fit(name), "it holds other projections than its name says", key)
    maps = load(packed)
    found: list[Linear | None] = []
    for i in range(int(maps["layers"])):
        pair = [maps.get(f"layers.{i}.{name}") for name in ("query_map", "key_map")]
        found.append(None if pair[0] is None or pair[1] is None else Linear(pair[0], pair[1]))
    return found


class StoredDocument:
    """A document opened for questions: its small files read and checked, its segments mapped.

    Args:
        entry: must not have `damage`.

    Raises:
        LibraryError: a file of it is missing, damaged or of another version.
    """

    def __init__(self, paths: LibraryPaths, entry: Entry) -> None:
        self.entry, key = entry, entry.key
        digests = entry.digests
        self.text = read_text(paths, entry)
        path = paths.document(key, "tokens")
        tokens = load(checksummed_file.read(path, "tokens", key, digests["tokens"]))
        self._ids: Tensor = tokens["ids"]
        self.offsets: Tensor = tokens["offsets"]
        """(n, 2): start and end of each token in `text`, in characters."""
        self.projections = read_fit(paths, entry.fit, key)
        self.states: list[State] = []
        """Of the model's layers that keep one, after the last token."""
        if entry.layout.states:
            self.states = read_states(paths.document(key, "states"), entry).states
        self.head, self.marks = entry.head, list(entry.marks)
        self._segments = [
            Segment(paths.segment(name), entry.layout, entry.segment_tokens(i), key)
            for i, name in enumerate(entry.segments)
        ]

    @cached_property
    def ids(self) -> list[int]:
        """All token ids; a list of a million takes 40 MB."""
        return list(self._ids.tolist())

    def layers(self, devices: Sequence[torch.device] = ()) -> list[DiskStore]:
        """A store for each layer; see `disk_stores`."""
        return disk_stores(self._segments, self.entry.layout, devices)

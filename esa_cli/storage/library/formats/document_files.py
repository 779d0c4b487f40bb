"""Token ids, offsets and projections as safetensors files, and a stored document that is open."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cached_property

import numpy
import torch
from safetensors.torch import load, save
from torch import Tensor

from esa_cli.attention.compression import Linear, map_tensors
from esa_cli.storage.library.disk_store import DiskStore, disk_stores
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.checksummed_file import damage_error
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry, read_text
from esa_cli.storage.library.formats.segment import Segment
from esa_cli.storage.library.formats.state_file import State, read_states

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
        """Of the model's layers that keep one, behind the last token."""
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

"""A document's small files: token ids, offsets, projections and states; a stored document that is
open; and the checks of contents that `verify` and every copy use.

States are those of the layers that keep one in place of rows, or beside them. While a document is
written, the file has those after its last whole segment, from which an interrupted ingest resumes;
of a finished document, those after its last token. The payload is a line with the first part of
that segment's name, and the tensors as safetensors.

A stranger can write any contents with a valid checksum, so what is copied into the library is
checked by `checked_entry` and `check_file`; the library's own files are only checked for damage.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from esa_cli.attention.compression import Linear, map_tensors
from esa_cli.storage.library import checksummed_file, manifest
from esa_cli.storage.library.checksummed_file import damage_error
from esa_cli.storage.library.library_paths import LibraryPaths
from esa_cli.storage.library.manifest import Entry, Layout
from esa_cli.storage.library.segment import DiskStore, Segment, SegmentLayer
from esa_cli.storage.memory_store import CPU
from esa_cli.system.text import text_digest

State = dict[str, Tensor]
"""One layer's state, by the name of the tensor."""
Projections = Sequence[Linear | None]
"""One for each layer; None for a layer without reduced keys."""
NO_FIT = "none"
_NAME = re.compile(r"([0-9]+)\.((?:conv|recurrent)\.[0-9]+)")
_UNPACKING = (
    AttributeError, LookupError, OverflowError, RecursionError, RuntimeError, SafetensorError,
    TypeError, ValueError,
)  # fmt: skip
"""What contents of other names, types and shapes raise."""


class StoredStates(NamedTuple):
    """Each layer's state after the last token of a segment, by the first part of its name."""

    segment: str
    states: list[State]


def pack_states(segment: str, states: Sequence[Mapping[str, Tensor]]) -> bytes:
    """The states after the last token of the segment of that name, as bytes."""
    tensors = {
        f"{layer}.{name}": tensor.cpu().contiguous()
        for layer, state in enumerate(states)
        for name, tensor in state.items()
    }
    return f"{segment}\n".encode() + save({"layers": torch.tensor(len(states)), **tensors})


def unpack_states(payload: bytes, path: Path, layout: Layout, key: str) -> StoredStates:
    """What `pack_states` packed. Raises LibraryError: it is something else.

    Args:
        path, key: for messages.
    """
    name, _, packed = payload.partition(b"\n")
    try:
        tensors = load(packed)
        # Before a list of so many is made: a stranger's file may say any number.
        if not int(tensors.pop("layers")) == layout.states <= len(tensors):
            raise ValueError("other layers")
        states: list[State] = [{} for _ in range(layout.states)]
        for tensor, value in sorted(tensors.items()):
            match = _NAME.fullmatch(tensor)
            if match is None:
                raise ValueError(tensor)
            states[int(match[1])][match[2]] = value
        return StoredStates(name.decode("ascii"), states)
    except _UNPACKING as error:
        raise damage_error(path, "it has no states as esa writes them", key) from error


def read_states(paths: LibraryPaths, layout: Layout, key: str, segment: str = "") -> StoredStates:
    """The states of a document. Raises LibraryError: they are missing, damaged, of another version,
    or not those after `segment`; empty: any."""
    path = paths.document(key, "states")
    stored = unpack_states(checksummed_file.read(path, "states", key), path, layout, key)
    if segment not in ("", stored.segment):
        raise damage_error(path, "it has the states of another document", key)
    return stored


def pack_tokens(ids: Sequence[int], offsets: Sequence[tuple[int, int]] | Tensor) -> bytes:
    """Token ids (n,) and their character offsets (n, 2) as bytes."""
    spans = torch.as_tensor(offsets, dtype=torch.int64).reshape(-1, 2)
    numbers = torch.from_numpy(numpy.array(ids, dtype=numpy.int64))
    return save({"ids": numbers, "offsets": spans.contiguous()})


def serialise_projections(projections: Projections) -> bytes:
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
    maps, projections = load(packed), list[Linear | None]()
    for i in range(int(maps["layers"])):
        query_map, key_map = (maps.get(f"layers.{i}.{name}") for name in ("query_map", "key_map"))
        has_maps = query_map is not None and key_map is not None
        projections.append(Linear(query_map, key_map) if has_maps else None)  # type: ignore[arg-type]
    return projections


class StoredDocument:
    """A document opened for questions: its small files read and checked, its segments mapped.

    Args:
        entry: must not have `damage`.

    Raises:
        LibraryError: a file of it is missing, damaged or of another version.
    """

    def __init__(self, paths: LibraryPaths, entry: Entry) -> None:
        self.entry, key = entry, entry.key
        self.text = manifest.read_text(paths, entry)
        path = paths.document(key, "tokens")
        tokens = load(checksummed_file.read(path, "tokens", key, entry.digests["tokens"]))
        self._ids: Tensor = tokens["ids"]
        self.offsets: Tensor = tokens["offsets"]
        """(n, 2): start and end of each token in `text`, in characters."""
        self.projections = read_fit(paths, entry.fit, key)
        self.states: list[State] = []
        """Of the model's layers that keep one, after the last token."""
        if entry.layout.states:
            self.states = read_states(paths, entry.layout, key, _last_segment(entry)).states
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
        """A store for each layer, each on its device; (): all on the CPU."""
        count = self.entry.layout.layers
        return [
            DiskStore([SegmentLayer(segment, layer, device) for segment in self._segments])
            for layer, device in zip(range(count), devices or [CPU] * count, strict=True)
        ]


def _last_segment(entry: Entry) -> str:
    """The first part of its name."""
    return entry.segments[-1].partition("-")[0]


def needed_paths(paths: LibraryPaths, entry: Entry) -> list[Path]:
    """The files that a document needs, but its manifest."""
    fit = [] if entry.fit == NO_FIT else [paths.fit(entry.fit)]
    own = [paths.document(entry.key, kind) for kind in entry.kinds]
    return [*map(paths.segment, entry.segments), *fit, *own]


def check_file(file: Path, path: Path, entry: Entry) -> None:
    """Reads every byte of a file that is, or will be, at `path`, one of `needed_paths`. Raises
    LibraryError: it is missing, damaged, or another document's."""
    key, kind = entry.key, path.suffix[1:]
    if kind == "seg":
        tokens = entry.segment_tokens(entry.segments.index(path.stem))
        Segment(file, entry.layout, tokens, key, path.stem).check()
        return
    data = checksummed_file.read_bytes(file, key)
    payload = checksummed_file.decode(data, kind, path, key, entry.digests.get(kind))
    try:
        good = _CHECKS[kind](entry, payload, path)
    except _UNPACKING as error:
        raise damage_error(path, "its contents are not what esa writes", key) from error
    if not good or len(data) != entry.sizes[kind]:
        raise damage_error(path, "it belongs to another document", key)


def _is_text(entry: Entry, payload: bytes, path: Path) -> bool:
    text = payload.decode("utf-8", "surrogatepass")
    facts = manifest.document_key(entry.identity, text), text_digest(text), len(text)
    return facts == (entry.key, entry.text_sha256, entry.characters)


def _are_tokens(entry: Entry, payload: bytes, path: Path) -> bool:
    """Whether the document's segments are named after these tokens."""
    tensors = load(payload)
    ids, offsets = tensors["ids"].tolist(), tensors["offsets"]
    names = manifest.segment_names(entry.identity, ids, entry.layout)
    return (
        len(ids) == entry.tokens
        and tuple(offsets.shape) == (len(ids), 2)
        and min(ids) >= 0
        and 0 <= int(offsets.min()) <= int(offsets.max()) <= entry.characters
        and names == [name.partition("-")[0] for name in entry.segments]
    )


def _are_projections(entry: Entry, payload: bytes, path: Path) -> bool:
    """Whether these are the projections of that name, of the document's layout."""
    tensors, layout = load(payload), entry.layout
    good = fit_name(payload) == path.stem and int(tensors.pop("layers")) == layout.layers
    for i, width in enumerate(layout.reduced):
        pair = [tensors.pop(f"layers.{i}.{name}") for name in ("query_map", "key_map") if width]
        good = good and all(one.dim() == 2 and one.shape[1] == width for one in pair)
    return good and not tensors


def _are_states(entry: Entry, payload: bytes, path: Path) -> bool:
    return unpack_states(payload, path, entry.layout, entry.key).segment == _last_segment(entry)


_CHECKS = {"text": _is_text, "tokens": _are_tokens, "fit": _are_projections, "states": _are_states}


_PROVENANCE = {"name": str, "source": str, "bytes": int, "missing": list}


def checked_entry(paths: LibraryPaths, key: str, data: bytes) -> Entry:
    """The entry that the bytes of a manifest contain. Raises ForeignVersionError: it is of another
    format. LibraryError: it is damaged, or has what esa does not write."""
    path = paths.document(key)
    payload = checksummed_file.decode(data, "document", path, key)
    try:
        TypeAdapter(Entry).validate_json(payload)
        entry = manifest.decode_entry(paths, key, data)
        if set(json.loads(payload)) == set(manifest.facts(entry)) and _fits_itself(paths, entry):
            return entry
    except _UNPACKING as error:
        raise damage_error(path, "its contents are not what esa writes", key) from error
    raise damage_error(path, "its contents are not what esa writes", key)


def _fits_itself(paths: LibraryPaths, entry: Entry) -> bool:
    """Whether a manifest has numbers that can be, and names of files that esa makes, of its own."""
    layout, sizes, known = entry.layout, entry.sizes, entry.provenance
    counts = [entry.head, entry.characters, *sizes.values(), *(mark[0] for mark in entry.marks)]
    return (
        all(type(known[name]) is kind for name, kind in _PROVENANCE.items())
        and min(counts) >= 0
        and 0 < entry.tokens >= entry.head
        and 0 <= entry.created < 1 << 40
        and len(entry.segments) == -(-entry.tokens // layout.segment)
        and layout.nbytes(entry.tokens) == sizes["segments"]
        and set(sizes) == {"segments", "fit", *entry.kinds}
        and set(entry.digests) == {"text", "tokens"}
        and all(name.partition("-")[2] == entry.fit for name in entry.segments)
        and all(map(paths.is_whole, needed_paths(paths, entry)))
    )

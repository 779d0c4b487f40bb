"""Files of one document: how they are packed, written while it is ingested, opened and checked.

An ingest writes segments as they fill, with the states after the last one, then the document's own
files, and the manifest last. Every file is written atomically, so a kill leaves nothing, complete
segments to resume from, or a document. A stranger can write any contents with a valid checksum, so
what is copied into the library is checked by `check_manifest` and `check_file`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from esa_cli.attention.compression import Linear, map_tensors
from esa_cli.errors import LibraryError
from esa_cli.storage.library import disk, manifest
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.manifest import NO_FIT, Entry, Layout, prefix_of
from esa_cli.storage.library.segment import DiskStore, Segment, SegmentLayer, write_segment
from esa_cli.storage.memory_store import CPU, JoinedStore, MemoryStore, StoreSlice
from esa_cli.system.text import text_bytes, text_digest

State = dict[str, Tensor]
"""One layer's state, by the name of the tensor."""
Projections = Sequence[Linear | None]
"""One for each layer; None for a layer without reduced keys."""
_STATE_NAME = re.compile(r"([0-9]+)\.((?:conv|recurrent)\.[0-9]+)")
_PROVENANCE = {"name": str, "source": str, "bytes": int, "missing": list}
_UNPACKING = (
    AttributeError, LookupError, OverflowError, RecursionError, RuntimeError, SafetensorError,
    TypeError, ValueError,
)  # fmt: skip
"""Errors that contents of other names, types and shapes raise."""


class StoredStates(NamedTuple):
    """The states of layers after the last token of the segment with this prefix."""

    segment: str
    states: list[State]


def pack_states(segment: str, states: Sequence[Mapping[str, Tensor]]) -> bytes:
    """Returns the states after the segment with this prefix as bytes."""
    tensors = {
        f"{layer}.{name}": tensor.cpu().contiguous()
        for layer, state in enumerate(states)
        for name, tensor in state.items()
    }
    return f"{segment}\n".encode() + save({"layers": torch.tensor(len(states)), **tensors})


def unpack_states(payload: bytes, path: Path, layout: Layout, key: str) -> StoredStates:
    """Returns what `pack_states` packed. Raises LibraryError, which names `path` and `key`."""
    name, _, packed = payload.partition(b"\n")
    try:
        tensors = load(packed)
        # Before a list of so many is made: a stranger's file may say any number.
        if not int(tensors.pop("layers")) == layout.states <= len(tensors):
            raise ValueError("other layers")
        states: list[State] = [{} for _ in range(layout.states)]
        for tensor, value in sorted(tensors.items()):
            match = _STATE_NAME.fullmatch(tensor)
            if match is None:
                raise ValueError(tensor)
            states[int(match[1])][match[2]] = value
        return StoredStates(name.decode("ascii"), states)
    except _UNPACKING as error:
        raise disk.damage_error(path, "it has no states as esa writes them", key) from error


def read_states(paths: LibraryPaths, layout: Layout, key: str, segment: str = "") -> StoredStates:
    """Returns the states of a document. Raises LibraryError: they are missing, damaged, of another
    format, or not those after `segment` (empty: any)."""
    path = paths.document(key, "states")
    stored = unpack_states(disk.read_file(path, "states", key), path, layout, key)
    if segment not in ("", stored.segment):
        raise disk.damage_error(path, "it has the states of another document", key)
    return stored


def pack_tokens(ids: Sequence[int], offsets: Sequence[tuple[int, int]] | Tensor) -> bytes:
    """Returns token ids (n,) and their character offsets (n, 2) as bytes."""
    spans = torch.as_tensor(offsets, dtype=torch.int64).reshape(-1, 2)
    numbers = torch.from_numpy(numpy.array(ids, dtype=numpy.int64))
    return save({"ids": numbers, "offsets": spans.contiguous()})


def _hash_projections(packed: bytes) -> str:
    return hashlib.blake2b(packed, digest_size=12).hexdigest()


def _read_projections(paths: LibraryPaths, name: str, key: str) -> list[Linear | None] | None:
    """Returns the projections of that name; None for `NO_FIT`. Raises LibraryError."""
    if name == NO_FIT:
        return None
    packed = disk.read_file(paths.fit(name), "fit", key)
    if _hash_projections(packed) != name:
        raise disk.damage_error(
            paths.fit(name), "it holds other projections than its name says", key
        )
    tensors, projections = load(packed), list[Linear | None]()
    for i in range(int(tensors["layers"])):
        pair = [tensors.get(f"layers.{i}.{name}") for name in ("query_map", "key_map")]
        has_maps = pair[0] is not None and pair[1] is not None
        projections.append(Linear(*pair) if has_maps else None)  # type: ignore[arg-type]
    return projections


class StoredDocument:
    """A document opened for questions: its small files read and checked, its segments mapped.
    Raises LibraryError: one of its files is missing, damaged or of another format.

    Attributes:
        offsets: (n, 2), start and end of each token in `text`, in characters.
        states: of the model's layers that keep one, after the last token.
    """

    def __init__(self, paths: LibraryPaths, entry: Entry) -> None:
        self.entry, key = entry, entry.key
        self.text = manifest.read_text(paths, entry)
        path = paths.document(key, "tokens")
        tokens = load(disk.read_file(path, "tokens", key, entry.digests["tokens"]))
        self._ids, self.offsets = tokens["ids"], tokens["offsets"]
        self.projections = _read_projections(paths, entry.fit, key)
        self.states: list[State] = []
        if entry.layout.states:
            last = prefix_of(entry.segments[-1])
            self.states = read_states(paths, entry.layout, key, last).states
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
        """Returns a store for each layer on its device; (): on the CPU."""
        count = self.entry.layout.layers
        return [
            DiskStore([SegmentLayer(segment, layer, device) for segment in self._segments])
            for layer, device in zip(range(count), devices or [CPU] * count, strict=True)
        ]


class Writer:
    """A running ingest; `Library.write` makes it while it holds the document's lock and claim.

    Attributes:
        done: tokens on disk, of this ingest or of another document with the same beginning.
        layers: one store for each layer; prefill appends from token `done` on.
        projections: those of the reduced keys on disk; None while there are none.
        states: of the layers that keep one, after token `done`; empty before the first.
        wrote: whether it has written a file. is_finished: whether the document exists.
    """

    def __init__(
        self,
        paths: LibraryPaths,
        key: str,
        identity: str,
        ids: Sequence[int],
        layout: Layout,
        prefixes: Sequence[str],
        devices: Sequence[torch.device] = (),
    ) -> None:
        self.paths, self.key, self.identity = paths, key, identity
        self.ids, self.layout, self._prefixes = ids, layout, prefixes
        self.wrote = self.is_finished = False
        self._fit = NO_FIT
        self.projections: list[Any] | None = None
        self.states: list[State] = [{} for _ in range(layout.states)]
        segments = self._resume()
        self.segments = [segment.path.stem for segment in segments]
        self.done = sum(segment.tokens for segment in segments)
        self.layers = list[JoinedStore]()
        dtype: torch.dtype = getattr(torch, layout.dtype)
        for i, device in enumerate(devices or [CPU] * layout.layers):
            shape = layout.of(i)
            tail = MemoryStore(shape.heads, shape.dim, dtype, torch.device(device), shape.shared)
            tail.expect(layout.segment)
            parts = [SegmentLayer(segment, i, tail.device) for segment in segments]
            self.layers.append(JoinedStore([StoreSlice(one, 0, len(one)) for one in parts], tail))

    def _resume(self) -> list[Segment]:
        """Opens as many complete first segments as there are on disk, every byte checked, and loads
        their projections and states. With states, all segments before them, or none."""
        layout, states, best = self.layout, self.states, list[Segment]()
        prefixes, min_count = self._prefixes[: len(self.ids) // layout.segment], 1
        if layout.states:
            try:
                stored = read_states(self.paths, layout, self.key)
                prefixes = self._prefixes[: self._prefixes.index(stored.segment) + 1]
            except (LibraryError, ValueError):
                return []
            states, min_count = stored.states, len(prefixes)
        for path in sorted(self.paths.segments.glob(f"{self._prefixes[0]}-*.seg")):
            fit, segments = path.stem.partition("-")[2], list[Segment]()
            with suppress(LibraryError):
                projections = _read_projections(self.paths, fit, self.key)
                for i, prefix in enumerate(prefixes):
                    size = min(layout.segment, len(self.ids) - i * layout.segment)
                    segments.append(self._checked_segment(f"{prefix}-{fit}", size))
            if len(segments) >= min_count and len(segments) > len(best):
                best, self.states, self._fit, self.projections = segments, states, fit, projections
        return best

    def _checked_segment(self, name: str, tokens: int) -> Segment:
        segment = Segment(self.paths.segment(name), self.layout, tokens, self.key)
        segment.check()
        return segment

    def flush(self, projections: Projections | None = None, states: Sequence[State] = ()) -> None:
        """Writes every segment that is complete in all layers, and frees its rows in memory. Called
        after each piece of prefill, it bounds memory, and a kill loses one segment. Raises
        LibraryError, DiskError: the disk is full; complete segments stay.

        Args:
            projections: those of the reduced keys; needed with the first segment.
            states: after the last token in memory; they are stored if a segment ends with it.
        """
        while self._complete_tokens() >= self.layout.segment:
            self._write_segment(self.layout.segment, projections)
        if states and self.segments and not any(len(layer.tail) for layer in self.layers):
            # After the segment, so that stored states always have all segments before them.
            last = self._prefixes[len(self.segments) - 1]
            self._write(self.paths.document(self.key, "states"), pack_states(last, states))

    def _complete_tokens(self) -> int:
        """Number of tokens in memory that are complete in all layers."""
        pairs = zip(self.layers, self.layout.reduced, strict=True)
        return min(layer.tail.reduced if width else len(layer.tail) for layer, width in pairs)

    def _write_segment(self, count: int, projections: Projections | None) -> None:
        if not self.segments and projections is not None:
            layers = {"layers": torch.tensor(len(projections))}
            packed = save({**layers, **map_tensors(projections)})
            self._fit, self.projections = _hash_projections(packed), list(projections)
            self._write(self.paths.fit(self._fit), packed)
        name = f"{self._prefixes[len(self.segments)]}-{self._fit}"
        try:  # there may be one of a document with the same beginning and other states
            segment = self._checked_segment(name, count)
        except LibraryError:
            path = self.paths.segment(name)
            rows = (layer.tail.first(count) for layer in self.layers)
            with disk.write_errors(self.paths.root):
                write_segment(path, self.key, self.layout, count, rows)
            self.wrote, segment = True, Segment(path, self.layout, count, self.key)
        for i, layer in enumerate(self.layers):
            layer.replace_first(SegmentLayer(segment, i, layer.tail.device))
        self.segments.append(name)
        self.done += count

    def _write(self, path: Path, payload: bytes) -> str:
        with disk.write_errors(self.paths.root):
            digest = disk.write_file(path, path.suffix[1:], payload, self.key)
        self.wrote = True
        return digest

    def finish(
        self,
        *,
        text: str,
        offsets: Sequence[tuple[int, int]] | Tensor,
        marks: Sequence[Any] = (),
        head: int = 0,
        provenance: dict[str, Any] | None = None,
        projections: Projections | None = None,
        states: Sequence[State] = (),
    ) -> Entry:
        """Writes the rest and the manifest, with which the document exists. Raises ValueError:
        tokens or states are missing. DiskError: as `flush`.

        Args:
            text: the whole text. offsets: (n, 2) character offsets of all tokens.
            marks, provenance: JSON data. head: tokens of the prompt before the document.
            projections: as for `flush`. states: after the last token.
        """
        self.flush(projections)
        paths, key, rest = self.paths, self.key, len(self.ids) - self.done
        lengths = {len(self.ids), len(offsets), *map(len, self.layers)}
        if len(lengths) > 1 or self._complete_tokens() != rest or len(states) != self.layout.states:
            raise ValueError(f"all {len(self.ids)} tokens must have rows, reduced keys and offsets")
        if rest:
            self._write_segment(rest, projections)
        self.flush(states=states)
        payloads = {"text": text_bytes(text), "tokens": pack_tokens(self.ids, offsets)}
        digests = {
            kind: self._write(paths.document(key, kind), payload)
            for kind, payload in payloads.items()
        }
        entry = Entry(
            key=key, identity=self.identity, layout=self.layout, tokens=len(self.ids), head=head,
            segments=tuple(self.segments), fit=self._fit, digests=digests,
            text_sha256=text_digest(text), characters=len(text), created=round(time.time(), 3),
            marks=tuple(marks), provenance=provenance or {},
        )  # fmt: skip
        rows = sum(disk.file_size(paths.segment(name)) for name in self.segments)
        entry.sizes.update(segments=rows, fit=disk.file_size(paths.fit(self._fit)))
        entry.sizes.update(
            (kind, disk.file_size(paths.document(key, kind))) for kind in entry.kinds
        )
        with disk.write_errors(paths.root), paths.locked("library"):
            manifest.write_manifest(paths, entry)
            paths.claim(key).unlink()
        manifest.mark_used(paths, key)
        self.is_finished = True
        return manifest.read_manifest(paths, key)


def needed_paths(paths: LibraryPaths, entry: Entry) -> list[Path]:
    """Returns the files that a document needs, without its manifest."""
    fit = [] if entry.fit == NO_FIT else [paths.fit(entry.fit)]
    files = [paths.document(entry.key, kind) for kind in entry.kinds]
    return [*map(paths.segment, entry.segments), *fit, *files]


def check_file(file: Path, path: Path, entry: Entry) -> None:
    """Reads every byte of a file that is, or will be, one of `needed_paths`. Raises LibraryError:
    the file is missing, damaged, or another document's."""
    key, kind = entry.key, path.suffix[1:]
    if kind == "seg":
        tokens = entry.segment_tokens(entry.segments.index(path.stem))
        Segment(file, entry.layout, tokens, key, path.stem).check()
        return
    data = disk.read_bytes(file, key)
    payload = disk.unpack_file(data, kind, path, key, entry.digests.get(kind))
    try:
        belongs = len(data) == entry.sizes[kind] and _belongs(entry, kind, payload, path)
    except _UNPACKING as error:
        raise disk.damage_error(path, "its contents are not what esa writes", key) from error
    if not belongs:
        raise disk.damage_error(path, "it belongs to another document", key)


def _belongs(entry: Entry, kind: str, payload: bytes, path: Path) -> bool:
    """Whether a small file has the contents that the manifest and the names say."""
    layout, identity = entry.layout, entry.identity
    if kind == "text":
        text = payload.decode("utf-8", "surrogatepass")
        facts = manifest.document_key(identity, text), text_digest(text), len(text)
        return facts == (entry.key, entry.text_sha256, entry.characters)
    prefixes = [*map(prefix_of, entry.segments)]
    if kind == "states":
        return unpack_states(payload, path, layout, entry.key).segment == prefixes[-1]
    tensors = load(payload)
    if kind == "tokens":
        ids, offsets = tensors["ids"].tolist(), tensors["offsets"]
        return (
            len(ids) == entry.tokens
            and tuple(offsets.shape) == (len(ids), 2)
            and min(ids) >= 0
            and 0 <= int(offsets.min()) <= int(offsets.max()) <= entry.characters
            and manifest.segment_prefixes(identity, ids, layout) == prefixes
        )
    good = _hash_projections(payload) == path.stem and int(tensors.pop("layers")) == layout.layers
    for i, width in enumerate(layout.reduced):
        pair = [tensors.pop(f"layers.{i}.{name}") for name in ("query_map", "key_map") if width]
        good = good and all(matrix.dim() == 2 and matrix.shape[1] == width for matrix in pair)
    return good and not tensors


def check_manifest(paths: LibraryPaths, key: str, data: bytes) -> Entry:
    """Returns the entry in the bytes of a stranger's manifest. Raises LibraryError: damage, another
    format, or contents that esa does not write."""
    path = paths.document(key)
    payload = disk.unpack_file(data, "document", path, key)
    try:
        TypeAdapter(Entry).validate_json(payload)
        entry = manifest.decode_manifest(paths, key, data)
        if set(json.loads(payload)) != set(entry.stored_fields()) or not _is_possible(paths, entry):
            raise ValueError("other fields or numbers")
    except _UNPACKING as error:
        raise disk.damage_error(path, "its contents are not what esa writes", key) from error
    return entry


def _is_possible(paths: LibraryPaths, entry: Entry) -> bool:
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

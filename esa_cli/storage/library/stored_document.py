"""The files of one stored document: how they are packed, written, opened and checked.

An ingest writes each segment when it is full, with the recurrent states after the segment, then the
document's own files, and finally the manifest. Every file is written atomically, so a killed ingest
leaves nothing, complete segments to resume from, or a complete document. A stranger can write any
contents with a valid checksum, so every file that is copied into the library from elsewhere is
checked by `check_manifest` and `check_file`.
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

from esa_cli.attention.compression import Linear, name_projection_tensors
from esa_cli.errors import LibraryError
from esa_cli.storage.library import disk, manifest
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.manifest import NO_FIT, Entry, Layout, segment_prefix
from esa_cli.storage.library.segment import DiskStore, Segment, SegmentLayer, write_segment
from esa_cli.storage.memory_store import CPU, JoinedStore, MemoryStore, StoreSlice
from esa_cli.system.text import text_bytes, text_digest

State = dict[str, Tensor]
"""The state of one recurrent layer: its tensors by name."""
Projections = Sequence[Linear | None]
"""A projection for each layer, or None for a layer without reduced keys."""
_STATE_NAME = re.compile(r"([0-9]+)\.((?:conv|recurrent)\.[0-9]+)")
_PROVENANCE = {"name": str, "source": str, "bytes": int, "missing": list}
_UNPACKING = (
    AttributeError, LookupError, OverflowError, RecursionError, RuntimeError, SafetensorError,
    TypeError, ValueError,
)  # fmt: skip
"""Exceptions raised when a file has unexpected names, types or shapes."""


class StoredStates(NamedTuple):
    """The states of the recurrent layers after the last token of a segment."""

    segment: str
    states: list[State]


def pack_states(segment: str, states: Sequence[Mapping[str, Tensor]]) -> bytes:
    """Returns the states after a segment as bytes. `segment` is the segment's prefix."""
    tensors = {
        f"{layer}.{name}": tensor.cpu().contiguous()
        for layer, state in enumerate(states)
        for name, tensor in state.items()
    }
    return f"{segment}\n".encode() + save({"layers": torch.tensor(len(states)), **tensors})


def unpack_states(payload: bytes, path: Path, layout: Layout, key: str) -> StoredStates:
    """Returns the states that `pack_states` packed. Raises LibraryError: they are damaged."""
    name, _, packed = payload.partition(b"\n")
    try:
        tensors = load(packed)
        # Before a list of so many is made: a stranger's file may say any number.
        if not int(tensors.pop("layers")) == layout.states <= len(tensors):
            raise ValueError("the number of layers is wrong")
        states: list[State] = [{} for _ in range(layout.states)]
        for tensor, value in sorted(tensors.items()):
            match = _STATE_NAME.fullmatch(tensor)
            if match is None:
                raise ValueError(tensor)
            states[int(match[1])][match[2]] = value
        return StoredStates(name.decode("ascii"), states)
    except _UNPACKING as error:
        raise disk.damage_error(path, "its recurrent states are invalid", key) from error


def read_states(paths: LibraryPaths, layout: Layout, key: str, segment: str = "") -> StoredStates:
    """Returns the states of a document. Raises LibraryError: the file is missing, damaged, of
    another format, or has the states after another segment than `segment` (empty: any)."""
    path = paths.document_path(key, "states")
    stored = unpack_states(disk.read_file(path, "states", key), path, layout, key)
    if segment not in ("", stored.segment):
        raise disk.damage_error(path, "its recurrent states belong to another document", key)
    return stored


def pack_tokens(ids: Sequence[int], offsets: Sequence[tuple[int, int]] | Tensor) -> bytes:
    """Returns token ids (n,) and their character offsets (n, 2) as bytes."""
    spans = torch.as_tensor(offsets, dtype=torch.int64).reshape(-1, 2)
    numbers = torch.from_numpy(numpy.array(ids, dtype=numpy.int64))
    return save({"ids": numbers, "offsets": spans.contiguous()})


def _hash_projections(packed: bytes) -> str:
    return hashlib.blake2b(packed, digest_size=12).hexdigest()


def _read_projections(paths: LibraryPaths, name: str, key: str) -> list[Linear | None] | None:
    """Reads the projections with this name, or returns None for `NO_FIT`. Raises LibraryError."""
    if name == NO_FIT:
        return None
    packed = disk.read_file(paths.projections_path(name), "fit", key)
    if _hash_projections(packed) != name:
        raise disk.damage_error(
            paths.projections_path(name), "its name does not match its projections", key
        )
    tensors, projections = load(packed), list[Linear | None]()
    for i in range(int(tensors["layers"])):
        pair = [tensors.get(f"layers.{i}.{name}") for name in ("query_map", "key_map")]
        has_maps = pair[0] is not None and pair[1] is not None
        projections.append(Linear(*pair) if has_maps else None)  # type: ignore[arg-type]
    return projections


class StoredDocument:
    """A stored document opened for questions, with its segments memory-mapped. Raises LibraryError:
    one of its files is missing, damaged or of another format.

    Attributes:
        offsets: start and end of each token in `text`, in characters (n, 2).
        states: the states of the model's recurrent layers after the last token."""

    def __init__(self, paths: LibraryPaths, entry: Entry) -> None:
        self.entry, key = entry, entry.key
        self.text = manifest.read_text(paths, entry)
        path = paths.document_path(key, "tokens")
        tokens = load(disk.read_file(path, "tokens", key, entry.digests["tokens"]))
        self._ids, self.offsets = tokens["ids"], tokens["offsets"]
        self.projections = _read_projections(paths, entry.fit, key)
        self.states: list[State] = []
        if entry.layout.states:
            last = segment_prefix(entry.segments[-1])
            self.states = read_states(paths, entry.layout, key, last).states
        self.head, self.marks = entry.head, list(entry.marks)
        self._segments = [
            Segment(paths.segment_path(name), entry.layout, entry.segment_tokens(i), key)
            for i, name in enumerate(entry.segments)
        ]

    @cached_property
    def ids(self) -> list[int]:
        """All token ids of the document, as a list."""
        return list(self._ids.tolist())

    def layers(self, devices: Sequence[torch.device] = ()) -> list[DiskStore]:
        """Returns a store for each layer, on the given devices or, without any, on the CPU."""
        count = self.entry.layout.layers
        return [
            DiskStore([SegmentLayer(segment, layer, device) for segment in self._segments])
            for layer, device in zip(range(count), devices or [CPU] * count, strict=True)
        ]


class DocumentWriter:
    """Writes a document's files during its ingest. `Library.write` makes a writer while it holds
    the document's lock and claim.

    Attributes:
        done: number of tokens on disk, which another document with the same beginning may share.
        layers: a store for each layer, to which prefill appends from token `done` on.
        projections: the projections of the reduced keys on disk; None if no key is on disk.
        states: the states of the recurrent layers after token `done`; empty at the start.
        wrote: whether the writer has written a file. is_finished: whether the document exists."""

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
        segments = self._load_finished_segments()
        self.segments = [segment.path.stem for segment in segments]
        self.done = sum(segment.tokens for segment in segments)
        self.layers = list[JoinedStore]()
        dtype: torch.dtype = getattr(torch, layout.dtype)
        for i, device in enumerate(devices or [CPU] * layout.layers):
            shape = layout.of_layer(i)
            tail = MemoryStore(shape.heads, shape.dim, dtype, torch.device(device), shape.shared)
            tail.expect(layout.segment)
            parts = [SegmentLayer(segment, i, tail.device) for segment in segments]
            self.layers.append(JoinedStore([StoreSlice(one, 0, len(one)) for one in parts], tail))

    def _load_finished_segments(self) -> list[Segment]:
        """Opens and checks the document's first segments that are complete on disk, and loads their
        projections. If the model has recurrent layers, loads the states after those segments."""
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
                    segments.append(self._open_checked_segment(f"{prefix}-{fit}", size))
            if len(segments) >= min_count and len(segments) > len(best):
                best, self.states, self._fit, self.projections = segments, states, fit, projections
        return best

    def _open_checked_segment(self, name: str, tokens: int) -> Segment:
        segment = Segment(self.paths.segment_path(name), self.layout, tokens, self.key)
        segment.check_all_bytes()
        return segment

    def flush(self, projections: Projections | None = None, states: Sequence[State] = ()) -> None:
        """Writes every segment that is complete in all layers, and frees the segment's memory.
        Callers flush after each piece of prefill, so that a killed ingest loses at most one
        segment. Raises LibraryError, DiskError: the disk is full; complete segments stay on disk.

        Args:
            projections: the projections of the reduced keys, needed with the first segment.
            states: the recurrent states after the last token in memory, stored if a segment ends.
        """
        while self._complete_count() >= self.layout.segment:
            self._write_segment(self.layout.segment, projections)
        if states and self.segments and not any(len(layer.tail) for layer in self.layers):
            # After the segment, so that stored states always have all segments before them.
            last = self._prefixes[len(self.segments) - 1]
            self._write_file(
                self.paths.document_path(self.key, "states"), pack_states(last, states)
            )

    def _complete_count(self) -> int:
        """Counts the tokens in memory that are complete in all layers."""
        pairs = zip(self.layers, self.layout.reduced, strict=True)
        return min(layer.tail.reduced if width else len(layer.tail) for layer, width in pairs)

    def _write_segment(self, count: int, projections: Projections | None) -> None:
        if not self.segments and projections is not None:
            layers = {"layers": torch.tensor(len(projections))}
            packed = save({**layers, **name_projection_tensors(projections)})
            self._fit, self.projections = _hash_projections(packed), list(projections)
            self._write_file(self.paths.projections_path(self._fit), packed)
        name = f"{self._prefixes[len(self.segments)]}-{self._fit}"
        try:  # there may be one of a document with the same beginning and other states
            segment = self._open_checked_segment(name, count)
        except LibraryError:
            path = self.paths.segment_path(name)
            rows = (layer.tail.first_rows(count) for layer in self.layers)
            with disk.converting_write_errors(self.paths.root):
                write_segment(path, self.key, self.layout, count, rows)
            self.wrote, segment = True, Segment(path, self.layout, count, self.key)
        for i, layer in enumerate(self.layers):
            layer.replace_first_tail_tokens(SegmentLayer(segment, i, layer.tail.device))
        self.segments.append(name)
        self.done += count

    def _write_file(self, path: Path, payload: bytes) -> str:
        with disk.converting_write_errors(self.paths.root):
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
        """Writes the last segment, the small files and the manifest, and returns the new entry.
        Raises ValueError: tokens or states are missing. DiskError: the disk is full.

        Args:
            text: the whole text. offsets: the character offsets of all tokens (n, 2).
            marks, provenance: JSON data. head: number of prompt tokens before the document.
            projections: see `flush`. states: the recurrent states after the last token."""
        self.flush(projections)
        paths, key, rest = self.paths, self.key, len(self.ids) - self.done
        lengths = {len(self.ids), len(offsets), *map(len, self.layers)}
        if len(lengths) > 1 or self._complete_count() != rest or len(states) != self.layout.states:
            raise ValueError(f"all {len(self.ids)} tokens must have keys, values and offsets")
        if rest:
            self._write_segment(rest, projections)
        self.flush(states=states)
        payloads = {"text": text_bytes(text), "tokens": pack_tokens(self.ids, offsets)}
        digests = {
            kind: self._write_file(paths.document_path(key, kind), payload)
            for kind, payload in payloads.items()
        }
        entry = Entry(
            key=key, identity=self.identity, layout=self.layout, tokens=len(self.ids), head=head,
            segments=tuple(self.segments), fit=self._fit, digests=digests,
            text_sha256=text_digest(text), characters=len(text), created=round(time.time(), 3),
            marks=tuple(marks), provenance=provenance or {},
        )  # fmt: skip
        rows = sum(disk.file_size(paths.segment_path(name)) for name in self.segments)
        entry.sizes.update(segments=rows, fit=disk.file_size(paths.projections_path(self._fit)))
        entry.sizes.update(
            (kind, disk.file_size(paths.document_path(key, kind))) for kind in entry.file_kinds
        )
        with disk.converting_write_errors(paths.root), paths.hold_lock("library"):
            manifest.write_manifest(paths, entry)
            paths.claim_path(key).unlink()
        manifest.mark_document_used(paths, key)
        self.is_finished = True
        return manifest.read_manifest(paths, key)


def needed_paths(paths: LibraryPaths, entry: Entry) -> list[Path]:
    """Returns the paths of all files that a document needs, except its manifest."""
    fit = [] if entry.fit == NO_FIT else [paths.projections_path(entry.fit)]
    files = [paths.document_path(entry.key, kind) for kind in entry.file_kinds]
    return [*map(paths.segment_path, entry.segments), *fit, *files]


def check_file(file: Path, path: Path, entry: Entry) -> None:
    """Checks every byte of a document's file, which is stored at `path` or will be moved there.
    Raises LibraryError: the file is missing, damaged, or belongs to another document."""
    key, kind = entry.key, path.suffix[1:]
    if kind == "seg":
        tokens = entry.segment_tokens(entry.segments.index(path.stem))
        Segment(file, entry.layout, tokens, key, path.stem).check_all_bytes()
        return
    data = disk.read_bytes(file, key)
    payload = disk.unpack_file(data, kind, path, key, entry.digests.get(kind))
    try:
        belongs = len(data) == entry.sizes[kind] and _matches_manifest(entry, kind, payload, path)
    except _UNPACKING as error:
        raise disk.damage_error(path, "its contents are not what esa writes", key) from error
    if not belongs:
        raise disk.damage_error(path, "it belongs to another document", key)


def _matches_manifest(entry: Entry, kind: str, payload: bytes, path: Path) -> bool:
    """Whether the contents of a small file agree with the document's manifest."""
    layout, identity = entry.layout, entry.identity
    if kind == "text":
        text = payload.decode("utf-8", "surrogatepass")
        facts = manifest.document_key(identity, text), text_digest(text), len(text)
        return facts == (entry.key, entry.text_sha256, entry.characters)
    prefixes = [*map(segment_prefix, entry.segments)]
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
    """Returns the entry of a manifest that a stranger may have written. Raises LibraryError: the
    manifest is damaged, has another format, or has contents that esa does not write."""
    path = paths.document_path(key)
    payload = disk.unpack_file(data, "document", path, key)
    try:
        TypeAdapter(Entry).validate_json(payload)
        entry = manifest.decode_manifest(paths, key, data)
        has_all = set(json.loads(payload)) == set(entry.manifest_fields())
        if not has_all or not _is_consistent(paths, entry):
            raise ValueError("its fields or numbers are wrong")
    except _UNPACKING as error:
        raise disk.damage_error(path, "its contents are not what esa writes", key) from error
    return entry


def _is_consistent(paths: LibraryPaths, entry: Entry) -> bool:
    """Whether the numbers and names in a stranger's manifest agree with each other."""
    layout, sizes, known = entry.layout, entry.sizes, entry.provenance
    counts = [entry.head, entry.characters, *sizes.values(), *(mark[0] for mark in entry.marks)]
    return (
        all(type(known[name]) is kind for name, kind in _PROVENANCE.items())
        and min(counts) >= 0
        and 0 < entry.tokens >= entry.head
        and 0 <= entry.created < 1 << 40
        and len(entry.segments) == -(-entry.tokens // layout.segment)
        and layout.nbytes(entry.tokens) == sizes["segments"]
        and set(sizes) == {"segments", "fit", *entry.file_kinds}
        and set(entry.digests) == {"text", "tokens"}
        and all(name.partition("-")[2] == entry.fit for name in entry.segments)
        and all(map(paths.is_finished_file, needed_paths(paths, entry)))
    )

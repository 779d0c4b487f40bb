"""Reads the KV cache of a stored document from its segments, and writes it during a prefill.

The states of recurrent layers after a segment are written with the segment. For a document with a
token index and no KV cache, `DocumentWriter` and `StoredDocument` are enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.compression import Linear
from esa_cli.errors import LibraryError
from esa_cli.storage.library import disk, document_files, packed_files
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import Entry, Layout, Segment, SegmentLayer
from esa_cli.storage.library.library import DocumentWriter, StoredDocument
from esa_cli.storage.library.packed_files import Projections, State, StoredStates
from esa_cli.storage.memory_store import (
    BLOCK,
    CPU,
    JoinedStore,
    MemoryStore,
    StoreChain,
    StoreSlice,
    make_slice_or_list,
    refuse_change_of_read_only_store,
    split_keys_and_values,
)


class SegmentStore(SegmentLayer):
    """A read-only store of one layer's keys and values in a segment file, read as tensors."""

    is_on_device = False

    def __init__(self, segment: Segment, layer: int, device: torch.device = CPU) -> None:
        super().__init__(segment, layer)
        self.device, layout = device, self.layout
        self.heads, self.dim, self.shared = layout.heads, layout.dim, layout.shared

    @property
    def nbytes(self) -> int:
        return len(self) * self.segment.layout.token_bytes(self.layer)

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows = document_files.decode_records(self.read_records(start, stop), self.layout)
        return split_keys_and_values(rows.to(self.device), self.heads, self.shared)

    @torch.no_grad()
    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        at, records = at.to(CPU), self._records
        self.check_row_checksums(at.numpy())
        if self.layout.kind == "native":  # as numbers: several times as fast as bytes
            rows = records.view(getattr(torch, self.layout.dtype)).index_select(0, at)
        else:
            rows = document_files.decode_records(records.index_select(0, at), self.layout)
        return split_keys_and_values(rows.to(self.device), self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        records = self.read_records(start, stop)
        for low in range(0, stop - start, most):
            block = records[low : low + most]
            vectors = make_slice_or_list(groups or range(self.heads))
            keys = document_files.decode_records(block, self.layout, vectors).to(self.device)
            yield start + low, keys.view(block.shape[0], -1, self.dim).transpose(0, 1)

    @property
    def reduced_key_count(self) -> int:
        return len(self) if self.segment.layout.reduced[self.layer] else 0

    def reduced_key_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        assert stop <= self.reduced_key_count, "all tokens must have reduced keys"
        layout = self.segment.layout
        dtype: torch.dtype = getattr(torch, layout.reduced_dtype)
        size = len(self) * layout.reduced[self.layer] * dtype.itemsize
        features = self.read_tail_bytes(self.section.reduced, size).view(dtype).view(len(self), -1)
        for low in range(start, stop, most):
            yield low, features[low : min(low + most, stop)].to(self.device)

    append = append_reduced_keys = crop = refuse_change_of_read_only_store


def read_states(paths: LibraryPaths, layout: Layout, key: str, segment: str = "") -> StoredStates:
    """Returns the states of a document's recurrent layers. If `segment` is not empty, the states
    must be those after this segment. Raises LibraryError: the file is missing, damaged, of another
    format, or has the states after another segment."""
    path = paths.get_document_path(key, "states")
    payload = disk.read_checksummed_file(path, "states", key)
    stored = packed_files.unpack_states(payload, path, layout, key)
    if segment not in ("", stored.segment):
        raise disk.make_damage_error(path, "its recurrent states belong to another document", key)
    return stored


def _read_projections(paths: LibraryPaths, name: str, key: str) -> list[Linear | None] | None:
    """Reads the projections `name`, or returns None for `NO_FIT`. Raises LibraryError."""
    if name == document_files.NO_FIT:
        return None
    path = paths.get_projections_path(name)
    packed = disk.read_checksummed_file(path, "fit", key)
    if packed_files.hash_projections(packed) != name:
        raise disk.make_damage_error(path, "its name does not match its projections", key)
    return packed_files.unpack_projections(packed)


class StoredCache:
    """The KV cache of an opened document, with its projections and the states of the model's
    recurrent layers after the last token. Raises LibraryError: a file of the document is missing,
    damaged or of another format."""

    def __init__(self, document: StoredDocument) -> None:
        paths, entry = document.paths, document.entry
        self._segments, self._layer_count = document.segments, entry.layout.layers
        self.projections = _read_projections(paths, entry.fit, entry.key)
        self.states: list[State] = []
        if entry.layout.states:
            last = document_files.extract_segment_prefix(entry.segments[-1])
            self.states = read_states(paths, entry.layout, entry.key, last).states

    def open_layer_stores(self, device: torch.device = CPU) -> list[StoreChain]:
        """Returns, for each layer, a read-only store of keys and values as tensors on `device`."""
        stores = list[StoreChain]()
        for layer in range(self._layer_count):
            parts = [SegmentStore(segment, layer, device) for segment in self._segments]
            slices = [StoreSlice(part, 0, len(part)) for part in parts]
            stores.append(StoreChain(slices, parts[0]))
        return stores


class CacheWriter(DocumentWriter):
    """Writes the KV cache of a document during its prefill.

    Attributes:
        layers: a store for each layer, to which the prefill appends new keys and values.
        projections: the projections of the reduced keys on disk; None if no key is on disk.
        states: the states of the recurrent layers after the tokens on disk; empty at the start."""

    def __init__(
        self, paths: LibraryPaths, key: str, identity: str, ids: Sequence[int], layout: Layout,
        prefixes: Sequence[str], device: torch.device = CPU,
    ) -> None:  # fmt: skip
        self.projections: list[Any] | None = None
        self.states: list[State] = [{} for _ in range(layout.states)]
        super().__init__(paths, key, identity, ids, layout, prefixes)
        self.layers = list[JoinedStore]()
        dtype: torch.dtype = getattr(torch, layout.dtype)
        for i in range(layout.layers):
            shape = layout.select_layer(i)
            tail = MemoryStore(shape.heads, shape.dim, dtype, device, shape.shared)
            tail.expect(layout.segment)
            parts = [SegmentStore(segment, i, device) for segment in self.segments]
            self.layers.append(JoinedStore([StoreSlice(one, 0, len(one)) for one in parts], tail))

    def _find_segments_on_disk(self) -> list[Segment]:
        """Returns the document's first segments that are complete on disk, and loads their
        projections and, if the model has recurrent layers, the states after those segments."""
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
            fit = path.stem.partition("-")[2]
            with suppress(LibraryError):
                projections = _read_projections(self.paths, fit, self.key)
                segments = self._open_segments(prefixes, fit)
                if len(segments) >= min_count and len(segments) > len(best):
                    best, self.states, self._fit = segments, states, fit
                    self.projections = projections
        return best

    def flush_segments(
        self, projections: Projections | None = None, states: Sequence[State] = ()
    ) -> None:
        """Writes every segment that is complete in all layers, and frees the segment's memory.
        Callers flush after each piece of prefill, so that a killed ingest loses at most one
        segment. Raises LibraryError, DiskError: the disk is full; complete segments stay on disk.

        Args:
            projections: the projections of the reduced keys, needed with the first segment.
            states: the recurrent states after the last token in memory, stored if a segment ends.
        """
        while self._count_complete_tokens() >= self.layout.segment:
            self._write_first_tokens_in_memory(self.layout.segment, projections)
        if states and self.segments and not any(len(layer.tail) for layer in self.layers):
            # After the segment, so that stored states always have all segments before them.
            last = self._prefixes[len(self.segments) - 1]
            path = self.paths.get_document_path(self.key, "states")
            self._write_file(path, packed_files.pack_states(last, states))

    def _count_complete_tokens(self) -> int:
        """Counts the tokens in memory whose keys, values and reduced keys all layers have."""
        pairs = zip(self.layers, self.layout.reduced, strict=True)
        return min(one.tail.reduced_key_count if width else len(one.tail) for one, width in pairs)

    def _write_first_tokens_in_memory(self, count: int, projections: Projections | None) -> None:
        """Writes the first `count` tokens in memory as the next segment."""
        if not self.segments and projections is not None:
            packed = packed_files.pack_projections(projections)
            self._fit, self.projections = packed_files.hash_projections(packed), list(projections)
            self._write_file(self.paths.get_projections_path(self._fit), packed)
        self.write_next_segment(layer.tail.read_first_tokens(count) for layer in self.layers)
        for i, layer in enumerate(self.layers):
            store = SegmentStore(self.segments[-1], i, layer.tail.device)
            layer.replace_first_tail_tokens(store)

    def finish_document(
        self, *, projections: Projections | None = None, states: Sequence[State] = (), **facts: Any
    ) -> Entry:
        """Writes the last segment of the KV cache and the document's other files.

        Args:
            projections: the projections of the reduced keys, needed for a first segment.
            states: the recurrent states after the last token.
            facts: the arguments of `DocumentWriter.finish_document`."""
        self.flush_segments(projections)
        left = len(self.ids) - self.stored_token_count
        has_all = all(len(layer) == len(self.ids) for layer in self.layers)
        has_all = has_all and self._count_complete_tokens() == left
        if not has_all or len(states) != self.layout.states:
            raise self._make_missing_tokens_error()
        if left:
            self._write_first_tokens_in_memory(left, projections)
        self.flush_segments(states=states)
        return super().finish_document(**facts)

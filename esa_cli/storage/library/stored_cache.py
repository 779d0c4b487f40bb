"""Reads the KV cache of a stored document from disk, and writes a KV cache during a prefill.

After each segment of the KV cache, the states of the model's recurrent layers are written, too."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.compression import Linear
from esa_cli.errors import LibraryError
from esa_cli.storage import memory_store
from esa_cli.storage.library import disk, document_files, packed_files
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import KVSegmentFile, Layout, LibraryEntry
from esa_cli.storage.library.library import DocumentWriter, StoredDocument
from esa_cli.storage.library.packed_files import Projections, State
from esa_cli.storage.memory_store import BLOCK, CPU, Blocks, KVStoreChain, KVStoreSlice


class SegmentKVStore(document_files.KVSegmentLayer):
    """A read-only KV cache of one layer, for the tokens of one memory-mapped segment file."""

    is_on_device = False

    def __init__(self, segment: KVSegmentFile, layer: int, device: torch.device = CPU) -> None:
        super().__init__(segment, layer)
        self.device, layout = device, self.layout
        self.heads, self.dim, self.shared = layout.heads, layout.dim, layout.shared

    @property
    def nbytes(self) -> int:
        return len(self) * self.segment.layout.count_token_bytes(self.layer)

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        rows = document_files.decode_records(self.read_encoded_tokens(start, stop), self.layout)
        return memory_store.split_keys_and_values(rows.to(self.device), self.heads, self.shared)

    @torch.no_grad()
    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        at, records = at.to(CPU), self._records
        self.verify_token_checksums(at.numpy())
        if self.layout.kind == "native":  # as numbers: several times as fast as bytes
            rows = records.view(getattr(torch, self.layout.dtype)).index_select(0, at)
        else:
            rows = document_files.decode_records(records.index_select(0, at), self.layout)
        return memory_store.split_keys_and_values(rows.to(self.device), self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, max_tokens: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Blocks:
        records = self.read_encoded_tokens(start, stop)
        for low in range(0, stop - start, max_tokens):
            block = records[low : low + max_tokens]
            vectors = memory_store.make_slice_or_list(groups or range(self.heads))
            keys = document_files.decode_records(block, self.layout, vectors).to(self.device)
            yield start + low, keys.view(block.shape[0], -1, self.dim).transpose(0, 1)

    @property
    def reduced_key_count(self) -> int:
        return len(self) if self.segment.layout.reduced[self.layer] else 0

    def get_reduced_blocks(self, start: int, stop: int, max_tokens: int = BLOCK) -> Blocks:
        assert stop <= self.reduced_key_count, "all tokens must have reduced keys"
        layout = self.segment.layout
        dtype: torch.dtype = getattr(torch, layout.reduced_dtype)
        size = len(self) * layout.reduced[self.layer] * dtype.itemsize
        feature_bytes = self.read_reduced_keys_or_checksums(self.section.reduced, size)
        features = feature_bytes.view(dtype).view(len(self), -1)
        for low in range(start, stop, max_tokens):
            yield low, features[low : min(low + max_tokens, stop)].to(self.device)

    append = append_reduced_keys = crop = memory_store.refuse_change_of_read_only_store


def read_recurrent_states(paths: LibraryPaths, layers: int, key: str) -> tuple[str, list[State]]:
    """Reads the hash of a document's segment, and the states of the model's recurrent layers after
    the segment. Raises LibraryError: the file is missing or damaged."""
    path = paths.get_document_path(key, "states")
    payload = disk.read_checksummed_file(path, key)
    try:
        return packed_files.unpack_recurrent_states(payload, layers)
    except packed_files.UNPACKING as error:
        raise disk.make_damage_error(path, "its recurrent states are invalid", key) from error


def _read_projections_file(
    paths: LibraryPaths, projections_hash: str, key: str
) -> list[Linear | None] | None:
    """Reads a document's fitted projections, or returns None for the hash `NO_FIT`."""
    if projections_hash == document_files.NO_FIT:
        return None
    path = paths.get_projections_path(projections_hash)
    packed = disk.read_checksummed_file(path, key)
    if packed_files.hash_projections(packed) != projections_hash:
        raise disk.make_damage_error(path, "its name does not match its projections", key)
    return packed_files.unpack_projections(packed)


def _list_layer_slices(
    segments: Sequence[KVSegmentFile], layer: int, device: torch.device
) -> list[KVStoreSlice]:
    stores = (SegmentKVStore(segment, layer, device) for segment in segments)
    return [KVStoreSlice(store, 0, len(store)) for store in stores]


class StoredKVCache:
    """The KV cache of a document opened from the library: for each of the `layers` a read-only
    store that loads keys and values to `device`, the fitted projections, and the states of the
    model's recurrent layers after the document's last token. Raises LibraryError: a file of the
    document is missing, damaged or of another format."""

    def __init__(self, document: StoredDocument, device: torch.device = CPU) -> None:
        paths, entry = document.paths, document.entry
        parts = (
            _list_layer_slices(document.segments, i, device) for i in range(entry.layout.layers)
        )
        self.layers = [KVStoreChain(slices, slices[0].store) for slices in parts]
        self.projections = _read_projections_file(paths, entry.fit, entry.key)
        self.states: list[State] = []
        if entry.layout.states:
            last, self.states = read_recurrent_states(paths, entry.layout.states, entry.key)
            if last != document_files.extract_segment_hash(entry.segments[-1]):
                path = paths.get_document_path(entry.key, "states")
                reason = "its recurrent states belong to another document"
                raise disk.make_damage_error(path, reason, entry.key)


class KVCacheWriter(DocumentWriter):
    """Writes the KV cache of a document during its prefill, which appends new keys and values to
    the stores in `layers`. `projections` and `states` are those of the keys on disk."""

    def __init__(
        self, paths: LibraryPaths, key: str, identity: str, ids: Sequence[int], layout: Layout,
        device: torch.device = CPU,
    ) -> None:  # fmt: skip
        self.projections: list[Any] | None = None
        self.states: list[State] = [{} for _ in range(layout.states)]
        super().__init__(paths, key, identity, ids, layout)
        self.layers = list[memory_store.AppendableKVStoreChain]()
        dtype: torch.dtype = getattr(torch, layout.dtype)
        for i in range(layout.layers):
            shape = layout.make_layer_layout(i)
            sizes = shape.heads, shape.dim, dtype, device, shape.shared
            tail = memory_store.MemoryKVStore(*sizes, expected=layout.segment)
            slices = _list_layer_slices(self.segments, i, device)
            self.layers.append(memory_store.AppendableKVStoreChain(slices, tail))

    def _open_segments_on_disk(self) -> list[KVSegmentFile]:
        """Opens the complete segments, and loads the projections and the recurrent states."""
        layout, states, best = self.layout, self.states, list[KVSegmentFile]()
        prefixes, min_count = self._prefixes[: len(self.ids) // layout.segment], 1
        if layout.states:
            try:
                last, states = read_recurrent_states(self.paths, layout.states, self.key)
                prefixes = self._prefixes[: self._prefixes.index(last) + 1]
            except (LibraryError, ValueError):
                return []
            min_count = len(prefixes)
        for path in sorted(self.paths.segments.glob(f"{self._prefixes[0]}-*.seg")):
            fit = path.stem.partition("-")[2]
            with suppress(LibraryError):
                projections = _read_projections_file(self.paths, fit, self.key)
                segments = self._open_usable_segments(prefixes, fit)
                if len(segments) >= min_count and len(segments) > len(best):
                    best, self.states, self._fit = segments, states, fit
                    self.projections = projections
        return best

    def write_complete_segments(
        self, projections: Projections | None = None, states: Sequence[State] = ()
    ) -> None:
        """Writes every segment of the KV cache that is complete in all layers, and frees the
        segment's memory, so that a killed process loses at most one segment. The first segment
        needs `projections`; `states` are stored if a segment ends at the last token. Raises
        LibraryError, DiskError: the disk is full; segments that were written stay on disk."""
        while self._count_complete_tokens() >= self.layout.segment:
            self._write_segment_from_memory(self.layout.segment, projections)
        if states and self.segments and not any(len(layer.tail) for layer in self.layers):
            # After the segment, so that stored states always have all segments before them.
            last = self._prefixes[len(self.segments) - 1]
            path = self.paths.get_document_path(self.key, "states")
            self._write_file(path, packed_files.pack_recurrent_states(last, states))

    def _count_complete_tokens(self) -> int:
        """Counts the tokens in memory whose keys, values and reduced keys are complete."""
        pairs = zip(self.layers, self.layout.reduced, strict=True)
        return min(one.tail.reduced_key_count if width else len(one.tail) for one, width in pairs)

    def _write_segment_from_memory(self, token_count: int, projections: Projections | None) -> None:
        if not self.segments and projections is not None:
            packed = packed_files.pack_projections(projections)
            self._fit, self.projections = packed_files.hash_projections(packed), list(projections)
            self._write_file(self.paths.get_projections_path(self._fit), packed)
        self.write_next_segment(layer.tail.read_first_tokens(token_count) for layer in self.layers)
        for i, layer in enumerate(self.layers):
            store = SegmentKVStore(self.segments[-1], i, layer.tail.device)
            layer.replace_first_appended_tokens(store)

    def finish_document(
        self, *, projections: Projections | None = None, states: Sequence[State] = (), **fields: Any
    ) -> LibraryEntry:
        """Writes the last segment of the KV cache, with `projections` and `states` as in
        `write_complete_segments`, and other files as in `DocumentWriter.finish_document`."""
        self.write_complete_segments(projections)
        left = len(self.ids) - self.stored_token_count
        has_all = all(len(layer) == len(self.ids) for layer in self.layers)
        has_all = has_all and self._count_complete_tokens() == left
        if not has_all or len(states) != self.layout.states:
            raise self._make_missing_tokens_error()
        if left:
            self._write_segment_from_memory(left, projections)
        self.write_complete_segments(states=states)
        return super().finish_document(**fields)

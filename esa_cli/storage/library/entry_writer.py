"""Writes one document: segments as they fill, with the states after the last one, then its own
files, and its manifest last; or continues what an interrupted ingest left.

Every file is written atomically, so a kill leaves nothing, complete segments to resume from, or a
document.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import EsaError, LibraryError, ResourceError
from esa_cli.storage.joined_store import JoinedStore, StoreSlice
from esa_cli.storage.library import checksummed_file, manifest
from esa_cli.storage.library.checksummed_file import write_errors
from esa_cli.storage.library.document_files import (
    NO_FIT,
    Projections,
    State,
    fit_name,
    pack_states,
    pack_tokens,
    read_fit,
    read_states,
    serialise_projections,
)
from esa_cli.storage.library.library_paths import LibraryPaths, size_of
from esa_cli.storage.library.maintenance import end_reservation, reserve
from esa_cli.storage.library.manifest import Entry, Layout
from esa_cli.storage.library.segment import Segment, SegmentLayer, write_segment
from esa_cli.storage.memory_store import CPU, MemoryStore
from esa_cli.system.text import text_bytes, text_digest


class Writer:
    """A running ingest; `Library.write` makes it while it holds the document's lock.

    Attributes:
        done: tokens on disk, of this ingest or of another document with the same beginning.
        layers: one store for each layer; prefill appends from token `done` on.
        projections: those of the reduced keys on disk; None while there are none.
        states: of the layers that keep one, after token `done`; empty before the first.
    """

    def __init__(
        self,
        paths: LibraryPaths,
        key: str,
        identity: str,
        ids: Sequence[int],
        layout: Layout,
        devices: Sequence[torch.device] = (),
    ) -> None:
        self.paths, self.key, self.identity = paths, key, identity
        self.ids, self.layout = ids, layout
        self._prefixes = manifest.segment_names(identity, ids, layout)
        self._new, self._finished, self._full = list[Path](), False, False
        with write_errors(paths.root), paths.locked("library"):
            self._continued = paths.reservation(key).exists()
            reserve(paths, key, self._prefixes)
        self._names, self._fit = list[str](), NO_FIT
        self.projections: list[Any] | None = None
        self.states: list[State] = [{} for _ in range(layout.states)]
        segments = self._resumed()
        self.done = sum(segment.tokens for segment in segments)
        self.layers = list[JoinedStore]()
        dtype: torch.dtype = getattr(torch, layout.dtype)
        for i, device in enumerate(devices or [CPU] * layout.layers):
            own = layout.of(i)
            tail = MemoryStore(own.heads, own.dim, dtype, torch.device(device), own.shared)
            tail.expect(layout.segment)
            parts = [SegmentLayer(one, i, tail.device) for one in segments]
            self.layers.append(JoinedStore([StoreSlice(one, 0, len(one)) for one in parts], tail))

    def _resumed(self) -> list[Segment]:
        """The longest run of whole first segments on disk, every byte of it checked. If layers of
        the model keep states, all segments up to the one after which these were stored, or none."""
        layout, best, states = self.layout, list[Segment](), self.states
        whole, fewest = self._prefixes[: len(self.ids) // layout.segment], 1
        if layout.states:
            try:
                stored = read_states(self.paths, layout, self.key)
                whole = self._prefixes[: self._prefixes.index(stored.segment) + 1]
            except (LibraryError, ValueError):
                return []
            states, fewest = stored.states, len(whole)
        first = self.paths.segments.glob(f"{self._prefixes[0]}-*.seg")
        for fit in sorted(path.stem.partition("-")[2] for path in first):
            segments = list[Segment]()
            with suppress(LibraryError):
                projections = read_fit(self.paths, fit, self.key)
                for name in whole:
                    size = min(layout.segment, len(self.ids) - len(segments) * layout.segment)
                    path = self.paths.segment(f"{name}-{fit}")
                    segment = Segment(path, layout, size, self.key)
                    segment.check()
                    segments.append(segment)
            if len(segments) >= fewest and len(segments) > len(best):
                best, self.states = segments, states
                self._fit, self.projections = fit, projections
                self._names = [one.path.stem for one in segments]
        return best

    def flush(self, projections: Projections | None = None, states: Sequence[State] = ()) -> None:
        """Writes every segment that is complete in all layers, and frees its rows in memory.

        Called after each piece of prefill, it bounds memory, and a kill loses one segment.

        Args:
            projections: those of the reduced keys; needed with the first segment.
            states: of the layers that keep one, after the last token in memory; they are stored if
                a segment ends with it.

        Raises:
            ResourceError: the disk is full; what this ingest wrote has been removed.
        """
        while self._complete() >= self.layout.segment:
            self._write_rows(self.layout.segment, projections)
        if states and self._names and not any(len(layer.tail) for layer in self.layers):
            # After the segment, so that stored states always have all segments before them.
            packed = pack_states(self._prefixes[len(self._names) - 1], states)
            self._write(self.paths.document(self.key, "states"), packed)

    def _complete(self) -> int:
        """Tokens in memory that are complete in all layers."""
        pairs = zip(self.layers, self.layout.reduced, strict=True)
        return min(layer.tail.reduced if width else len(layer.tail) for layer, width in pairs)

    def _write_rows(self, count: int, projections: Projections | None) -> None:
        if not self._names and projections is not None:
            packed = serialise_projections(projections)
            self._fit, self.projections = fit_name(packed), list(projections)
            self._write(self.paths.fit(self._fit), packed)
        path = self.paths.segment(f"{self._prefixes[len(self._names)]}-{self._fit}")
        # There may be one, and mapped, of a document with the same beginning and other states.
        try:
            segment = Segment(path, self.layout, count, self.key)
            segment.check()
        except LibraryError:
            with self._writing(path):
                rows = (layer.tail.first(count) for layer in self.layers)
                write_segment(path, self.key, self.layout, count, rows)
            segment = Segment(path, self.layout, count, self.key)
        for i, layer in enumerate(self.layers):
            layer.replace_first(SegmentLayer(segment, i, layer.tail.device))
        self._names.append(path.stem)
        self.done += count

    def _write(self, path: Path, payload: bytes) -> str:
        """Writes a small file, and returns its digest."""
        with self._writing(path):
            return checksummed_file.write(path, path.suffix[1:], payload, self.key)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        self._new.append(path)
        try:
            with write_errors(self.paths.root):
                yield
        except ResourceError:
            self._full = True
            raise

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
        """Writes the rest and the manifest, with which the document exists.

        Args:
            text: the whole text. offsets: (n, 2) character offsets of all tokens.
            marks, provenance: JSON data. head: tokens of the prompt before the document.
            projections: as for `flush`. states: after the last token.

        Raises:
            ValueError: tokens or states are missing. ResourceError: as `flush`.
        """
        self.flush(projections)
        rest = len(self.ids) - self.done
        lengths = {len(self.ids), len(offsets), *map(len, self.layers)}
        if len(lengths) > 1 or self._complete() != rest or len(states) != self.layout.states:
            raise ValueError(f"all {len(self.ids)} tokens must have rows, reduced keys and offsets")
        if rest:
            self._write_rows(rest, projections)
        self.flush(states=states)
        payloads = {"text": text_bytes(text), "tokens": pack_tokens(self.ids, offsets)}
        digests = {
            kind: self._write(self.paths.document(self.key, kind), payload)
            for kind, payload in payloads.items()
        }
        entry = Entry(
            key=self.key, identity=self.identity, layout=self.layout,
            tokens=len(self.ids), segments=tuple(self._names), fit=self._fit,
            sizes=self._sizes(), digests=digests,
            text_sha256=text_digest(text), characters=len(text), created=round(time.time(), 3),
            marks=tuple(marks), head=head, provenance=provenance or {},
        )  # fmt: skip
        with self._writing(self.paths.document(self.key)), self.paths.locked("library"):
            manifest.write(self.paths, entry)
            self.paths.reservation(self.key).unlink()
        manifest.touch(self.paths, self.key)
        self._finished = True
        return manifest.read(self.paths, self.key)

    def _sizes(self) -> dict[str, int]:
        kinds = Entry(self.key, layout=self.layout).kinds
        own = {kind: size_of(self.paths.document(self.key, kind)) for kind in kinds}
        rows = sum(size_of(self.paths.segment(name)) for name in self._names)
        return {"segments": rows, "fit": size_of(self.paths.fit(self._fit)), **own}

    def end(self) -> None:
        """Ends the ingest. An unfinished one keeps its segments for the next to resume from; if the
        disk is full, it removes those it has written that nobody else needs. One that was refused
        before it wrote anything leaves no reservation."""
        resumable = self._names and not self._full and (self._new or self._continued)
        if not self._finished and not resumable:
            with suppress(OSError, EsaError):
                end_reservation(self.paths, self.key, self._new)

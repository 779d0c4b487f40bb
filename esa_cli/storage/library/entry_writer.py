"""Writes one document: segments as they fill, with the states after the last one, then its own
files, and its manifest last; or goes on with what an interrupted ingest left.

Every file is written atomically, so a kill leaves nothing, complete segments to resume from, or a
document.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    pack_fit,
    pack_states,
    pack_tokens,
    read_fit,
    read_states,
)
from esa_cli.storage.library.library_paths import LibraryPaths, size_of
from esa_cli.storage.library.maintenance import end_reservation, reserve
from esa_cli.storage.library.manifest import Entry, Layout
from esa_cli.storage.library.segment import Segment, SegmentLayer, write_segment
from esa_cli.storage.memory_store import CPU, MemoryStore
from esa_cli.system.text import text_bytes, text_digest


@dataclass(frozen=True)
class ResumedSegments:
    """First segments of a document, the fit of their reduced keys, and the states after them."""

    segments: list[Segment] = field(default_factory=list)
    fit: str = NO_FIT
    projections: list[Any] | None = None
    states: list[State] = field(default_factory=list)


def resumed_segments(
    paths: LibraryPaths, key: str, prefixes: Sequence[str], layout: Layout, tokens: int
) -> ResumedSegments:
    """The longest run of whole first segments on disk, every byte of it checked. Where layers of
    the model keep states, all segments up to the one after which they were stored, or none.

    Args:
        key: the document's. prefixes: names of all its segments, without that of the fit.
        tokens: of the whole document.
    """
    best, states = ResumedSegments(), list[State]()
    whole, fewest = prefixes[: tokens // layout.segment], 1
    if layout.states:
        try:
            stored = read_states(paths, layout, key)
            whole = prefixes[: prefixes.index(stored.segment) + 1]
        except (LibraryError, ValueError):
            return best
        states, fewest = stored.states, len(whole)
    first = paths.segments.glob(f"{prefixes[0]}-*.seg")
    for fit in sorted(path.stem.partition("-")[2] for path in first):
        segments = list[Segment]()
        with contextlib.suppress(LibraryError):
            projections = read_fit(paths, fit, key)
            for name in whole:
                size = min(layout.segment, tokens - len(segments) * layout.segment)
                segment = Segment(paths.segment(f"{name}-{fit}"), layout, size, key)
                segment.check()
                segments.append(segment)
        if len(segments) >= fewest and len(segments) > len(best.segments):
            best = ResumedSegments(segments, fit, projections, states)
    return best


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
        self.entry: Entry | None = None
        """The finished document."""
        self._prefixes = manifest.segment_names(identity, ids, layout)
        self._new, self._full = list[Path](), False
        with write_errors(paths.root), paths.locked("library"):
            self._continued = paths.reservation(key).exists()
            reserve(paths, key, self._prefixes)
        resumed = resumed_segments(paths, key, self._prefixes, layout, len(ids))
        self._names, self._fit = [one.path.stem for one in resumed.segments], resumed.fit
        self.projections: list[Any] | None = resumed.projections
        self.states: list[State] = resumed.states or [{} for _ in range(layout.states)]
        self.done = sum(segment.tokens for segment in resumed.segments)
        self.layers = list[JoinedStore]()
        dtype: torch.dtype = getattr(torch, layout.dtype)
        places = zip(range(layout.layers), devices or [CPU] * layout.layers, strict=True)
        for i, device in places:
            own = layout.of(i)
            tail = MemoryStore(own.heads, own.dim, dtype, torch.device(device), own.shared)
            tail.expect(layout.segment)
            parts = [SegmentLayer(one, i, tail.device) for one in resumed.segments]
            self.layers.append(JoinedStore([StoreSlice(one, 0, len(one)) for one in parts], tail))

    def flush(self, projections: Projections | None = None, states: Sequence[State] = ()) -> None:
        """Writes every segment that is complete in all layers, and frees its rows in memory.

        Called after each piece of prefill, it bounds memory, and a kill loses one segment.

        Args:
            projections: those of the reduced keys; needed with the first segment.
            states: of the layers that keep one, after the last token in memory; they are stored
                where a segment ends with it.

        Raises:
            ResourceError: the disk is full; what this ingest wrote has been removed.
        """
        while self._complete() >= self.layout.segment:
            self._write(self.layout.segment, projections)
        if states and self._names and not any(len(layer.tail) for layer in self.layers):
            self._write_states(states)

    def _complete(self) -> int:
        """Tokens in memory that are complete in all layers."""
        pairs = zip(self.layers, self.layout.reduced, strict=True)
        return min(layer.tail.reduced if width else len(layer.tail) for layer, width in pairs)

    def _write(self, count: int, projections: Projections | None) -> None:
        if len(self._names) == len(self._prefixes):
            raise ValueError(f"tokens must be the document's {len(self.ids)}, got more tokens")
        with self._changing():
            if not self._names:
                self._write_fit(projections)
            path = self.paths.segment(f"{self._prefixes[len(self._names)]}-{self._fit}")
            # There may be one, and mapped, of a document with the same beginning and other states.
            try:
                segment = Segment(path, self.layout, count, self.key)
                segment.check()
            except LibraryError:
                self._new.append(path)
                rows = (layer.tail.first(count) for layer in self.layers)
                write_segment(path, self.key, self.layout, count, rows)
                segment = Segment(path, self.layout, count, self.key)
        for i, layer in enumerate(self.layers):
            layer.replace_first(SegmentLayer(segment, i, layer.tail.device))
        self._names.append(path.stem)
        self.done += count

    def _write_states(self, states: Sequence[State]) -> None:
        """After the segment, so that the states there always have all segments before."""
        self._write_own("states", pack_states(self._prefixes[len(self._names) - 1], states))

    def _write_own(self, kind: str, payload: bytes) -> str:
        """Writes a file of the document alone, and returns its digest."""
        path = self.paths.document(self.key, kind)
        with self._changing():
            self._new.append(path)
            return checksummed_file.write(path, kind, payload, self.key)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with write_errors(self.paths.root):
                yield
        except ResourceError:
            self._full = True
            raise

    def _write_fit(self, projections: Projections | None) -> None:
        if projections is None:
            if any(self.layout.reduced):
                raise ValueError("projections must be given with reduced keys, got None")
            return
        packed = pack_fit(projections)
        self._fit, self.projections = fit_name(packed), list(projections)
        path = self.paths.fit(self._fit)
        self._new.append(path)
        checksummed_file.write(path, "fit", packed, self.key)

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
        if len(states) != self.layout.states:
            raise ValueError(f"states must be {self.layout.states}, got {len(states)}")
        self.flush(projections)
        rest = len(self.ids) - self.done
        if {len(layer) for layer in self.layers} != {len(self.ids)} or self._complete() != rest:
            raise ValueError(f"all layers must have all {len(self.ids)} tokens and reduced keys")
        if rest:
            self._write(rest, projections)
        if states:
            self._write_states(states)
        payloads = {"text": text_bytes(text), "tokens": pack_tokens(self.ids, offsets)}
        digests = {kind: self._write_own(kind, one) for kind, one in payloads.items()}
        entry = Entry(
            key=self.key, identity=self.identity, layout=self.layout,
            tokens=len(self.ids), segments=tuple(self._names), fit=self._fit,
            sizes=self._sizes(), digests=digests,
            text_sha256=text_digest(text), characters=len(text), created=round(time.time(), 3),
            marks=tuple(marks), head=head, provenance=provenance or {},
        )  # fmt: skip
        with self._changing(), self.paths.locked("library"):
            manifest.write(self.paths, entry)
            self.paths.reservation(self.key).unlink()
        manifest.touch(self.paths, self.key)
        self.entry = manifest.read(self.paths, self.key)
        return self.entry

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
        if self.entry is not None or resumable:
            return
        with contextlib.suppress(OSError, EsaError):
            end_reservation(self.paths, self.key, self._new)

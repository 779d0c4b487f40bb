"""Writing one document: segments as they fill, then what belongs to it, and its manifest last.

Every file appears whole or not at all, so a kill leaves nothing, complete segments to go on from,
or a document. Knows nothing of models: rows come through `JoinedStore.append`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import EsaError, LibraryError, ResourceError
from esa_cli.storage.joined_store import JoinedStore, StoreSlice
from esa_cli.storage.library import checksummed_file as sealed
from esa_cli.storage.library import content_names as chain
from esa_cli.storage.library import manifest as entries
from esa_cli.storage.library.checksummed_file import on_disk
from esa_cli.storage.library.disk_store import disk_stores
from esa_cli.storage.library.document_files import (
    NO_FIT,
    Projections,
    fit_name,
    pack_fit,
    pack_tokens,
    read_fit,
)
from esa_cli.storage.library.library_paths import LibraryPaths, size_of
from esa_cli.storage.library.manifest import Entry
from esa_cli.storage.library.reservations import needed_files, reserve
from esa_cli.storage.library.row_layout import Layout
from esa_cli.storage.library.segment import Segment, write_segment
from esa_cli.storage.memory_store import MemoryStore
from esa_cli.system.digest import text_bytes, text_digest


class Writer:
    """An ingest that is going on; `Library.write` makes it, with the document's lock held.

    Attributes:
        done: tokens that are on disk, of this ingest or of another with the same beginning.
        layers: one memory a layer; reading appends from token `done` on.
        projections: what the reduced keys on disk were made with; None while there are none.
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
        self.ids, self.layout = list(ids), layout
        self.entry: Entry | None = None
        """The document, when it is finished."""
        self._chain = chain.segment_names(identity, ids, layout)
        self._names: list[str] = []
        self._fit, self._new = NO_FIT, list[Path]()
        self._full = False
        self.projections: list[Any] | None = None
        with on_disk(paths.root), paths.locked("library"):
            reserve(paths, key, self._chain)
        found = self._resume()
        self.done = sum(segment.tokens for segment in found)
        self._stored = disk_stores(found, layout, devices)
        self.layers = [
            JoinedStore(
                [StoreSlice(one, 0, len(one))],
                MemoryStore(one.heads, one.dim, one.dtype, one.device),
            )
            for one in self._stored
        ]

    def _resume(self) -> list[Segment]:
        """The longest whole beginning on disk; every byte of it is read and checked first."""
        best: list[Segment] = []
        first = self.paths.segments.glob(f"{self._chain[0]}-*.seg")
        for fit in sorted(path.stem.partition("-")[2] for path in first):
            try:
                projections = read_fit(self.paths, fit, self.key)
            except LibraryError:
                continue
            found = self._run(fit)
            if len(found) > len(best):
                best, self._fit, self.projections = found, fit, projections
        self._names = [segment.path.stem for segment in best]
        return best

    def _run(self, fit: str) -> list[Segment]:
        """Good whole segments from the beginning on; a short last one is soon read again."""
        found: list[Segment] = []
        for name in self._chain[: len(self.ids) // self.layout.segment]:
            path = self.paths.segment(f"{name}-{fit}")
            try:
                segment = Segment(path, self.layout, self.layout.segment, self.key)
                segment.check()
            except LibraryError:
                break
            found.append(segment)
        return found

    def settle(self, projections: Projections | None = None) -> None:
        """Puts every segment that all layers have whole on disk, and maps it in the tail's place.

        Call it whenever tokens were read: memory stays bounded, and a kill costs one segment.

        Args:
            projections: what the reduced keys were made with; needed with the first segment.

        Raises:
            ResourceError: the disk is full; what this ingest wrote has been removed.
        """
        while self._ready() >= self.layout.segment:
            self._write(self.layout.segment, projections)

    def _ready(self) -> int:
        """Tokens that all layers have whole in memory."""
        pairs = zip(self.layers, self.layout.reduced, strict=True)
        return min(layer.tail.reduced if width else len(layer.tail) for layer, width in pairs)

    def _write(self, count: int, projections: Projections | None) -> None:
        if len(self._names) == len(self._chain):
            raise ValueError(f"more tokens were read than the {len(self.ids)} of the document")
        with self._changing():
            if not self._names:
                self._write_fit(projections)
            path = self.paths.segment(f"{self._chain[len(self._names)]}-{self._fit}")
            self._new.append(path)
            rows = (layer.tail.first(count) for layer in self.layers)
            write_segment(path, self.key, self.layout, count, rows)
        segment = Segment(path, self.layout, count, self.key)
        for stored, layer in zip(self._stored, self.layers, strict=True):
            stored.add(segment)
            layer.extend_last_part(count)
        self._names.append(path.stem)
        self.done += count

    @contextmanager
    def _changing(self) -> Iterator[None]:
        try:
            with on_disk(self.paths.root):
                yield
        except ResourceError:
            self._full = True
            raise

    def _write_fit(self, projections: Projections | None) -> None:
        if projections is None:
            if any(self.layout.reduced):
                raise ValueError("reduced keys are stored with the projections that made them")
            return
        packed = pack_fit(projections)
        self._fit, self.projections = fit_name(packed), list(projections)
        path = self.paths.fit(self._fit)
        self._new.append(path)
        sealed.write(path, "fit", packed, self.key)

    def finish(
        self,
        *,
        text: str,
        offsets: Sequence[tuple[int, int]] | Tensor,
        marks: Sequence[Any] = (),
        head: int = 0,
        provenance: dict[str, Any] | None = None,
        projections: Projections | None = None,
    ) -> Entry:
        """Writes what is left, and the manifest: from then on the document is there.

        Args:
            text: the whole text. offsets: (n, 2) character offsets of all tokens.
            marks, provenance: JSON data. head: tokens of the prompt before the document.
            projections: as for `settle`.

        Raises:
            ValueError: not all tokens were read. ResourceError: as `settle`.
        """
        self.settle(projections)
        rest = len(self.ids) - self.done
        if {len(layer) for layer in self.layers} != {len(self.ids)} or self._ready() != rest:
            raise ValueError(f"not all layers have all {len(self.ids)} tokens and reduced keys")
        if rest:
            self._write(rest, projections)
        packed = pack_tokens(self.ids, offsets)
        digests = self._write_small(text=text_bytes(text), tokens=packed)
        made = self._described(text, digests)
        known: dict[str, Any] = {"marks": tuple(marks), "provenance": dict(provenance or {})}
        self.entry = self._commit(replace(made, head=head, **known))
        return self.entry

    def _described(self, text: str, digests: dict[str, str]) -> Entry:
        return Entry(
            key=self.key,
            identity=self.identity,
            layout=self.layout,
            tokens=len(self.ids),
            segments=tuple(self._names),
            fit=self._fit,
            sizes=self._sizes(),
            digests=digests,
            text_sha256=text_digest(text),
            characters=len(text),
            created=entries.now(),
        )

    def _write_small(self, **payloads: bytes) -> dict[str, str]:
        """Writes what is the document's own beside its manifest; the digests."""
        digests = {}
        with self._changing():
            for kind, payload in payloads.items():
                path = self.paths.document(self.key, kind)
                self._new.append(path)
                digests[kind] = sealed.write(path, kind, payload, self.key)
        return digests

    def _commit(self, made: Entry) -> Entry:
        with self._changing(), self.paths.locked("library"):
            entries.write(self.paths, made)
            self.paths.reservation(self.key).unlink()
        entries.touch(self.paths, self.key)
        return entries.read(self.paths, self.key)

    def _sizes(self) -> dict[str, int]:
        own = {kind: size_of(self.paths.document(self.key, kind)) for kind in ("text", "tokens")}
        rows = sum(size_of(self.paths.segment(name)) for name in self._names)
        return {"segments": rows, "fit": size_of(self.paths.fit(self._fit)), **own}

    def end(self) -> None:
        """Leaves an ingest: one that was not finished keeps its segments for the next to go on
        from. Where the disk is full it removes what it has written and nobody else needs."""
        if self.entry is not None or (self._names and not self._full):
            return
        with contextlib.suppress(OSError, EsaError), self.paths.locked("library"):
            for path in (self.paths.document(self.key), self.paths.reservation(self.key)):
                path.unlink(missing_ok=True)
            # What is damaged, or another version's, has no use for what was written just now.
            there = entries.read_all(self.paths)
            whole = [one for one in there if one.unreadable or not one.damage]
            kept = needed_files(self.paths, whole, abandoned=True)
            for path in self._new:
                if path.parent == self.paths.documents or not kept.needs(path):
                    path.unlink(missing_ok=True)

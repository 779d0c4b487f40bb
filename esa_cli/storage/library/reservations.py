"""Segments and projections that finished documents and unfinished ingests need.

An ingest writes a reservation with the names of all segments its document will have before it
writes the first of them. While the ingest holds its lock nothing removes these; afterwards `prune`
does. Removing a document keeps what an unfinished ingest could still use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from esa_cli.errors import LibraryError, UnreadableError
from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry


def end_reservation(paths: LibraryPaths, key: str, new: Iterable[Path]) -> None:
    """Ends that of an ingest which nobody will resume, and removes of the files that it has written
    those that nobody else needs. Raises OSError, EsaError: some of it is left."""
    with paths.locked("library"):
        for path in (paths.document(key), paths.reservation(key)):
            path.unlink(missing_ok=True)
        # Damaged documents, and those of another version, do not need the new files.
        there = manifest.read_all(paths)
        whole = [one for one in there if one.unreadable or not one.damage]
        kept = needed_files(paths, whole, abandoned=True)
        for path in new:
            if path.parent == paths.documents or not kept.needs(path):
                path.unlink(missing_ok=True)


def reserve(paths: LibraryPaths, key: str, prefixes: list[str]) -> None:
    """Reserves segments, by the first part of their names, for the ingest with this key."""
    checksummed_file.write(paths.reservation(key), "claim", json.dumps(prefixes).encode(), key)


@dataclass
class NeededFiles:
    """Names of segments and projections that must be kept."""

    prefixes: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)
    fits: set[str] = field(default_factory=set)
    everything: bool = False
    """Some document's or running ingest's needs are unknown: every file may be needed."""
    every_fit: bool = False
    """An ingest is running. It writes its projections before the first segment that names them, so
    any projections may be its."""

    def needs(self, path: Path) -> bool:
        """True if a segment's or a projection's file must be kept."""
        if path.suffix == ".fit":
            return self.everything or self.every_fit or path.stem in self.fits
        prefix = path.stem.partition("-")[0]
        return self.everything or path.stem in self.segments or prefix in self.prefixes


def needed_files(paths: LibraryPaths, entries: Iterable[Entry], *, abandoned: bool) -> NeededFiles:
    """Files that these documents and the reservations need; the caller holds the library's lock.

    Args:
        entries: one with `damage` may need anything.
        abandoned: count the reservations of ingests that were killed, too.
    """
    found = NeededFiles()
    for entry in entries:
        found.segments.update(entry.segments)
        found.fits.add(entry.fit)
        found.everything = found.everything or bool(entry.damage)
    for path in list(paths.whole("claims")):
        live = paths.is_locked(path.stem)
        found.every_fit = found.every_fit or live
        if live or abandoned:
            try:
                found.prefixes.update(json.loads(checksummed_file.read(path, "claim", path.stem)))
            except LibraryError as error:
                unsure = live or isinstance(error, UnreadableError)
                found.everything = found.everything or unsure
    for path in paths.whole("segments"):
        if found.needs(path):
            found.fits.add(path.stem.partition("-")[2])
    return found

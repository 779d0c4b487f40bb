"""Who needs which files: documents that are there, and ingests that have not ended.

An ingest writes a claim with the names of all segments its document will have before it writes the
first of them. While its lock is held nobody sweeps these; afterwards `prune` does. Removing a
document leaves what an unfinished ingest could still use.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from esa_cli.storage.library import checksummed_file as sealed
from esa_cli.storage.library.checksummed_file import LibraryError, UnreadableError
from esa_cli.storage.library.library_paths import LibraryPaths
from esa_cli.storage.library.manifest import Entry


def write(places: LibraryPaths, key: str, chain: list[str]) -> None:
    """Claims segments, by the first part of their names, for the ingest with this key."""
    sealed.write(places.claim(key), "claim", json.dumps(chain).encode(), key)


@dataclass
class NeededFiles:
    """Names of segments and projections that must stay."""

    chains: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)
    fits: set[str] = field(default_factory=set)
    everything: bool = False
    """What some document or running ingest needs is not known: what nobody names may be its."""
    every_fit: bool = False
    """An ingest goes on. Its projections come before the first segment that names them, and may
    come at any moment."""

    def needs(self, path: Path) -> bool:
        """Whether a segment's or a projection's file must stay."""
        if path.suffix == ".fit":
            return self.everything or self.every_fit or path.stem in self.fits
        chain = path.stem.partition("-")[0]
        return self.everything or path.stem in self.segments or chain in self.chains


def needed(places: LibraryPaths, entries: Iterable[Entry], *, dead: bool) -> NeededFiles:
    """What these documents and the claims need; the library's lock is held.

    Args:
        dead: count the claims of ingests that ended before their time, too.

    A document with `damage` may need anything.
    """
    found = NeededFiles()
    for entry in entries:
        found.segments.update(entry.segments)
        found.fits.add(entry.fit)
        found.everything = found.everything or bool(entry.damage)
    for path in list(places.whole("claims")):
        live = places.is_held(path.stem)
        found.every_fit = found.every_fit or live
        if live or dead:
            try:
                found.chains.update(json.loads(sealed.read(path, "claim", path.stem)))
            except LibraryError as error:
                unsure = live or isinstance(error, UnreadableError)
                found.everything = found.everything or unsure
    for path in places.whole("segments"):
        if found.needs(path):
            found.fits.add(path.stem.partition("-")[2])
    return found

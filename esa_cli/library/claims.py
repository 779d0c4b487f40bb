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

from . import sealed
from .entry import Entry
from .places import Places
from .sealed import LibraryError


def write(places: Places, key: str, chain: list[str]) -> None:
    """Claims segments, by the first part of their names, for the ingest with this key."""
    sealed.write(places.claim(key), "claim", json.dumps(chain).encode(), key)


@dataclass
class Needed:
    """Names of segments and projections that must stay."""

    chains: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)
    fits: set[str] = field(default_factory=set)
    everything: bool = False
    """A claim could not be read while its ingest goes on, or another version's document is there:
    what nobody names may still be needed."""

    def needs(self, path: Path) -> bool:
        """Whether a segment's or a projection's file must stay."""
        if path.suffix == ".fit":
            return self.everything or path.stem in self.fits
        chain = path.stem.partition("-")[0]
        return self.everything or path.stem in self.segments or chain in self.chains


def needed(places: Places, entries: Iterable[Entry], *, dead: bool) -> Needed:
    """What these documents and the claims need; the library's lock is held.

    Args:
        dead: count the claims of ingests that ended before their time, too.
    """
    found = Needed()
    for entry in entries:
        found.segments.update(entry.segments)
        found.fits.add(entry.fit)
        found.everything = found.everything or entry.foreign
    for path in list(places.claims.glob("*.claim")):
        live = places.is_held(path.stem)
        if live or dead:
            try:
                found.chains.update(json.loads(sealed.read(path, "claim", path.stem)))
            except LibraryError:
                found.everything = found.everything or live
    for path in places.segments.glob("*.seg"):
        if found.needs(path):
            found.fits.add(path.stem.partition("-")[2])
    # A live ingest's projections are there before the first segment that names them.
    if any(places.is_held(path.stem) for path in places.claims.glob("*.claim")):
        found.fits.update(path.stem for path in places.fits.glob("*.fit"))
    return found

"""Removing: a document, the least recently used ones, and what dead ingests left behind.

The library's lock is held throughout. The manifest goes first, so that a kill leaves files that
belong to nobody, never a document without its files; the next `prune` sweeps them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from . import claims
from . import entry as entries
from .entry import Entry
from .places import Places, size_of
from .sealed import on_disk, sync_folder


@dataclass(frozen=True)
class Pruned:
    """What `prune` removed, or would remove: documents, and bytes; and bytes that are left.

    Args:
        leftovers: files of ingests that never ended, and the like.
    """

    removed: tuple[Entry, ...]
    leftovers: int
    freed: int
    left: int


def remove(places: Places, entry: Entry) -> int:
    """Removes a document; bytes freed. Its segments stay where others need them.

    Raises:
        LibraryError: a file cannot be removed.
    """
    with on_disk(places.root), places.locked("library"):
        others = [one for one in entries.read_all(places) if one.key != entry.key]
        if entry.damage:  # what it needed is not known: all that nobody names goes
            doomed = [*places.segments.glob("*.seg"), *places.fits.glob("*.fit")]
        else:  # another version's segments have other names, and need none of these
            others = [one for one in others if not one.foreign]
            doomed = [places.segment(name) for name in entry.segments]
            doomed.append(places.fit(entry.fit))
        kept = claims.needed(places, others, dead=True)
        doomed = [path for path in doomed if not kept.needs(path)]
        return _delete(places, [*places.of_document(entry.key), *doomed])


def prune(places: Places, max_bytes: int | None, dry_run: bool) -> Pruned:
    """Sweeps leftovers, then removes documents, the least recently used first, until all that is
    left takes at most `max_bytes`; what a running ingest holds stays.

    Raises:
        LibraryError: a file cannot be removed.
    """
    with on_disk(places.root), places.locked("library"):
        there = entries.read_all(places)
        left_over = _leftovers(places, there)
        total = sum(map(size_of, set(places.files()) - set(left_over)))
        gone, doomed = _oldest(places, there, total, max_bytes)
        freed = sum(map(size_of, [*doomed, *left_over]))
        if not dry_run:
            _delete(places, [*doomed, *left_over])
        left = total - sum(map(size_of, doomed)) if dry_run else sum(map(size_of, places.files()))
        return Pruned(tuple(gone), len(left_over), freed, left)


def _oldest(
    places: Places, there: list[Entry], total: int, max_bytes: int | None
) -> tuple[list[Entry], list[Path]]:
    """Which documents go, and their files, manifests first of each."""
    live = claims.needed(places, [], dead=False)
    uses = Counter(name for entry in there for name in entry.segments)
    fits = Counter(entry.fit for entry in there)
    gone: list[Entry] = []
    doomed: list[Path] = []
    for entry in reversed(there):
        if max_bytes is None or total <= max_bytes:
            break
        uses.subtract(entry.segments)
        fits.subtract([entry.fit])
        own = [places.segment(name) for name in entry.segments if not uses[name]]
        if not fits[entry.fit]:
            own.append(places.fit(entry.fit))
        own = [path for path in own if not live.needs(path)]
        files = [path for path in [*places.of_document(entry.key), *own] if path.exists()]
        total -= sum(map(size_of, files))
        gone.append(entry)
        doomed.extend(files)
    return gone, doomed


def _leftovers(places: Places, there: list[Entry]) -> list[Path]:
    """Files that belong to no document and to no running ingest."""
    kept, keys = claims.needed(places, there, dead=False), {entry.key for entry in there}
    found = []
    for path in places.files():
        if path.suffix == ".part":
            mine = places.is_held(path.name.split(".")[-2])
        elif path.parent in (places.segments, places.fits):
            mine = kept.needs(path)
        elif path.parent == places.claims:
            mine = places.is_held(path.stem)
        else:
            mine = path.stem in keys or places.is_held(path.stem)
        if not mine:
            found.append(path)
    return found


def _delete(places: Places, files: list[Path]) -> int:
    freed = 0
    for path in files:
        size = size_of(path)
        path.unlink(missing_ok=True)
        freed += size
        if path.suffix == ".doc":
            sync_folder(places.documents)
    for folder in {path.parent for path in files}:
        sync_folder(folder)
    return freed

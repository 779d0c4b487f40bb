"""Removing: a document, the least recently used ones, and what dead ingests left behind.

The library's lock is held throughout. The manifest goes first, so that a kill leaves files that
belong to nobody, never a document without its files; the next `prune` sweeps them. Files whose
names are not ours are never touched.

A manifest that is damaged, of another version or not to be read now does not say which segments it
needs. Then what nobody names stays, until the damaged document is removed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from esa_cli.storage.library import manifest as entries
from esa_cli.storage.library import reservations as claims
from esa_cli.storage.library.checksummed_file import LOOK, UnreadableError, on_disk, sync_folder
from esa_cli.storage.library.library_paths import LibraryPaths, size_of
from esa_cli.storage.library.manifest import Entry


@dataclass(frozen=True)
class PruneResult:
    """What `prune` removed, or would remove: documents, and bytes; and bytes that are left.

    Args:
        leftovers: how many files of ingests that never ended, and the like.
    """

    removed: tuple[Entry, ...]
    leftovers: int
    freed: int
    left: int


def remove(places: LibraryPaths, entry: Entry) -> int:
    """Removes a document; bytes freed. Its segments stay where others need them.

    Raises:
        LibraryError: a file cannot be removed.
    """
    with on_disk(places.root), places.locked("library"):
        others = [one for one in entries.read_all(places) if one.key != entry.key]
        if entry.damage:  # what it needed is not known: all that nobody names goes
            doomed = [*places.whole("segments"), *places.whole("fits")]
        else:  # what is damaged cannot use them, and another version's have other names
            others = [one for one in others if one.unreadable or not one.damage]
            doomed = [places.segment(name) for name in entry.segments]
            doomed.append(places.fit(entry.fit))
        kept = claims.needed(places, others, dead=True)
        doomed = [path for path in doomed if not kept.needs(path)]
        return _delete(places, [*places.of_document(entry.key), *doomed])


def prune(places: LibraryPaths, max_bytes: int | None, dry_run: bool) -> PruneResult:
    """Sweeps leftovers, then removes documents until all that is left takes at most `max_bytes`:
    damaged ones, then the least recently used; what a running ingest holds stays.

    Raises:
        UnreadableError: a manifest cannot be read; nothing is changed. LibraryError: a file cannot
            be removed.
    """
    with on_disk(places.root), places.locked("library"):
        there = _readable(entries.read_all(places))
        left_over = _leftovers(places, there)
        total = _total(places, left_over)
        damaged = [one for one in there if one.damage and not one.foreign]
        if damaged and max_bytes is not None and total > max_bytes:
            there = [one for one in there if one not in damaged]
            left_over = _leftovers(places, there)
            total = _total(places, left_over)
        else:
            damaged = []
        gone, doomed = _oldest(places, there, total, max_bytes)
        gone = [*damaged, *gone]
        freed = sum(map(size_of, [*doomed, *left_over]))
        if not dry_run:
            _delete(places, [*doomed, *left_over])
        left = total - sum(map(size_of, doomed)) if dry_run else sum(map(size_of, places.files()))
        return PruneResult(tuple(gone), len(left_over), freed, left)


def _readable(there: list[Entry]) -> list[Entry]:
    """The entries, if all manifests could be read: what one that could not needs is not known, and
    while it is there the library may not get smaller, however much is removed."""
    for entry in there:
        if entry.unreadable:
            raise UnreadableError(
                f"nothing was removed, for {entry.damage}",
                f"{LOOK}; `esa library rm {entry.id}` gives the document up",
            )
    return there


def _total(places: LibraryPaths, left_over: list[Path]) -> int:
    """Bytes of all files but those."""
    return sum(map(size_of, set(places.files()) - set(left_over)))


def _oldest(
    places: LibraryPaths, there: list[Entry], total: int, max_bytes: int | None
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


def _leftovers(places: LibraryPaths, there: list[Entry]) -> list[Path]:
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


def _delete(places: LibraryPaths, files: list[Path]) -> int:
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

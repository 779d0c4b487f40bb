"""Which files of a library are needed, and removal of those that are not.

A document's manifest is removed first, so that a kill leaves files that belong to no document, and
never a document without its files. An ingest writes a reservation with the names of all segments
its document will have before it writes the first of them. While it holds its lock nothing removes
these; afterwards `prune` does, and removing another document does not.

A document that cannot be used may need any segment that no other document names, because nobody can
read its manifest. Such segments stay until it is removed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from esa_cli.errors import LibraryError
from esa_cli.storage.library import checksummed_file, manifest
from esa_cli.storage.library.checksummed_file import sync_folder, write_errors
from esa_cli.storage.library.library_paths import LibraryPaths, size_of
from esa_cli.storage.library.manifest import Entry


def reserve(paths: LibraryPaths, key: str, prefixes: list[str]) -> None:
    """Reserves segments, by the first part of their names, for the ingest with this key."""
    checksummed_file.write(paths.reservation(key), "claim", json.dumps(prefixes).encode(), key)


def end_reservation(paths: LibraryPaths, key: str, new: Iterable[Path]) -> None:
    """Ends the reservation of an ingest that nobody will resume, and removes those of the files it
    wrote that nobody else needs. Raises OSError, EsaError: some of it is left."""
    with paths.locked("library"):
        for path in (paths.document(key), paths.reservation(key)):
            path.unlink(missing_ok=True)
        # One that cannot be used does not need files that were missing until now.
        usable = [one for one in manifest.read_all(paths) if not one.error]
        needed = needed_files(paths, usable, abandoned=True)
        for path in new:
            if path.parent == paths.documents or not needed.has(path):
                path.unlink(missing_ok=True)


@dataclass
class NeededFiles:
    """Names of segments and projections that must be kept."""

    prefixes: set[str] = field(default_factory=set)
    segments: set[str] = field(default_factory=set)
    fits: set[str] = field(default_factory=set)
    everything: bool = False
    """Some document's or ingest's needs are unknown."""
    every_fit: bool = False
    """An ingest is running. It writes its projections before the first segment that names them, so
    any projections may be its."""

    def has(self, path: Path) -> bool:
        """Whether a segment's or a projection's file must be kept."""
        if path.suffix == ".fit":
            return self.everything or self.every_fit or path.stem in self.fits
        prefix = path.stem.partition("-")[0]
        return self.everything or path.stem in self.segments or prefix in self.prefixes


def needed_files(paths: LibraryPaths, entries: Iterable[Entry], *, abandoned: bool) -> NeededFiles:
    """Files that these documents and the reservations need; the caller holds the library's lock.

    Args:
        abandoned: count the reservations of ingests that were killed, too.
    """
    needed = NeededFiles()
    for entry in entries:
        needed.segments.update(entry.segments)
        needed.fits.add(entry.fit)
        needed.everything = needed.everything or entry.error is not None
    for path in list(paths.whole("claims")):
        live = paths.is_locked(path.stem)
        needed.every_fit = needed.every_fit or live
        if live or abandoned:
            try:
                needed.prefixes.update(json.loads(checksummed_file.read(path, "claim", path.stem)))
            except LibraryError:
                needed.everything = True
    for path in paths.whole("segments"):
        if needed.has(path):
            needed.fits.add(path.stem.partition("-")[2])
    return needed


@dataclass(frozen=True)
class PruneResult:
    """The result of `prune`: documents and bytes that it removes, and bytes that are left.

    Args:
        leftovers: number of files of unfinished ingests and the like.
        left_alone: documents that cannot be used.
    """

    removed: tuple[Entry, ...]
    leftovers: int
    freed: int
    left: int
    left_alone: tuple[Entry, ...] = ()


def remove(paths: LibraryPaths, entry: Entry) -> int:
    """See `Library.remove`."""
    with write_errors(paths.root), paths.locked("library"):
        others = [one for one in manifest.read_all(paths) if one.key != entry.key]
        shared = [paths.fit(entry.fit), *map(paths.segment, entry.segments)]
        if entry.error:
            shared = [*paths.whole("segments"), *paths.whole("fits")]
        needed = needed_files(paths, others, abandoned=True)
        unneeded = [path for path in shared if not needed.has(path)]
        return _delete(paths, [*paths.of_document(entry.key), *unneeded])


def prune(
    paths: LibraryPaths, max_bytes: int | None, dry_run: bool, former: Container[str] = ()
) -> PruneResult:
    """See `Library.prune`; `former` has the keys of former documents."""
    with write_errors(paths.root), paths.locked("library"):
        entries = manifest.read_all(paths)
        leftovers = _leftovers(paths, entries)
        total = sum(map(size_of, set(paths.files()) - set(leftovers)))
        removed, files = _oldest(paths, entries, total, max_bytes, former)
        left = total - sum(map(size_of, files))
        freed = sum(map(size_of, [*files, *leftovers]))
        if not dry_run:
            _delete(paths, [*files, *leftovers])
            left = sum(map(size_of, paths.files()))
        left_alone = tuple(one for one in entries if one.error)
        return PruneResult(tuple(removed), len(leftovers), freed, left, left_alone)


def _oldest(
    paths: LibraryPaths,
    entries: Sequence[Entry],
    total: int,
    max_bytes: int | None,
    former: Container[str],
) -> tuple[list[Entry], list[Path]]:
    """The documents to remove, the former first, and their files, each one's manifest first."""
    unusable = [one for one in entries if one.error]
    live = needed_files(paths, unusable, abandoned=False)
    uses = Counter(name for entry in entries for name in (*entry.segments, entry.fit))
    removed, files = list[Entry](), list[Path]()
    usable = [one for one in reversed(entries) if not one.error]
    for entry in sorted(usable, key=lambda one: one.key not in former):
        if entry.key not in former:
            if max_bytes is None or total <= max_bytes:
                break
            if unusable:
                ids = " ".join(one.id for one in unusable)
                raise LibraryError(
                    f"nothing was removed: {len(unusable)} documents cannot be used, and any "
                    f"segment may be theirs: {unusable[0].damage}",
                    f"`esa library verify` says what hinders; `esa library rm {ids}` gives them up",
                )
        uses.subtract([*entry.segments, entry.fit])
        shared = [paths.segment(name) for name in entry.segments if not uses[name]]
        shared += [] if uses[entry.fit] else [paths.fit(entry.fit)]
        own = [path for path in paths.of_document(entry.key) if path.exists()]
        own += [path for path in shared if path.exists() and not live.has(path)]
        total -= sum(map(size_of, own))
        removed.append(entry)
        files.extend(own)
    return removed, files


def _leftovers(paths: LibraryPaths, entries: Sequence[Entry]) -> list[Path]:
    """Files that belong to no document and to no running ingest."""
    needed = needed_files(paths, entries, abandoned=False)
    keys = {entry.key for entry in entries}

    def is_used(path: Path) -> bool:
        if path.suffix == ".part":
            return paths.is_locked(path.name.split(".")[-2])
        if path.parent in (paths.segments, paths.fits):
            return needed.has(path)
        finished = path.parent == paths.documents and path.stem in keys
        return path.parent == paths.folders or finished or paths.is_locked(path.stem)

    return [path for path in paths.files() if not is_used(path)]


def _delete(paths: LibraryPaths, files: list[Path]) -> int:
    """Removes files in their order, and returns their bytes."""
    freed = 0
    for path in files:
        size = size_of(path)
        path.unlink(missing_ok=True)
        freed += size
        if path.suffix == ".doc":
            sync_folder(paths.documents)
    for folder in {path.parent for path in files}:
        sync_folder(folder)
    return freed


def verify(paths: LibraryPaths, entry: Entry) -> list[LibraryError]:
    """See `Library.verify`. Words are left out, for their damage is repaired."""
    from esa_cli.storage.library.document_files import check_file, needed_paths

    if entry.error:
        return [entry.error]
    errors = list[LibraryError]()
    for path in [paths.document(entry.key), *needed_paths(paths, entry)]:
        try:
            if path.suffix == ".doc":
                manifest.read(paths, entry.key)
            else:
                check_file(path, path, entry)
        except LibraryError as error:
            errors.append(error)
    return errors

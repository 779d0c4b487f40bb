"""Removing, pruning and verifying stored documents.

`remove` and `prune` hold the library's lock throughout. The manifest goes first, so that a kill
leaves files that belong to no document, which the next `prune` removes, never a document without
its files.

A manifest that is damaged, of another version or unreadable does not say which segments it needs.
Segments that no other document names are then kept until that document is removed.

An ingest writes a reservation with the names of all segments its document will have before it
writes the first of them. While the ingest holds its lock nothing removes these; afterwards `prune`
does. Removing a document keeps what an unfinished ingest could still use.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from esa_cli.errors import LibraryError, UnreadableError
from esa_cli.storage.library.formats import checksummed_file, manifest
from esa_cli.storage.library.formats.checksummed_file import READ_HINT, sync_folder, write_errors
from esa_cli.storage.library.formats.library_paths import LibraryPaths, size_of
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


@dataclass(frozen=True)
class PruneResult:
    """The result of `prune`: documents and bytes that it removes, and bytes that are left.

    Args:
        leftovers: number of files of unfinished ingests and the like.
        left_alone: documents of another format, which only `remove` removes.
    """

    removed: tuple[Entry, ...]
    leftovers: int
    freed: int
    left: int
    left_alone: tuple[Entry, ...] = ()


def remove(paths: LibraryPaths, entry: Entry) -> int:
    """Removes a document and returns the bytes freed. Segments that others need are kept. Raises
    LibraryError: a file cannot be removed."""
    with write_errors(paths.root), paths.locked("library"):
        others = [one for one in manifest.read_all(paths) if one.key != entry.key]
        if entry.damage:  # what it needed is not known: everything that nobody names goes
            doomed = [*paths.whole("segments"), *paths.whole("fits")]
        else:  # damaged documents cannot use them, and another version's have other names
            others = [one for one in others if one.unreadable or not one.damage]
            doomed = [paths.segment(name) for name in entry.segments]
            doomed.append(paths.fit(entry.fit))
        kept = needed_files(paths, others, abandoned=True)
        doomed = [path for path in doomed if not kept.needs(path)]
        return _delete(paths, [*paths.of_document(entry.key), *doomed])


def prune(
    paths: LibraryPaths, max_bytes: int | None, dry_run: bool, former: Container[str] = ()
) -> PruneResult:
    """Removes leftovers and former documents, by their keys, then others until all that is left
    takes at most `max_bytes`: damaged ones, then the least recently used. What a running ingest
    needs is kept, and so are documents of another format, with every segment that may be theirs.
    Raises LibraryError: a manifest cannot be read, or documents of another format take more than
    `max_bytes`, and nothing is changed; or a file cannot be removed."""
    with write_errors(paths.root), paths.locked("library"):
        there = _readable(manifest.read_all(paths))
        foreign = [one for one in there if one.foreign]
        left_over = _leftovers(paths, there)
        total = _total(paths, left_over)
        damaged = [one for one in there if one.damage and not one.foreign]
        if damaged and max_bytes is not None and total > max_bytes:
            there = [one for one in there if one not in damaged]
            left_over = _leftovers(paths, there)
            total = _total(paths, left_over)
        else:
            damaged = []
        gone, doomed = _oldest(paths, there, total, max_bytes, former)
        left = total - sum(map(size_of, doomed))
        if foreign and max_bytes is not None and left > max_bytes:
            raise _too_small(foreign, left, max_bytes)
        gone = [*damaged, *gone]
        freed = sum(map(size_of, [*doomed, *left_over]))
        if not dry_run:
            _delete(paths, [*doomed, *left_over])
            left = sum(map(size_of, paths.files()))
        return PruneResult(tuple(gone), len(left_over), freed, left, tuple(foreign))


def _readable(there: list[Entry]) -> list[Entry]:
    """The entries, if all manifests could be read. One that could not may need any segment, so the
    library could not get smaller, however much is removed."""
    for entry in there:
        if entry.unreadable:
            raise UnreadableError(
                f"nothing was removed, for {entry.damage}",
                f"{READ_HINT}; `esa library rm {entry.id}` gives the document up",
            )
    return there


def _too_small(foreign: list[Entry], left: int, max_bytes: int) -> LibraryError:
    """The error where the limit would cost every other document, and still not be met."""
    ids = " ".join(entry.id for entry in foreign)
    return LibraryError(
        f"nothing was removed, for the size to prune to must be at least {left:,} bytes, which "
        f"documents of another format keep, got {max_bytes:,}",
        f"use the esa that wrote them, or `esa library rm {ids}` gives them up",
    )


def _total(paths: LibraryPaths, left_over: list[Path]) -> int:
    """Bytes of all files but those."""
    return sum(map(size_of, set(paths.files()) - set(left_over)))


def _oldest(
    paths: LibraryPaths,
    there: list[Entry],
    total: int,
    max_bytes: int | None,
    former: Container[str],
) -> tuple[list[Entry], list[Path]]:
    """The documents to remove, the former first, and their files, each one's manifest first. Those
    of another format stay: this version cannot tell which segments they need."""
    live = needed_files(paths, [], abandoned=False)
    uses = Counter(name for entry in there for name in entry.segments)
    fits = Counter(entry.fit for entry in there)
    gone: list[Entry] = []
    doomed: list[Path] = []
    oldest = [one for one in reversed(there) if not one.foreign]
    for entry in sorted(oldest, key=lambda one: one.key not in former):
        if entry.key not in former and (max_bytes is None or total <= max_bytes):
            break
        uses.subtract(entry.segments)
        fits.subtract([entry.fit])
        own = [paths.segment(name) for name in entry.segments if not uses[name]]
        if not fits[entry.fit]:
            own.append(paths.fit(entry.fit))
        own = [path for path in own if not live.needs(path)]
        files = [path for path in [*paths.of_document(entry.key), *own] if path.exists()]
        total -= sum(map(size_of, files))
        gone.append(entry)
        doomed.extend(files)
    return gone, doomed


def _leftovers(paths: LibraryPaths, there: list[Entry]) -> list[Path]:
    """Files that belong to no document and to no running ingest."""
    kept = needed_files(paths, there, abandoned=False)
    keys = {entry.key for entry in there}

    def used(path: Path) -> bool:
        if path.suffix == ".part":
            return paths.is_locked(path.name.split(".")[-2])
        if path.parent == paths.folders:
            return True
        if path.parent in (paths.segments, paths.fits):
            return kept.needs(path)
        finished = path.parent == paths.documents and path.stem in keys
        return finished or paths.is_locked(path.stem)

    return [path for path in paths.files() if not used(path)]


def _delete(paths: LibraryPaths, files: list[Path]) -> int:
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
    """Reads every byte of a document and returns one error for each damaged file. Checks made
    before do not count. Words are left out, for their damage is repaired."""
    from esa_cli.storage.library.contents_check import check_file, document_files

    if entry.damage:
        return [manifest.entry_error(entry)]
    checks: list[Callable[[], object]] = [partial(manifest.read, paths, entry.key)]
    checks += [partial(check_file, path, path, entry) for path in document_files(paths, entry)]
    found = []
    for check in checks:
        try:
            check()
        except LibraryError as error:
            found.append(error)
    return found

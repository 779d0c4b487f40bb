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
from esa_cli.storage.library import checksummed_file, manifest
from esa_cli.storage.library.checksummed_file import sync_folder, write_errors
from esa_cli.storage.library.library_paths import LibraryPaths, size_of
from esa_cli.storage.library.manifest import Entry


def reserve(paths: LibraryPaths, key: str, prefixes: list[str]) -> None:
    """Reserves segments, by the first part of their names, for the ingest with this key."""
    checksummed_file.write(paths.reservation(key), "claim", json.dumps(prefixes).encode(), key)


def end_reservation(paths: LibraryPaths, key: str, new: Iterable[Path]) -> None:
    """Ends that of an ingest which nobody will resume, and removes of the files that it has written
    those that nobody else needs. Raises OSError, EsaError: some of it is left."""
    with paths.locked("library"):
        for path in (paths.document(key), paths.reservation(key)):
            path.unlink(missing_ok=True)
        needed = needed_files(paths, _possible_owners(manifest.read_all(paths)), abandoned=True)
        for path in new:
            if path.parent == paths.documents or not needed.has(path):
                path.unlink(missing_ok=True)


def _possible_owners(entries: Iterable[Entry]) -> list[Entry]:
    """Documents that may need a new ingest's segments: damaged ones cannot use them, and another
    version's have other names."""
    return [one for one in entries if one.unreadable or not one.damage]


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

    def has(self, path: Path) -> bool:
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
    needed = NeededFiles()
    for entry in entries:
        needed.segments.update(entry.segments)
        needed.fits.add(entry.fit)
        needed.everything = needed.everything or bool(entry.damage)
    for path in list(paths.whole("claims")):
        live = paths.is_locked(path.stem)
        needed.every_fit = needed.every_fit or live
        if live or abandoned:
            try:
                needed.prefixes.update(json.loads(checksummed_file.read(path, "claim", path.stem)))
            except LibraryError as error:
                unsure = live or isinstance(error, UnreadableError)
                needed.everything = needed.everything or unsure
    for path in paths.whole("segments"):
        if needed.has(path):
            needed.fits.add(path.stem.partition("-")[2])
    return needed


@dataclass(frozen=True)
class PruneResult:
    """The result of `prune`: documents and bytes that it removes, and bytes that are left.

    Args:
        leftovers: number of files of unfinished ingests and the like.
        left_alone: documents that cannot be used, which only `remove` removes.
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
        else:
            others = _possible_owners(others)
            doomed = [paths.segment(name) for name in entry.segments]
            doomed.append(paths.fit(entry.fit))
        needed = needed_files(paths, others, abandoned=True)
        doomed = [path for path in doomed if not needed.has(path)]
        return _delete(paths, [*paths.of_document(entry.key), *doomed])


def prune(
    paths: LibraryPaths, max_bytes: int | None, dry_run: bool, former: Container[str] = ()
) -> PruneResult:
    """Removes leftovers and former documents, by their keys, then the least recently used until all
    that is left takes at most `max_bytes`. What a running ingest needs is kept, and so are
    documents that cannot be used, with every segment that may be theirs. Raises LibraryError: these
    take more than `max_bytes`, and nothing is changed; or a file cannot be removed."""
    with write_errors(paths.root), paths.locked("library"):
        entries = manifest.read_all(paths)
        unusable = tuple(one for one in entries if one.damage)
        left_over = _leftovers(paths, entries)
        total = sum(map(size_of, set(paths.files()) - set(left_over)))
        removed, doomed = _oldest(paths, entries, total, max_bytes, former)
        left = total - sum(map(size_of, doomed))
        if unusable and max_bytes is not None and left > max_bytes:
            ids = " ".join(entry.id for entry in unusable)
            raise LibraryError(
                f"nothing was removed, for the size to prune to must be at least {left:,} bytes, "
                f"which documents that cannot be used keep, got {max_bytes:,}: "
                f"{unusable[0].damage}",
                f"`esa library verify` says what hinders; `esa library rm {ids}` gives them up",
            )
        freed = sum(map(size_of, [*doomed, *left_over]))
        if not dry_run:
            _delete(paths, [*doomed, *left_over])
            left = sum(map(size_of, paths.files()))
        return PruneResult(tuple(removed), len(left_over), freed, left, unusable)


def _oldest(
    paths: LibraryPaths,
    entries: list[Entry],
    total: int,
    max_bytes: int | None,
    former: Container[str],
) -> tuple[list[Entry], list[Path]]:
    """The documents to remove, the former first, and their files, each one's manifest first. Those
    that cannot be used stay, with every segment if one of them may be intact."""
    unreadable = [one for one in entries if one.unreadable]
    live = needed_files(paths, unreadable, abandoned=False)
    uses = Counter(name for entry in entries for name in (*entry.segments, entry.fit))
    removed: list[Entry] = []
    doomed: list[Path] = []
    oldest = [one for one in reversed(entries) if not one.damage]
    for entry in sorted(oldest, key=lambda one: one.key not in former):
        if entry.key not in former and (max_bytes is None or total <= max_bytes):
            break
        uses.subtract([*entry.segments, entry.fit])
        own = [paths.segment(name) for name in entry.segments if not uses[name]]
        if not uses[entry.fit]:
            own.append(paths.fit(entry.fit))
        own = [path for path in own if not live.has(path)]
        files = [path for path in [*paths.of_document(entry.key), *own] if path.exists()]
        total -= sum(map(size_of, files))
        removed.append(entry)
        doomed.extend(files)
    return removed, doomed


def _leftovers(paths: LibraryPaths, entries: list[Entry]) -> list[Path]:
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
    from esa_cli.storage.library.document_files import check_file, needed_paths

    if entry.damage:
        return [entry.error]
    checks: list[Callable[[], object]] = [partial(manifest.read, paths, entry.key)]
    checks += [partial(check_file, path, path, entry) for path in needed_paths(paths, entry)]
    errors = []
    for check in checks:
        try:
            check()
        except LibraryError as error:
            errors.append(error)
    return errors

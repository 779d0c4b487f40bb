"""Removes documents and leftovers from a library, and only files that nobody needs.

Before an ingest writes its first segment, it claims the names of all segments that its document
will have. No process removes claimed segments while the ingest holds the document's lock;
afterwards `prune` does. A document's manifest is removed before its other files, so that a killed
process never leaves a manifest without files. A document that cannot be used may need any segment
that no other document names, so unclaimed segments stay until the document is removed.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from esa_cli.errors import LibraryError
from esa_cli.storage.library import disk
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import Entry, read_entries, segment_prefix


@dataclass(frozen=True)
class PruneResult:
    """The result of pruning a library: which documents are removed, and how many bytes are freed.

    Args:
        leftovers: number of files that killed ingests left behind. left: number of bytes left.
        left_alone: documents that cannot be used and are not removed."""

    removed: tuple[Entry, ...]
    leftovers: int
    freed: int
    left: int
    left_alone: tuple[Entry, ...] = ()


def remove_document(paths: LibraryPaths, entry: Entry) -> int:
    """Removes a document, except segments that other documents may need, and returns the bytes
    freed. Raises LibraryError, DiskError."""
    with disk.converting_write_errors(paths.root), paths.hold_lock("library"):
        others = [other for other in read_entries(paths) if other.key != entry.key]
        is_needed = needed_file_filter(paths, others, with_abandoned_claims=True)
        shared = [paths.projections_path(entry.fit), *map(paths.segment_path, entry.segments)]
        if entry.error:
            shared = [*paths.finished_files("segments"), *paths.finished_files("fits")]
        files = [paths.document_path(entry.key, kind) for kind in disk.KINDS]
        return delete_files(paths, files + [path for path in shared if not is_needed(path)])


def prune_documents(
    paths: LibraryPaths, former_keys: Container[str], max_bytes: int | None, dry_run: bool
) -> PruneResult:
    """Removes former documents and the leftovers of killed ingests. With `max_bytes`, also removes
    the least recently used documents until the library takes at most so many bytes. With
    `dry_run`, removes nothing. Raises LibraryError: the limit needs removals, and a document is
    damaged; or as `remove_document`."""
    with disk.converting_write_errors(paths.root), paths.hold_lock("library"):
        entries, total = read_entries(paths), sum(map(disk.file_size, paths.all_files()))
        unusable = [entry for entry in entries if entry.error]
        usable = [entry for entry in reversed(entries) if not entry.error]
        order = sorted(usable, key=lambda entry: entry.key not in former_keys)

        def find_unneeded_files(removed_count: int) -> list[Path]:
            remaining_entries = unusable + order[removed_count:]
            return list_unneeded_files(paths, remaining_entries, order[:removed_count])

        def fits_limit(removed_count: int) -> bool:
            freed = sum(map(disk.file_size, find_unneeded_files(removed_count)))
            return max_bytes is None or total - freed <= max_bytes

        count = former_count = sum(entry.key in former_keys for entry in order)
        if not fits_limit(former_count) and former_count < len(order):
            _refuse_unusable(unusable)
            count += bisect_left(range(former_count, len(order)), True, key=fits_limit)
        files, leftovers = find_unneeded_files(count), len(find_unneeded_files(0))
        freed = sum(map(disk.file_size, files))
        if not dry_run:
            delete_files(paths, sorted(files, key=lambda path: path.suffix != ".doc"))
    return PruneResult(tuple(order[:count]), leftovers, freed, total - freed, tuple(unusable))


def _refuse_unusable(unusable: Sequence[Entry]) -> None:
    if unusable:
        ids = " ".join(entry.id for entry in unusable)
        raise LibraryError(
            f"nothing was removed, because {len(unusable)} documents cannot be used, and every "
            f"segment may belong to them: {unusable[0].damage}",
            f"see the damage with `esa library verify`, or remove them: `esa library rm {ids}`",
        )


def needed_file_filter(
    paths: LibraryPaths, entries: Iterable[Entry], *, with_abandoned_claims: bool
) -> Callable[[Path], bool]:
    """Returns a function that says whether a document or an ingest needs a file of a segment or
    projection. The caller holds the library's lock.

    Args:
        entries: the documents. with_abandoned_claims: also respect the claims of killed ingests."""
    entries = list(entries)
    segments = {name for entry in entries for name in entry.segments}
    fits, prefixes = {entry.fit for entry in entries}, set[str]()
    needs_unknown, is_ingesting = any(entry.error for entry in entries), False
    for path in paths.finished_files("claims"):
        is_live = paths.is_locked(path.stem)
        is_ingesting = is_ingesting or is_live
        if is_live or with_abandoned_claims:
            try:
                prefixes.update(json.loads(disk.read_file(path, "claim", path.stem)))
            except LibraryError:
                needs_unknown = True

    def is_needed(path: Path) -> bool:
        if path.suffix == ".fit":
            # An ingest writes its projections before the first segment that names them.
            return needs_unknown or is_ingesting or path.stem in fits
        return needs_unknown or path.stem in segments or segment_prefix(path.stem) in prefixes

    kept = filter(is_needed, paths.finished_files("segments"))
    fits |= {path.stem.partition("-")[2] for path in kept}
    return is_needed


def list_unneeded_files(
    paths: LibraryPaths, kept_entries: Sequence[Entry], removed_entries: Sequence[Entry]
) -> list[Path]:
    """Returns the files that neither the kept documents nor a running ingest needs."""
    is_needed = needed_file_filter(paths, kept_entries, with_abandoned_claims=False)
    is_locked = cache(paths.is_locked)
    kept_keys, removed_keys = (
        {entry.key for entry in entries} for entries in (kept_entries, removed_entries)
    )

    def is_kept(path: Path) -> bool:
        if path.suffix == ".part":
            return is_locked(path.name.split(".")[-2])
        if path.suffix in (".seg", ".fit"):
            return is_needed(path)
        if path.parent == paths.documents and path.stem in kept_keys | removed_keys:
            return path.stem in kept_keys
        return path.suffix == ".folder" or is_locked(path.stem)

    return [path for path in paths.all_files() if not is_kept(path)]


def delete_files(paths: LibraryPaths, files: Sequence[Path]) -> int:
    """Deletes files in the given order, and returns the number of bytes freed."""
    freed = 0
    for path in files:
        size = disk.file_size(path)
        path.unlink(missing_ok=True)
        freed += size
        if path.suffix == ".doc":
            disk.sync_folder(paths.documents)
    for folder in {path.parent for path in files}:
        disk.sync_folder(folder)
    return freed

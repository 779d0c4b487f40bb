"""The library: prefilled documents on disk, found by their text.

Opening a document takes no lock: a mapped file may be removed, except on Windows, where `remove`
fails. Before an ingest writes its first segment, it claims the names of all segments that its
document will have. No process removes claimed segments while the ingest holds the document's lock;
afterwards `prune` does. A document's manifest is removed before its other files, so that a killed
process never leaves a manifest without files. A document that cannot be used may need any segment
that no other document names, so unclaimed segments stay until the document is removed.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from esa_cli.errors import EsaError, LibraryError, ResourceError
from esa_cli.storage.library import catalogue, disk, manifest
from esa_cli.storage.library.catalogue import Catalogue, DividedEntries
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.manifest import Entry, Layout, segment_prefix

if TYPE_CHECKING:
    import torch

    from esa_cli.storage.library.stored_document import DocumentWriter, StoredDocument

OTHER_BYTES = 48
"""Largest number of bytes per token beside its KV cache: id, offsets, text and projections."""


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


class Library:
    """The stored documents in one folder. The constructor changes nothing on disk.

    Args:
        root: the folder; None takes $ESA_LIBRARY or, if it is unset, the user's data folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = disk.default_root() if root is None else root
        self._paths = LibraryPaths(self.root)

    def key(self, identity: str, text: str) -> str:
        """Returns the key of a text. `identity` names the model and settings of its prefill."""
        return manifest.document_key(identity, text)

    def find(self, key: str) -> Entry | None:
        """Returns the document with this key, or None. Raises LibraryError: its manifest is damaged
        or of another format, the folder cannot be read, or the folder is not a library."""
        self._paths.check_folder()
        is_stored = manifest.has_document(self._paths, key)
        entries = manifest.read_entries(self._paths, [key] if is_stored else [])
        for entry in entries:
            entry.check()
        return entries[0] if entries else None

    def entries(self) -> list[Entry]:
        """Returns every present document, even if damaged, the most recently used first. Raises
        LibraryError: the folder cannot be read, or is not a library."""
        return self.divided_entries().present

    def divided_entries(self) -> DividedEntries:
        """Divides the stored documents into present and former ones. Raises LibraryError."""
        self._paths.check_folder()
        return catalogue.known_files(self._paths).divide_entries(manifest.read_entries(self._paths))

    def matches(self, text: str) -> list[Entry]:
        """Returns the documents whose key begins with `text` (at least 4 digits), or else the
        documents with this name or source. Former documents are returned only if no present
        document matches. Raises LibraryError: the folder cannot be read, or is not a library."""
        paths, prefix = self._paths, text.lower()
        paths.check_folder()
        keys = [
            key for key in manifest.list_keys(paths) if len(text) > 3 and key.startswith(prefix)
        ]
        entries = manifest.read_entries(paths, keys or None)
        if not keys:
            entries = [one for one in entries if text in (one.name, one.provenance.get("source"))]
        present, former = catalogue.known_files(paths).divide_entries(entries)
        return present or former

    def text_digests(self) -> set[str]:
        """Returns the digest of every document's text. Raises LibraryError."""
        self._paths.check_folder()
        return set(catalogue.stored_keys(self._paths))

    @property
    def nbytes(self) -> int:
        """Number of bytes of all files in the library, except the catalogue."""
        return sum(map(disk.file_size, self._paths.all_files()))

    @property
    def catalogue_bytes(self) -> int:
        return disk.file_size(catalogue.catalogue_path(self._paths))

    @property
    def synced_files(self) -> int:
        """Number of files that `esa ingest --words` has added to the library."""
        records = catalogue.read_file_records(self._paths)
        return sum(bool(record.folder and record.digest) for record in records)

    def catalogue(self, keep: bool = True) -> AbstractContextManager[Catalogue]:
        """Opens the catalogue, or an empty one in memory if `keep` is false. Raises DiskError."""
        return catalogue.open_catalogue(self._paths, keep)

    def search_catalogue(self, copy: bool = False) -> AbstractContextManager[Catalogue]:
        """Opens the catalogue, or a copy if the catalogue is read-only. Raises LibraryError."""
        return catalogue.search_catalogue(self._paths, copy)

    def size_of(self, tokens: int, layout: Layout, states: int = 0) -> int:
        """Estimates the bytes on disk of a document, whose recurrent states take `states` bytes."""
        return layout.nbytes(tokens) + OTHER_BYTES * tokens + states

    @property
    def exists(self) -> bool:
        """Whether the folder exists and is a library."""
        return (self.root / disk.MARKER).is_file()

    @property
    def writable(self) -> bool:
        """Whether this user may write to the library's folder, or create the folder."""
        return os.access(disk.nearest_folder(self.root), os.W_OK)

    @contextmanager
    def write(
        self,
        key: str,
        identity: str,
        ids: Sequence[int],
        layout: Layout,
        waiting: Callable[[], None] | None = None,
        devices: Sequence[torch.device] = (),
        states: int = 0,
    ) -> Iterator[DocumentWriter | Entry]:
        """Yields a `DocumentWriter`, or the document if another process has stored the document.
        If the block ends without `finish`, the next ingest resumes from the whole segments on disk.

        Args:
            ids: all token ids. waiting: called while another process holds the document's lock.
            devices: each layer's device, by default the CPU. states: see `size_of`.

        Raises:
            DiskError: the document does not fit on the disk. LibraryError: the library cannot be
                written, or the document exists and is damaged."""
        from esa_cli.storage.library.stored_document import DocumentWriter

        paths = self._paths
        paths.make_folders()
        with paths.hold_lock(key, waiting):
            entry = self.find(key)
            if entry is None:
                prefixes = manifest.segment_prefixes(identity, ids, layout)
                was_claimed = paths.claim_path(key).exists()
                claim_segments(paths, key, prefixes)
                writer = DocumentWriter(paths, key, identity, ids, layout, prefixes, devices)
                try:
                    size = self.size_of(len(ids), layout, states)
                    disk.check_room(self.root, size - layout.nbytes(writer.done))
                    yield writer
                finally:
                    if not (writer.is_finished or writer.wrote or was_claimed):
                        with suppress(OSError):
                            paths.claim_path(key).unlink()
        if entry is not None:
            yield entry

    def open(self, entry: Entry) -> StoredDocument:
        """Opens a document for questions and sets its time of last use. Raises LibraryError: one of
        its files is missing, damaged or of another format."""
        from esa_cli.storage.library.stored_document import StoredDocument

        entry.check()
        stored = StoredDocument(self._paths, entry)
        manifest.mark_document_used(self._paths, entry.key)
        return stored

    def text(self, entry: Entry) -> str:
        """Returns a document's text. Raises LibraryError: the text is missing or damaged."""
        entry.check()
        return manifest.read_text(self._paths, entry)

    def words(self, entry: Entry) -> bytes | None:
        """Returns a document's stored word index as bytes, or None if no usable index is stored."""
        path, owner = self._paths.document_path(entry.key, "words"), f"{entry.key}\n".encode()
        try:
            payload = disk.read_file(path, "words", "")
        except LibraryError:
            return None
        return payload.removeprefix(owner) if payload.startswith(owner) else None

    def store_word_index(self, entry: Entry, payload: bytes) -> None:
        """Stores a document's word index, unless another process holds the document's lock or the
        library cannot be written."""
        path, owner = self._paths.document_path(entry.key, "words"), f"{entry.key}\n".encode()
        with (
            suppress(LibraryError, ResourceError, OSError),
            self._paths.hold_lock(entry.key, disk.refuse_to_wait),
        ):
            if manifest.has_document(self._paths, entry.key):
                disk.write_file(path, "words", owner + payload, entry.key)

    def verify(self, entry: Entry) -> list[LibraryError]:
        """Checks every byte of a document's files, and returns an error for each damaged file."""
        from esa_cli.storage.library.stored_document import check_file, needed_paths

        if entry.error:
            return [entry.error]
        errors = list[LibraryError]()
        for path in [self._paths.document_path(entry.key), *needed_paths(self._paths, entry)]:
            try:
                if path.suffix == ".doc":
                    manifest.read_manifest(self._paths, entry.key)
                else:
                    check_file(path, path, entry)
            except LibraryError as error:
                errors.append(error)
        return errors

    def remove(self, entry: Entry) -> int:
        """Removes a document, except segments that other documents may need, and returns the bytes
        freed. Raises LibraryError, DiskError: a file or the catalogue cannot be changed."""
        paths = self._paths
        paths.make_folders()
        with disk.converting_write_errors(self.root), paths.hold_lock("library"):
            others = [one for one in manifest.read_entries(paths) if one.key != entry.key]
            is_needed = needed_file_filter(paths, others, with_abandoned_claims=True)
            shared = [paths.projections_path(entry.fit), *map(paths.segment_path, entry.segments)]
            if entry.error:
                shared = [*paths.finished_files("segments"), *paths.finished_files("fits")]
            files = [paths.document_path(entry.key, kind) for kind in disk.KINDS]
            freed = delete_files(paths, files + [path for path in shared if not is_needed(path)])
        self._change_catalogue(Catalogue.drop_unused_texts)
        return freed

    def prune(self, max_bytes: int | None = None, *, dry_run: bool = False) -> PruneResult:
        """Removes former documents and the leftovers of killed ingests. With `max_bytes`, also
        removes the least recently used documents until the library takes at most so many bytes.
        Raises LibraryError: the limit needs removals, and a document is damaged; or as `remove`."""
        paths = self._paths
        if not self.root.exists():
            return PruneResult((), 0, 0, 0)
        paths.make_folders()
        former = {entry.key for entry in self.divided_entries().former}
        with disk.converting_write_errors(self.root), paths.hold_lock("library"):
            entries, total = manifest.read_entries(paths), self.nbytes
            unusable = [entry for entry in entries if entry.error]
            usable = [entry for entry in reversed(entries) if not entry.error]
            order = sorted(usable, key=lambda entry: entry.key not in former)

            def find_unneeded_files(removed_count: int) -> list[Path]:
                kept_entries = unusable + order[removed_count:]
                return list_unneeded_files(paths, kept_entries, order[:removed_count])

            def fits_limit(removed_count: int) -> bool:
                freed = sum(map(disk.file_size, find_unneeded_files(removed_count)))
                return max_bytes is None or total - freed <= max_bytes

            count = first = sum(entry.key in former for entry in order)
            if not fits_limit(first) and first < len(order):
                _refuse_unusable(unusable)
                count += bisect_left(range(first, len(order)), True, key=fits_limit)
            files, leftovers = find_unneeded_files(count), len(find_unneeded_files(0))
            freed = sum(map(disk.file_size, files))
            if not dry_run:
                delete_files(paths, sorted(files, key=lambda path: path.suffix != ".doc"))
        if not dry_run:
            self._change_catalogue(Catalogue.remove_unused_records)
        return PruneResult(tuple(order[:count]), leftovers, freed, total - freed, tuple(unusable))

    def _change_catalogue(self, change: Callable[[Catalogue], object]) -> None:
        try:
            with self.catalogue() as opened:
                change(opened)
        except EsaError:
            if catalogue.catalogue_path(self._paths).exists():
                raise


def _refuse_unusable(unusable: Sequence[Entry]) -> None:
    if unusable:
        ids = " ".join(entry.id for entry in unusable)
        raise LibraryError(
            f"nothing was removed, because {len(unusable)} documents cannot be used, and every "
            f"segment may belong to them: {unusable[0].damage}",
            f"see the damage with `esa library verify`, or remove them: `esa library rm {ids}`",
        )


def claim_segments(paths: LibraryPaths, key: str, prefixes: list[str]) -> None:
    """Writes a claim, which protects the segments with these prefixes from removal during the
    ingest of a document. Raises LibraryError, DiskError."""
    with disk.converting_write_errors(paths.root), paths.hold_lock("library"):
        disk.write_file(paths.claim_path(key), "claim", json.dumps(prefixes).encode(), key)


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

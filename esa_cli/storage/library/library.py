"""Finds, opens, writes and removes the documents of a library, which is a folder on disk.

Opening a document takes no lock, because a memory-mapped file stays readable after another process
has removed the file. On Windows, an open file cannot be removed. A process that stores a document
locks the document, writes each segment of the KV cache when the segment is full, then the
document's other files, and finally the manifest.

Before the first segment is written, all segments that the document will have are listed in a file
(claim). Only `Library.prune` removes claimed segments, and only if no process is storing the
document. A document's manifest is removed before the document's other files, so that a killed
process never leaves a manifest without files."""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from esa_cli.errors import EsaError, LibraryError, ResourceError
from esa_cli.storage.library import catalogue, disk, document_files
from esa_cli.storage.library.catalogue import Catalogue, PresentAndFormerEntries
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import KVSegmentFile, Layout, LibraryEntry
from esa_cli.system.files import LIBRARY_MARKER
from esa_cli.system.text import digest_text, encode_text

if TYPE_CHECKING:
    from torch import Tensor

Writer = TypeVar("Writer", bound="DocumentWriter")
OTHER_BYTES = 48
"""Largest number of bytes per token for token id, offsets, text and projections together."""


@dataclass(frozen=True)
class PruneResult:
    """The documents that `Library.prune` removed or, as a dry run, would remove."""

    removed: tuple[LibraryEntry, ...]
    leftovers: int  # removed files of killed ingests
    freed: int  # bytes
    left: int  # bytes of the remaining files
    left_alone: tuple[LibraryEntry, ...] = ()  # unusable documents, which are not removed


class StoredDocument:
    """A stored document opened for questions, with memory-mapped KV cache and `token_ids` (n,), and
    the first character and the end of each token in `offsets` (n, 2). Raises LibraryError: a file
    is missing or damaged."""

    def __init__(self, paths: LibraryPaths, entry: LibraryEntry) -> None:
        from esa_cli.storage.library.packed_files import unpack_tokens

        self.paths, self.entry, key = paths, entry, entry.key
        self.text = document_files.read_document_text(paths, entry)
        path = paths.get_document_path(key, "tokens")
        payload = disk.read_checksummed_file(path, key, entry.digests["tokens"])
        self.token_ids, self.offsets = unpack_tokens(payload)
        self.segments = [
            KVSegmentFile(path, entry.layout, entry.count_segment_tokens(i), key)
            for i, path in enumerate(map(paths.get_segment_path, entry.segments))
        ]

    def read_encoded_first_layer(self) -> Tensor:
        """Returns the stored bytes of the first layer, one row per token. Raises LibraryError."""
        import torch

        layers = [document_files.KVSegmentLayer(one, 0) for one in self.segments]
        return torch.cat([one.read_encoded_tokens(0, len(one)) for one in layers])


class DocumentWriter:
    """Writes the files of a document while `Library.open_writer` locks the document. `wrote` says
    whether a file was written."""

    def __init__(
        self, paths: LibraryPaths, key: str, identity: str, ids: Sequence[int], layout: Layout
    ) -> None:
        self.paths, self.key, self.identity = paths, key, identity
        self.ids, self.layout, self.wrote = ids, layout, False
        self._prefixes = document_files.compute_segment_hashes(identity, ids, layout)
        protect_segments(paths, key, self._prefixes)
        self._fit = document_files.NO_FIT
        self.segments = self._open_segments_on_disk()

    @property
    def stored_token_count(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    def _open_segments_on_disk(self) -> list[KVSegmentFile]:
        """Opens the segments of the document's KV cache, up to the first incomplete segment."""
        hashes = self._prefixes[: len(self.ids) // self.layout.segment]
        return self._open_usable_segments(hashes, document_files.NO_FIT)

    def _open_usable_segments(
        self, segment_hashes: Sequence[str], projections_hash: str
    ) -> list[KVSegmentFile]:
        """Opens segment files up to the first damaged file."""
        segments = list[KVSegmentFile]()
        with suppress(LibraryError):
            for i, token_hash in enumerate(segment_hashes):
                count = min(self.layout.segment, len(self.ids) - i * self.layout.segment)
                name = f"{token_hash}-{projections_hash}"
                segments.append(self._open_checked_segment(name, count))
        return segments

    def _open_checked_segment(self, segment_name: str, token_count: int) -> KVSegmentFile:
        path = self.paths.get_segment_path(segment_name)
        segment = KVSegmentFile(path, self.layout, token_count, self.key)
        segment.verify_all_bytes()
        return segment

    def write_next_segment(self, layers: Iterable[tuple[Tensor, Tensor | None]]) -> None:
        """Writes the next segment of the document's KV cache, unless another document with the same
        first tokens has stored it: each layer's keys and values (n, width) and reduced keys (n, R)
        of n tokens, `layout.segment` except in the last segment. Raises LibraryError, DiskError."""
        count = min(self.layout.segment, len(self.ids) - self.stored_token_count)
        name = f"{self._prefixes[len(self.segments)]}-{self._fit}"
        try:
            segment = self._open_checked_segment(name, count)
        except LibraryError:
            path = self.paths.get_segment_path(name)
            with disk.convert_write_errors(self.paths.root):
                document_files.write_segment_file(path, self.key, self.layout, count, layers)
            self.wrote, segment = True, KVSegmentFile(path, self.layout, count, self.key)
        self.segments.append(segment)

    def _write_file(self, path: Path, contents: bytes) -> str:
        with disk.convert_write_errors(self.paths.root):
            digest = disk.write_checksummed_file(path, contents, self.key)
        self.wrote = True
        return digest

    def _make_missing_tokens_error(self) -> ValueError:
        return ValueError(f"all {len(self.ids)} tokens must have keys, values and offsets")

    def finish_document(
        self, *, text: str, offsets: Sequence[tuple[int, int]] | Tensor, marks: Sequence[Any] = (),
        head: int = 0, provenance: dict[str, Any] | None = None,
    ) -> LibraryEntry:  # fmt: skip
        """Writes the document's text, tokens and manifest, and returns the document's entry.
        `offsets` (n, 2) are the first character and the end of each token in `text`, `marks` and
        `provenance` JSON data, and `head` the number of the prompt's tokens. Raises ValueError:
        segments or offsets are missing. DiskError: the disk is full."""
        from esa_cli.storage.library.packed_files import pack_tokens

        if not len(self.ids) == self.stored_token_count == len(offsets):
            raise self._make_missing_tokens_error()
        paths, key, names = self.paths, self.key, [one.path.stem for one in self.segments]
        payloads = {"text": encode_text(text), "tokens": pack_tokens(self.ids, offsets)}
        digests = {
            kind: self._write_file(paths.get_document_path(key, kind), payload)
            for kind, payload in payloads.items()
        }
        entry = LibraryEntry(
            key=key, identity=self.identity, layout=self.layout, tokens=len(self.ids), head=head,
            segments=tuple(names), fit=self._fit, digests=digests,
            text_sha256=digest_text(text), characters=len(text), created=round(time.time(), 3),
            marks=tuple(marks), provenance=provenance or {},
        )  # fmt: skip
        files = {kind: paths.get_document_path(key, kind) for kind in entry.unshared_file_suffixes}
        files["fit"] = paths.get_projections_path(self._fit)
        entry.sizes.update((kind, disk.get_file_size(path)) for kind, path in files.items())
        entry.sizes["segments"] = sum(disk.get_file_size(segment.path) for segment in self.segments)
        with disk.convert_write_errors(paths.root), paths.hold_lock("library"):
            document_files.write_manifest(paths, entry)
            paths.get_segment_claim_path(key).unlink()
        paths.mark_document_used(key)
        return document_files.read_manifest(paths, key)


class Library:
    """The documents that esa has stored in the folder `root`, by default `get_library_folder()`."""

    def __init__(self, root: Path | str | None = None) -> None:
        self.root = disk.get_library_folder() if root is None else Path(root)
        self._paths = LibraryPaths(self.root)

    def compute_key(self, prefill_identity: str, text: str) -> str:
        return disk.compute_document_key(prefill_identity, text)

    def find_entry(self, document_key: str) -> LibraryEntry | None:
        """Returns the entry of a document, or None if there is none. Raises LibraryError."""
        self._paths.refuse_folder_without_marker()
        keys = [document_key] if self._paths.has_document(document_key) else []
        for entry in document_files.read_manifests(self._paths, keys):
            entry.raise_error_if_unusable()
            return entry
        return None

    def entries(self) -> list[LibraryEntry]:
        """Returns the present documents, even damaged ones, by last use. Raises LibraryError."""
        return self.list_present_and_former().present

    def list_present_and_former(self) -> PresentAndFormerEntries:
        self._paths.refuse_folder_without_marker()
        entries = document_files.read_manifests(self._paths)
        return catalogue.load_file_record_lookup(self._paths).divide_by_presence(entries)

    def match_entries(self, id_name_or_source: str) -> list[LibraryEntry]:
        """Finds documents by the first digits of their key, at least 4, or else by name or source;
        former documents only if no other matches. Raises LibraryError: the folder is unreadable."""
        paths, wanted = self._paths, id_name_or_source
        paths.refuse_folder_without_marker()
        known = paths.list_document_keys() if len(wanted) > 3 else set()
        keys = [key for key in known if key.startswith(wanted.lower())]
        entries = document_files.read_manifests(paths, keys or None)
        if not keys:
            entries = [one for one in entries if wanted in (one.name, one.provenance.get("source"))]
        present, former = catalogue.load_file_record_lookup(paths).divide_by_presence(entries)
        return present or former

    def list_text_digests(self) -> set[str]:
        self._paths.refuse_folder_without_marker()
        return set(catalogue.map_text_digests_to_document_keys(self._paths))

    @property
    def nbytes(self) -> int:
        """Number of bytes of all files in the library, except the catalogue's sqlite file."""
        return sum(map(disk.get_file_size, self._paths.list_all_files()))

    @property
    def catalogue_file_size(self) -> int:
        return disk.get_file_size(self._paths.catalogue)

    @property
    def synced_file_count(self) -> int:
        """Number of present files whose text `esa ingest --words` has added to the library."""
        synced = [one for one in catalogue.load_file_records(self._paths) if one.folder]
        is_removed = catalogue.FileRecordLookup(self._paths, synced).is_file_removed
        return sum(bool(record.digest) and not is_removed(record) for record in synced)

    def open_catalogue(self, keep_on_disk: bool = True) -> AbstractContextManager[Catalogue]:
        return catalogue.open_catalogue(self._paths, keep_on_disk)

    def open_search_catalogue(self, always_copy: bool = False) -> AbstractContextManager[Catalogue]:
        return catalogue.open_search_catalogue(self._paths, always_copy)

    def estimate_document_size(self, token_count: int, layout: Layout, state_bytes: int = 0) -> int:
        """Estimates a document's bytes on disk, including `state_bytes` of recurrent states."""
        return layout.compute_segment_bytes(token_count) + OTHER_BYTES * token_count + state_bytes

    @property
    def exists(self) -> bool:
        """Whether the library's folder exists and has the marker file of a library."""
        return (self.root / LIBRARY_MARKER).is_file()

    @property
    def is_writable(self) -> bool:
        """Whether this user may write to the library's folder, or create the folder."""
        return os.access(disk.find_nearest_existing_folder(self.root), os.W_OK)

    @contextmanager
    def open_writer(
        self,
        make_writer: Callable[[LibraryPaths, str, str, Sequence[int], Layout], Writer],
        key: str, identity: str, ids: Sequence[int], layout: Layout,
        on_wait: Callable[[], None] | None = None, state_bytes: int = 0,
    ) -> Iterator[Writer | LibraryEntry]:  # fmt: skip
        """Yields a writer of a document, or the document's entry if another process has stored the
        document. If the `with` block ends without `finish_document`, complete segments stay on
        disk, from which the next ingest resumes. Raises DiskError: the document does not fit on
        the disk. LibraryError: the library cannot be written, or the document is damaged.
        `make_writer` is `DocumentWriter` or, for a KV cache, `KVCacheWriter`. `on_wait` is called
        while another process holds the lock; `state_bytes` is the size of all recurrent states."""
        paths = self._paths
        paths.create_library_folders()
        with paths.hold_lock(key, on_wait):
            entry = self.find_entry(key)
            if entry is None:
                was_claimed = paths.get_segment_claim_path(key).exists()
                writer = make_writer(paths, key, identity, ids, layout)
                try:
                    size = self.estimate_document_size(len(ids), layout, state_bytes)
                    size -= layout.compute_segment_bytes(writer.stored_token_count)
                    disk.require_free_disk_space(self.root, size)
                    yield writer
                finally:
                    if not (writer.wrote or was_claimed):
                        with suppress(OSError):
                            paths.get_segment_claim_path(key).unlink()
        if entry is not None:
            yield entry

    def open_document(self, entry: LibraryEntry) -> StoredDocument:
        """Opens a document for questions, which counts as its last use. Raises LibraryError."""
        entry.raise_error_if_unusable()
        stored = StoredDocument(self._paths, entry)
        self._paths.mark_document_used(entry.key)
        return stored

    def text(self, entry: LibraryEntry) -> str:
        """Returns a document's text. Raises LibraryError: the text is missing or damaged."""
        entry.raise_error_if_unusable()
        return document_files.read_document_text(self._paths, entry)

    def read_word_index(self, entry: LibraryEntry) -> bytes | None:
        """Returns the bytes of a document's stored word index, or None if the index is missing."""
        path, owner = self._paths.get_document_path(entry.key, "words"), f"{entry.key}\n".encode()
        try:
            payload = disk.read_checksummed_file(path, "")
        except LibraryError:
            return None
        return payload.removeprefix(owner) if payload.startswith(owner) else None

    def store_word_index(self, entry: LibraryEntry, payload: bytes) -> None:
        """Stores a document's word index, unless another process holds the document's lock."""
        path, owner = self._paths.get_document_path(entry.key, "words"), f"{entry.key}\n".encode()
        lock = self._paths.hold_lock(entry.key, disk.refuse_to_wait_for_lock)
        with suppress(LibraryError, ResourceError, OSError), lock:
            if self._paths.has_document(entry.key):
                disk.write_checksummed_file(path, owner + payload, entry.key)

    def verify(self, entry: LibraryEntry) -> list[LibraryError]:
        """Checks every byte of a document's files, and returns an error for each damaged file."""
        from esa_cli.storage.library.packed_files import verify_document_file

        if entry.error:
            return [entry.error]
        manifest, errors = self._paths.get_document_path(entry.key), list[LibraryError]()
        for path in [manifest, *document_files.list_document_files(self._paths, entry)]:
            try:
                if path == manifest:
                    document_files.read_manifest(self._paths, entry.key)
                else:
                    verify_document_file(path, entry)
            except LibraryError as error:
                errors.append(error)
        return errors

    def remove(self, entry: LibraryEntry) -> int:
        """Removes the files that only this document needs, and returns the bytes freed."""
        paths = self._paths
        paths.create_library_folders()
        with disk.convert_write_errors(self.root), paths.hold_lock("library"):
            others = [one for one in document_files.read_manifests(paths) if one.key != entry.key]
            is_needed = make_needed_file_filter(paths, others, with_abandoned_claims=True)
            segments = map(paths.get_segment_path, entry.segments)
            shared = [paths.get_projections_path(entry.fit), *segments]
            if entry.error:
                folders = ("segments", "fits")
                shared = [path for name in folders for path in paths.list_complete_files(name)]
            files = [paths.get_document_path(entry.key, kind) for kind in disk.KINDS]
            freed = delete_files(paths, files + [path for path in shared if not is_needed(path)])
        self._apply_catalogue_change(Catalogue.remove_unused_texts)
        return freed

    def prune(self, max_bytes: int | None = None, *, dry_run: bool = False) -> PruneResult:
        """Removes documents whose text no file has now, files that killed processes left and, if
        the library is still larger than `max_bytes`, the least recently used documents. Raises
        LibraryError: a damaged document prevents removals, or a file cannot be removed."""
        paths = self._paths
        if not self.root.exists():
            return PruneResult((), 0, 0, 0)
        paths.create_library_folders()
        former_keys = {entry.key for entry in self.list_present_and_former().former}
        with disk.convert_write_errors(self.root), paths.hold_lock("library"):
            entries, total = document_files.read_manifests(paths), self.nbytes
            unusable = [entry for entry in entries if entry.error]
            usable = [entry for entry in reversed(entries) if not entry.error]
            order = sorted(usable, key=lambda entry: entry.key not in former_keys)

            def find_unneeded_files(removed_document_count: int) -> list[Path]:
                remaining_entries = unusable + order[removed_document_count:]
                return list_unneeded_files(paths, remaining_entries, order[:removed_document_count])

            def fits_size_limit(removed_document_count: int) -> bool:
                freed = sum(map(disk.get_file_size, find_unneeded_files(removed_document_count)))
                return max_bytes is None or total - freed <= max_bytes

            count = former_count = sum(entry.key in former_keys for entry in order)
            if not fits_size_limit(former_count) and former_count < len(order):
                _refuse_unusable_documents(unusable)
                count += bisect_left(range(former_count, len(order)), True, key=fits_size_limit)
            files, leftovers = find_unneeded_files(count), len(find_unneeded_files(0))
            freed = sum(map(disk.get_file_size, files))
            if not dry_run:
                delete_files(paths, sorted(files, key=lambda path: path.suffix != ".doc"))
        if not dry_run:
            self._apply_catalogue_change(Catalogue.remove_unused_contents)
        return PruneResult(tuple(order[:count]), leftovers, freed, total - freed, tuple(unusable))

    def _apply_catalogue_change(self, change: Callable[[Catalogue], object]) -> None:
        try:
            with self.open_catalogue() as opened:
                change(opened)
        except EsaError:
            if self._paths.catalogue.exists():
                raise


def protect_segments(paths: LibraryPaths, document_key: str, segment_hashes: list[str]) -> None:
    """Writes a claim, which keeps segments while a document is stored. Raises LibraryError."""
    with disk.convert_write_errors(paths.root), paths.hold_lock("library"):
        path = paths.get_segment_claim_path(document_key)
        disk.write_checksummed_file(path, json.dumps(segment_hashes).encode(), document_key)


def _refuse_unusable_documents(unusable: Sequence[LibraryEntry]) -> None:
    if unusable:
        ids = " ".join(entry.id for entry in unusable)
        raise LibraryError(
            f"nothing was removed, because {len(unusable)} documents cannot be used, and may need "
            f"the files of other documents: {unusable[0].damage_reason}",
            f"see `esa library verify`, or remove the unusable documents: `esa library rm {ids}`",
        )


def make_needed_file_filter(
    paths: LibraryPaths, entries: Sequence[LibraryEntry], *, with_abandoned_claims: bool
) -> Callable[[Path], bool]:
    """Returns a function that says whether a file of segments or projections is needed by one of
    the documents `entries`, or by a document that is being stored. The caller must hold the
    library's lock. If `with_abandoned_claims`, claims of killed processes count."""
    segments = {name for entry in entries for name in entry.segments}
    fits, prefixes = {entry.fit for entry in entries}, set[str]()
    needs_unknown, is_ingesting = any(entry.error for entry in entries), False
    for path in paths.list_complete_files("claims"):
        is_live = paths.is_lock_held(path.stem)
        is_ingesting = is_ingesting or is_live
        if is_live or with_abandoned_claims:
            try:
                prefixes.update(json.loads(disk.read_checksummed_file(path, path.stem)))
            except LibraryError:
                needs_unknown = True

    def is_file_needed(path: Path) -> bool:
        if path.suffix == ".fit":
            # An ingest writes its projections before the first segment that names them.
            return needs_unknown or is_ingesting or path.stem in fits
        segment_hash = document_files.extract_segment_hash(path.stem)
        return needs_unknown or path.stem in segments or segment_hash in prefixes

    kept = filter(is_file_needed, paths.list_complete_files("segments"))
    fits |= {path.stem.partition("-")[2] for path in kept}
    return is_file_needed


def list_unneeded_files(
    paths: LibraryPaths, kept: Sequence[LibraryEntry], removed: Sequence[LibraryEntry]
) -> list[Path]:
    """Returns the library's files that neither the kept documents nor a running ingest need."""
    is_file_needed = make_needed_file_filter(paths, kept, with_abandoned_claims=False)
    is_locked = cache(paths.is_lock_held)
    kept_keys, removed_keys = ({entry.key for entry in kept}, {entry.key for entry in removed})

    def is_file_kept(path: Path) -> bool:
        if path.suffix == ".part":
            return is_locked(path.name.split(".")[-2])
        if path.suffix in (".seg", ".fit"):
            return is_file_needed(path)
        if path.parent == paths.documents and path.stem in kept_keys | removed_keys:
            return path.stem in kept_keys
        return path.suffix == ".folder" or is_locked(path.stem)

    return [path for path in paths.list_all_files() if not is_file_kept(path)]


def delete_files(paths: LibraryPaths, files: Sequence[Path]) -> int:
    """Deletes files of a library in the given order, and returns the number of bytes freed."""
    freed = 0
    for path in files:
        freed += disk.get_file_size(path)
        path.unlink(missing_ok=True)
        if path.suffix == ".doc":
            disk.flush_folder_to_disk(paths.documents)
    for folder in {path.parent for path in files}:
        disk.flush_folder_to_disk(folder)
    return freed

"""The library: documents stored in a folder, how each is found, opened, written and removed.

Opening a document takes no lock: a mapped file may be removed, except on Windows, where `remove`
fails. An ingest holds the document's lock. It writes each segment when it is full, then the
document's other files, and finally the manifest. Every file is written atomically, so a killed
ingest leaves nothing, complete segments to resume from, or a complete document.

Before an ingest writes its first segment, it claims the names of all segments that its document
will have. No process removes claimed segments while the ingest holds the document's lock;
afterwards `prune` does. A document's manifest is removed before its other files, so that a killed
process never leaves a manifest without files. A document that cannot be used may need any segment
that no other document names, so unclaimed segments stay until the document is removed.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from esa_cli.errors import EsaError, LibraryError, ResourceError
from esa_cli.storage.library import catalogue, disk, document_files
from esa_cli.storage.library.catalogue import Catalogue, PresentAndFormerEntries
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import NO_FIT, Entry, Layout, Segment, SegmentLayer
from esa_cli.system.text import digest_text, encode_text

if TYPE_CHECKING:
    from torch import Tensor

Writer = TypeVar("Writer", bound="DocumentWriter")
OTHER_BYTES = 48
"""Largest number of bytes per token beside its KV cache: id, offsets, text and projections."""


@dataclass(frozen=True)
class PruneResult:
    """The result of pruning a library: which documents are removed, and how many bytes are freed.

    Args:
        leftovers: number of files that killed ingests left behind. left: bytes of all other files.
        left_alone: documents that cannot be used and that were not removed."""

    removed: tuple[Entry, ...]
    leftovers: int
    freed: int
    left: int
    left_alone: tuple[Entry, ...] = ()


class StoredDocument:
    """A stored document opened for questions, with its segments memory-mapped. Raises LibraryError:
    a file of the document is missing, damaged or of another format.

    Attributes:
        offsets: the first character and the end in `text` of each of the n tokens (n, 2)."""

    def __init__(self, paths: LibraryPaths, entry: Entry) -> None:
        from esa_cli.storage.library.packed_files import unpack_tokens

        self.paths, self.entry, key = paths, entry, entry.key
        self.text = document_files.read_document_text(paths, entry)
        path = paths.get_document_path(key, "tokens")
        payload = disk.read_checksummed_file(path, "tokens", key, entry.digests["tokens"])
        self._ids, self.offsets = unpack_tokens(payload)
        self.segments = [
            Segment(paths.get_segment_path(name), entry.layout, entry.count_segment_tokens(i), key)
            for i, name in enumerate(entry.segments)
        ]

    @cached_property
    def ids(self) -> list[int]:
        """All token ids of the document, as a list."""
        return list(self._ids.tolist())

    def read_records(self, layer: int = 0) -> Tensor:
        """Returns the stored bytes (n, row_bytes) of one layer's keys and values. Raises
        LibraryError: the bytes are damaged."""
        import torch

        layers = [SegmentLayer(segment, layer) for segment in self.segments]
        return torch.cat([one.read_records(0, len(one)) for one in layers])


class DocumentWriter:
    """Writes a document's files during its ingest. `Library.open_writer` makes a writer while the
    method holds the document's lock and claim.

    Attributes:
        segments: the document's segments on disk, which documents with the same beginning share.
        wrote: whether the writer has written a file. is_finished: whether the document exists."""

    def __init__(
        self, paths: LibraryPaths, key: str, identity: str, ids: Sequence[int], layout: Layout,
        prefixes: Sequence[str],
    ) -> None:  # fmt: skip
        self.paths, self.key, self.identity = paths, key, identity
        self.ids, self.layout, self._prefixes = ids, layout, prefixes
        self.wrote = self.is_finished = False
        self._fit = NO_FIT
        self.segments = self._find_segments_on_disk()

    @property
    def stored_token_count(self) -> int:
        """Number of the document's first tokens that are on disk."""
        return sum(segment.tokens for segment in self.segments)

    def _find_segments_on_disk(self) -> list[Segment]:
        """Returns the document's first segments, up to the first that is not complete on disk."""
        return self._open_segments(self._prefixes[: len(self.ids) // self.layout.segment], NO_FIT)

    def _open_segments(self, prefixes: Sequence[str], fit: str) -> list[Segment]:
        """Opens the segments whose names begin with `prefixes`, up to the first unusable one."""
        segments = list[Segment]()
        with suppress(LibraryError):
            for i, prefix in enumerate(prefixes):
                count = min(self.layout.segment, len(self.ids) - i * self.layout.segment)
                segments.append(self._open_checked_segment(f"{prefix}-{fit}", count))
        return segments

    def _open_checked_segment(self, name: str, tokens: int) -> Segment:
        segment = Segment(self.paths.get_segment_path(name), self.layout, tokens, self.key)
        segment.check_all_bytes()
        return segment

    def write_next_segment(self, layers: Iterable[tuple[Tensor, Tensor | None]]) -> None:
        """Writes the next segment, unless a document that begins alike has stored the same. Raises
        LibraryError, DiskError: the disk is full; complete segments stay on disk.

        Args:
            layers: the rows (n, width) and the reduced keys (n, R) of its n tokens, for each
                layer. All segments but the last have `layout.segment` tokens."""
        count = min(self.layout.segment, len(self.ids) - self.stored_token_count)
        name = f"{self._prefixes[len(self.segments)]}-{self._fit}"
        try:
            segment = self._open_checked_segment(name, count)
        except LibraryError:
            path = self.paths.get_segment_path(name)
            with disk.converting_write_errors(self.paths.root):
                document_files.write_segment_file(path, self.key, self.layout, count, layers)
            self.wrote, segment = True, Segment(path, self.layout, count, self.key)
        self.segments.append(segment)

    def _write_file(self, path: Path, payload: bytes) -> str:
        with disk.converting_write_errors(self.paths.root):
            digest = disk.write_checksummed_file(path, path.suffix[1:], payload, self.key)
        self.wrote = True
        return digest

    def _make_missing_tokens_error(self) -> ValueError:
        return ValueError(f"all {len(self.ids)} tokens must have keys, values and offsets")

    def finish_document(
        self, *, text: str, offsets: Sequence[tuple[int, int]] | Tensor, marks: Sequence[Any] = (),
        head: int = 0, provenance: dict[str, Any] | None = None,
    ) -> Entry:  # fmt: skip
        """Writes the files of text and tokens and the manifest, and returns the new entry. Raises
        ValueError: segments or offsets are missing. DiskError: the disk is full.

        Args:
            text: the document's text. offsets: first character and end of each token (n, 2).
            marks, provenance: JSON data for the manifest. head: number of tokens of the prompt."""
        from esa_cli.storage.library.packed_files import pack_tokens

        if not len(self.ids) == self.stored_token_count == len(offsets):
            raise self._make_missing_tokens_error()
        paths, key, names = self.paths, self.key, [one.path.stem for one in self.segments]
        payloads = {"text": encode_text(text), "tokens": pack_tokens(self.ids, offsets)}
        digests = {
            kind: self._write_file(paths.get_document_path(key, kind), payload)
            for kind, payload in payloads.items()
        }
        entry = Entry(
            key=key, identity=self.identity, layout=self.layout, tokens=len(self.ids), head=head,
            segments=tuple(names), fit=self._fit, digests=digests,
            text_sha256=digest_text(text), characters=len(text), created=round(time.time(), 3),
            marks=tuple(marks), provenance=provenance or {},
        )  # fmt: skip
        files = {kind: paths.get_document_path(key, kind) for kind in entry.file_kinds}
        files["fit"] = paths.get_projections_path(self._fit)
        entry.sizes.update((kind, disk.get_file_size(path)) for kind, path in files.items())
        entry.sizes["segments"] = sum(disk.get_file_size(segment.path) for segment in self.segments)
        with disk.converting_write_errors(paths.root), paths.hold_lock("library"):
            document_files.write_manifest(paths, entry)
            paths.get_claim_path(key).unlink()
        paths.mark_document_used(key)
        self.is_finished = True
        return document_files.read_manifest(paths, key)


class Library:
    """The stored documents in one folder. The constructor changes nothing on disk.

    Args:
        root: the folder; None takes $ESA_LIBRARY or, if it is unset, the user's data folder."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = disk.get_library_folder() if root is None else root
        self._paths = LibraryPaths(self.root)

    def compute_key(self, identity: str, text: str) -> str:
        """Returns the key of a text; `identity` names the model and settings of its prefill."""
        return disk.compute_document_key(identity, text)

    def find_entry(self, key: str) -> Entry | None:
        """Returns the entry of the document `key`, or None. Raises LibraryError: its manifest is
        damaged or of another format, the folder cannot be read, or the folder is not a library."""
        self._paths.check_is_library()
        keys = [key] if self._paths.has_document(key) else []
        for entry in document_files.read_entries(self._paths, keys):
            entry.raise_if_unusable()
            return entry
        return None

    def entries(self) -> list[Entry]:
        """Returns the stored documents, even damaged ones, without those whose file was removed or
        changed, the most recently used first. Raises LibraryError: the folder is no library."""
        return self.divide_present_and_former().present

    def divide_present_and_former(self) -> PresentAndFormerEntries:
        """Divides stored documents into present ones and former ones, whose text no file has."""
        self._paths.check_is_library()
        entries = document_files.read_entries(self._paths)
        return catalogue.load_recorded_files(self._paths).divide_present_and_former(entries)

    def match_entries(self, id_name_or_source: str) -> list[Entry]:
        """Returns the documents whose key begins with `id_name_or_source` (at least 4 digits), or
        else those with this name or source. Former documents, whose text no file has, are returned
        only if no other matches. Raises LibraryError: the folder is unreadable or no library."""
        paths, wanted = self._paths, id_name_or_source
        paths.check_is_library()
        known = paths.list_document_keys() if len(wanted) > 3 else set()
        keys = [key for key in known if key.startswith(wanted.lower())]
        entries = document_files.read_entries(paths, keys or None)
        if not keys:
            entries = [one for one in entries if wanted in (one.name, one.provenance.get("source"))]
        present, former = catalogue.load_recorded_files(paths).divide_present_and_former(entries)
        return present or former

    def list_text_digests(self) -> set[str]:
        """Returns the digest of every document's text. Raises LibraryError."""
        self._paths.check_is_library()
        return set(catalogue.map_text_digests_to_keys(self._paths))

    @property
    def nbytes(self) -> int:
        """Number of bytes of all files in the library, except the sqlite file of its catalogue."""
        return sum(map(disk.get_file_size, self._paths.list_all_files()))

    @property
    def catalogue_bytes(self) -> int:
        return disk.get_file_size(catalogue.get_catalogue_path(self._paths))

    @property
    def synced_file_count(self) -> int:
        """Number of files that `esa ingest --words` has added to the library."""
        records = catalogue.load_file_records(self._paths)
        return sum(bool(record.folder and record.digest) for record in records)

    def open_catalogue(self, keep_on_disk: bool = True) -> AbstractContextManager[Catalogue]:
        """Opens the library's catalogue, or, if not `keep_on_disk`, an empty one in memory."""
        return catalogue.open_catalogue(self._paths, keep_on_disk)

    def open_search_catalogue(self, always_copy: bool = False) -> AbstractContextManager[Catalogue]:
        """Opens the catalogue, or a copy of a read-only catalogue. Raises LibraryError."""
        return catalogue.open_search_catalogue(self._paths, always_copy)

    def estimate_document_size(self, tokens: int, layout: Layout, states: int = 0) -> int:
        """Estimates the bytes on disk of a document; `states` are the bytes of recurrent states."""
        return layout.nbytes(tokens) + OTHER_BYTES * tokens + states

    @property
    def exists(self) -> bool:
        """Whether the folder exists and is a library."""
        return (self.root / disk.MARKER).is_file()

    @property
    def is_writable(self) -> bool:
        """Whether this user may write to the library's folder, or create the folder."""
        return os.access(disk.find_nearest_existing_folder(self.root), os.W_OK)

    @contextmanager
    def open_writer(
        self,
        make_writer: Callable[[LibraryPaths, str, str, Sequence[int], Layout, list[str]], Writer],
        key: str, identity: str, ids: Sequence[int], layout: Layout,
        on_wait: Callable[[], None] | None = None, states: int = 0,
    ) -> Iterator[Writer | Entry]:  # fmt: skip
        """Yields a new writer, or the document if another process has stored the document. If the
        block does not call `finish_document`, the next ingest resumes from the whole segments.

        Args:
            make_writer: `DocumentWriter` or, for a KV cache, `CacheWriter`.
            ids: all token ids. on_wait: called while another process holds the document's lock.
            states: see `estimate_document_size`.

        Raises:
            DiskError: the document does not fit on the disk. LibraryError: the library cannot be
                written, or the document exists and is damaged."""
        paths = self._paths
        paths.create_library_folders()
        with paths.hold_lock(key, on_wait):
            entry = self.find_entry(key)
            if entry is None:
                prefixes = document_files.compute_segment_prefixes(identity, ids, layout)
                was_claimed = paths.get_claim_path(key).exists()
                claim_segments(paths, key, prefixes)
                writer = make_writer(paths, key, identity, ids, layout, prefixes)
                try:
                    size = self.estimate_document_size(len(ids), layout, states)
                    size -= layout.nbytes(writer.stored_token_count)
                    disk.check_free_disk_space(self.root, size)
                    yield writer
                finally:
                    if not (writer.is_finished or writer.wrote or was_claimed):
                        with suppress(OSError):
                            paths.get_claim_path(key).unlink()
        if entry is not None:
            yield entry

    def open_document(self, entry: Entry) -> StoredDocument:
        """Opens a document for questions and sets its time of last use. Raises LibraryError: a
        file of the document is missing, damaged or of another format."""
        entry.raise_if_unusable()
        stored = StoredDocument(self._paths, entry)
        self._paths.mark_document_used(entry.key)
        return stored

    def text(self, entry: Entry) -> str:
        """Returns a document's text. Raises LibraryError: the text is missing or damaged."""
        entry.raise_if_unusable()
        return document_files.read_document_text(self._paths, entry)

    def read_word_index(self, entry: Entry) -> bytes | None:
        """Returns a document's stored word index as bytes, or None if no usable index is stored."""
        path, owner = self._paths.get_document_path(entry.key, "words"), f"{entry.key}\n".encode()
        try:
            payload = disk.read_checksummed_file(path, "words", "")
        except LibraryError:
            return None
        return payload.removeprefix(owner) if payload.startswith(owner) else None

    def store_word_index(self, entry: Entry, payload: bytes) -> None:
        """Stores a document's word index, unless another process holds the document's lock or the
        library cannot be written."""
        path, owner = self._paths.get_document_path(entry.key, "words"), f"{entry.key}\n".encode()
        with (
            suppress(LibraryError, ResourceError, OSError),
            self._paths.hold_lock(entry.key, disk.refuse_to_wait_for_lock),
        ):
            if self._paths.has_document(entry.key):
                disk.write_checksummed_file(path, "words", owner + payload, entry.key)

    def verify(self, entry: Entry) -> list[LibraryError]:
        """Checks every byte of a document's files, and returns an error for each damaged file."""
        from esa_cli.storage.library.packed_files import check_document_file

        if entry.error:
            return [entry.error]
        manifest, errors = self._paths.get_document_path(entry.key), list[LibraryError]()
        for path in [manifest, *document_files.list_needed_files(self._paths, entry)]:
            try:
                if path == manifest:
                    document_files.read_manifest(self._paths, entry.key)
                else:
                    check_document_file(path, path, entry)
            except LibraryError as error:
                errors.append(error)
        return errors

    def remove(self, entry: Entry) -> int:
        """Removes a document, except segments that other documents may need, and returns the bytes
        freed. Raises LibraryError, DiskError: a file or the catalogue cannot be changed."""
        paths = self._paths
        paths.create_library_folders()
        with disk.converting_write_errors(self.root), paths.hold_lock("library"):
            others = [one for one in document_files.read_entries(paths) if one.key != entry.key]
            is_needed = make_needed_filter(paths, others, with_abandoned_claims=True)
            segments = map(paths.get_segment_path, entry.segments)
            shared = [paths.get_projections_path(entry.fit), *segments]
            if entry.error:
                folders = ("segments", "fits")
                shared = [path for name in folders for path in paths.list_finished_files(name)]
            files = [paths.get_document_path(entry.key, kind) for kind in disk.KINDS]
            freed = delete_files(paths, files + [path for path in shared if not is_needed(path)])
        self._change_catalogue(Catalogue.drop_unused_texts)
        return freed

    def prune(self, max_bytes: int | None = None, *, dry_run: bool = False) -> PruneResult:
        """Removes former documents and the leftovers of killed ingests. With `max_bytes`, also
        removes the least recently used documents until the library takes at most that number of
        bytes. Raises LibraryError: the limit needs removals, and a document is damaged; or a file
        cannot be removed."""
        paths = self._paths
        if not self.root.exists():
            return PruneResult((), 0, 0, 0)
        paths.create_library_folders()
        former_keys = {entry.key for entry in self.divide_present_and_former().former}
        with disk.converting_write_errors(self.root), paths.hold_lock("library"):
            entries, total = document_files.read_entries(paths), self.nbytes
            unusable = [entry for entry in entries if entry.error]
            usable = [entry for entry in reversed(entries) if not entry.error]
            order = sorted(usable, key=lambda entry: entry.key not in former_keys)

            def find_unneeded_files(removed_count: int) -> list[Path]:
                remaining_entries = unusable + order[removed_count:]
                return list_unneeded_files(paths, remaining_entries, order[:removed_count])

            def fits_limit(removed_count: int) -> bool:
                freed = sum(map(disk.get_file_size, find_unneeded_files(removed_count)))
                return max_bytes is None or total - freed <= max_bytes

            count = former_count = sum(entry.key in former_keys for entry in order)
            if not fits_limit(former_count) and former_count < len(order):
                _refuse_unusable_documents(unusable)
                count += bisect_left(range(former_count, len(order)), True, key=fits_limit)
            files, leftovers = find_unneeded_files(count), len(find_unneeded_files(0))
            freed = sum(map(disk.get_file_size, files))
            if not dry_run:
                delete_files(paths, sorted(files, key=lambda path: path.suffix != ".doc"))
        if not dry_run:
            self._change_catalogue(Catalogue.remove_unused_records)
        return PruneResult(tuple(order[:count]), leftovers, freed, total - freed, tuple(unusable))

    def _change_catalogue(self, change: Callable[[Catalogue], object]) -> None:
        try:
            with self.open_catalogue() as opened:
                change(opened)
        except EsaError:
            if catalogue.get_catalogue_path(self._paths).exists():
                raise


def claim_segments(paths: LibraryPaths, key: str, prefixes: list[str]) -> None:
    """Writes a claim, a file that protects the segments whose names begin with `prefixes` from
    removal during the ingest of the document `key`. Raises LibraryError, DiskError."""
    with disk.converting_write_errors(paths.root), paths.hold_lock("library"):
        claim = json.dumps(prefixes).encode()
        disk.write_checksummed_file(paths.get_claim_path(key), "claim", claim, key)


def _refuse_unusable_documents(unusable: Sequence[Entry]) -> None:
    if unusable:
        ids = " ".join(entry.id for entry in unusable)
        raise LibraryError(
            f"nothing was removed, because {len(unusable)} documents cannot be used, and every "
            f"segment may belong to them: {unusable[0].damage}",
            f"see the damage with `esa library verify`, or remove them: `esa library rm {ids}`",
        )


def make_needed_filter(
    paths: LibraryPaths, entries: Iterable[Entry], *, with_abandoned_claims: bool
) -> Callable[[Path], bool]:
    """Returns a function that says whether a stored document or a running ingest needs the segment
    or projections in a file. The caller holds the library's lock.

    Args:
        entries: the documents. with_abandoned_claims: whether claims of killed ingests count."""
    entries = list(entries)
    segments = {name for entry in entries for name in entry.segments}
    fits, prefixes = {entry.fit for entry in entries}, set[str]()
    needs_unknown, is_ingesting = any(entry.error for entry in entries), False
    for path in paths.list_finished_files("claims"):
        is_live = paths.is_lock_held(path.stem)
        is_ingesting = is_ingesting or is_live
        if is_live or with_abandoned_claims:
            try:
                prefixes.update(json.loads(disk.read_checksummed_file(path, "claim", path.stem)))
            except LibraryError:
                needs_unknown = True

    def is_needed(path: Path) -> bool:
        if path.suffix == ".fit":
            # An ingest writes its projections before the first segment that names them.
            return needs_unknown or is_ingesting or path.stem in fits
        return (
            needs_unknown
            or path.stem in segments
            or document_files.extract_segment_prefix(path.stem) in prefixes
        )

    kept = filter(is_needed, paths.list_finished_files("segments"))
    fits |= {path.stem.partition("-")[2] for path in kept}
    return is_needed


def list_unneeded_files(
    paths: LibraryPaths, kept_entries: Sequence[Entry], removed_entries: Sequence[Entry]
) -> list[Path]:
    """Returns the library's files that neither the kept documents nor a running ingest need."""
    is_needed = make_needed_filter(paths, kept_entries, with_abandoned_claims=False)
    is_locked = cache(paths.is_lock_held)
    kept_keys = {entry.key for entry in kept_entries}
    removed_keys = {entry.key for entry in removed_entries}

    def is_file_kept(path: Path) -> bool:
        if path.suffix == ".part":
            return is_locked(path.name.split(".")[-2])
        if path.suffix in (".seg", ".fit"):
            return is_needed(path)
        if path.parent == paths.documents and path.stem in kept_keys | removed_keys:
            return path.stem in kept_keys
        return path.suffix == ".folder" or is_locked(path.stem)

    return [path for path in paths.list_all_files() if not is_file_kept(path)]


def delete_files(paths: LibraryPaths, files: Sequence[Path]) -> int:
    """Deletes files in the given order, and returns the number of bytes freed."""
    freed = 0
    for path in files:
        size = disk.get_file_size(path)
        path.unlink(missing_ok=True)
        freed += size
        if path.suffix == ".doc":
            disk.flush_folder_to_disk(paths.documents)
    for folder in {path.parent for path in files}:
        disk.flush_folder_to_disk(folder)
    return freed

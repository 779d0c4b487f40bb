"""The library: prefilled documents on disk, found by their text.

Readers take no lock: a mapped file may be removed (except on Windows, where `remove` fails). Before
an ingest writes its first segment, it claims the names of all segments that its document will have.
While the ingest holds the document's lock nothing removes these; afterwards `prune` does. A
manifest is removed first, so that a kill never leaves a document without its files. A document that
cannot be used may need any segment that no other names: such segments stay until it is removed.
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
from esa_cli.storage.library.manifest import Entry, Layout, prefix_of

if TYPE_CHECKING:
    import torch

    from esa_cli.storage.library.stored_document import StoredDocument, Writer

OTHER_BYTES = 48
"""Upper bound of a token's bytes beside its rows: id and offsets (24), text, projections."""


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


class Library:
    """The documents below one folder; the constructor changes nothing on disk.

    Args:
        root: None takes $ESA_LIBRARY, else the user's data folder.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = disk.default_root() if root is None else root
        self._paths = LibraryPaths(self.root)

    def key(self, identity: str, text: str) -> str:
        """Returns the key of a text that was prefilled with what `identity` names."""
        return manifest.document_key(identity, text)

    def find(self, key: str) -> Entry | None:
        """Returns the document with that key, or None. Raises LibraryError: its manifest is damaged
        or of another format, or the folder may not be read, or is no library."""
        self._paths.check()
        is_stored = manifest.has_document(self._paths, key)
        entries = manifest.read_entries(self._paths, [key] if is_stored else [])
        for entry in entries:
            entry.check()
        return entries[0] if entries else None

    def entries(self) -> list[Entry]:
        """Returns every present document, the most recently used first, also those with an `error`.
        Raises LibraryError: the folder may not be read, or is no library."""
        return self.divided_entries().present

    def divided_entries(self) -> DividedEntries:
        """Returns present and former documents; see `catalogue`. Raises: as `entries`."""
        self._paths.check()
        return catalogue.known_files(self._paths).divide(manifest.read_entries(self._paths))

    def matches(self, text: str) -> list[Entry]:
        """Returns the documents whose key begins with `text`, at least 4 digits, else those with
        this name or source; present documents, else former ones. Raises: as `entries`."""
        paths, prefix = self._paths, text.lower()
        paths.check()
        keys = [
            key for key in manifest.list_keys(paths) if len(text) > 3 and key.startswith(prefix)
        ]
        entries = manifest.read_entries(paths, keys or None)
        if not keys:
            entries = [one for one in entries if text in (one.name, one.provenance.get("source"))]
        present, former = catalogue.known_files(paths).divide(entries)
        return present or former

    def text_digests(self) -> set[str]:
        """Returns the digests of the texts of all documents. Raises: as `entries`."""
        self._paths.check()
        return set(catalogue.stored_keys(self._paths))

    @property
    def nbytes(self) -> int:
        """Bytes of all files in the library, without its catalogue."""
        return sum(map(disk.file_size, self._paths.files()))

    @property
    def catalogue_bytes(self) -> int:
        return disk.file_size(catalogue.catalogue_path(self._paths))

    @property
    def synced_files(self) -> int:
        """Number of files that `esa ingest --words` has put into the library."""
        records = catalogue.read_file_records(self._paths)
        return sum(bool(record.folder and record.digest) for record in records)

    def catalogue(self, keep: bool = True) -> AbstractContextManager[Catalogue]:
        """Opens the catalogue, or an empty one in memory. Raises LibraryError, DiskError."""
        return catalogue.open_catalogue(self._paths, keep)

    def search_catalogue(self, copy: bool = False) -> AbstractContextManager[Catalogue]:
        """Opens the catalogue, or a copy of one that is read-only. Raises LibraryError."""
        return catalogue.search_catalogue(self._paths, copy)

    def size_of(self, tokens: int, layout: Layout, states: int = 0) -> int:
        """Estimated bytes of a document of so many tokens; `states`: bytes of its states."""
        return layout.nbytes(tokens) + OTHER_BYTES * tokens + states

    @property
    def exists(self) -> bool:
        """Whether the folder is a library."""
        return (self.root / disk.MARKER).is_file()

    @property
    def writable(self) -> bool:
        """Whether this user may write the library's folder, or make it."""
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
    ) -> Iterator[Writer | Entry]:
        """Yields a `Writer`, or the document if it exists by now. If the block ends without
        `finish`, whole segments stay, from which the next ingest resumes.

        Args:
            ids: all tokens. waiting: see `LibraryPaths.locked`.
            devices: where each layer's tail is kept; (): the CPU. states: see `size_of`.

        Raises:
            DiskError: the disk lacks room. LibraryError: the library cannot be written, or the
                document exists and is damaged.
        """
        from esa_cli.storage.library.stored_document import Writer

        paths = self._paths
        paths.make()
        with paths.locked(key, waiting):
            entry = self.find(key)
            if entry is None:
                prefixes = manifest.segment_prefixes(identity, ids, layout)
                was_claimed = paths.claim(key).exists()
                claim_segments(paths, key, prefixes)
                writer = Writer(paths, key, identity, ids, layout, prefixes, devices)
                try:
                    size = self.size_of(len(ids), layout, states)
                    disk.check_room(self.root, size - layout.nbytes(writer.done))
                    yield writer
                finally:
                    if not (writer.is_finished or writer.wrote or was_claimed):
                        with suppress(OSError):
                            paths.claim(key).unlink()
        if entry is not None:
            yield entry

    def open(self, entry: Entry) -> StoredDocument:
        """Opens a document for questions and marks it as used. Raises LibraryError: one of its
        files is missing, damaged or of another format."""
        from esa_cli.storage.library.stored_document import StoredDocument

        entry.check()
        stored = StoredDocument(self._paths, entry)
        manifest.mark_used(self._paths, entry.key)
        return stored

    def text(self, entry: Entry) -> str:
        """Returns a document's text. Raises LibraryError: it is missing or damaged."""
        entry.check()
        return manifest.read_text(self._paths, entry)

    def words(self, entry: Entry) -> bytes | None:
        """Returns what `keep_words` stored for a document; None if nothing usable is stored."""
        path, owner = self._paths.document(entry.key, "words"), f"{entry.key}\n".encode()
        try:
            payload = disk.read_file(path, "words", "")
        except LibraryError:
            return None
        return payload.removeprefix(owner) if payload.startswith(owner) else None

    def keep_words(self, entry: Entry, payload: bytes) -> None:
        """Stores what can be made from a document's text again, if that is possible without
        waiting."""
        path, owner = self._paths.document(entry.key, "words"), f"{entry.key}\n".encode()
        with (
            suppress(LibraryError, ResourceError, OSError),
            self._paths.locked(entry.key, disk.refuse_to_wait),
        ):
            if manifest.has_document(self._paths, entry.key):
                disk.write_file(path, "words", owner + payload, entry.key)

    def verify(self, entry: Entry) -> list[LibraryError]:
        """Reads every byte that a document needs and returns one error for each damaged file."""
        from esa_cli.storage.library.stored_document import check_file, needed_paths

        if entry.error:
            return [entry.error]
        errors = list[LibraryError]()
        for path in [self._paths.document(entry.key), *needed_paths(self._paths, entry)]:
            try:
                if path.suffix == ".doc":
                    manifest.read_manifest(self._paths, entry.key)
                else:
                    check_file(path, path, entry)
            except LibraryError as error:
                errors.append(error)
        return errors

    def remove(self, entry: Entry) -> int:
        """Removes a document, without segments that others may need, and returns the bytes freed.
        Raises LibraryError, DiskError: a file cannot be removed, or the catalogue not changed."""
        paths = self._paths
        paths.make()
        with disk.write_errors(self.root), paths.locked("library"):
            others = [one for one in manifest.read_entries(paths) if one.key != entry.key]
            is_needed = needed_files(paths, others, abandoned=True)
            shared = [paths.fit(entry.fit), *map(paths.segment, entry.segments)]
            if entry.error:
                shared = [*paths.whole_files("segments"), *paths.whole_files("fits")]
            files = [paths.document(entry.key, kind) for kind in disk.KINDS]
            freed = delete_files(paths, files + [path for path in shared if not is_needed(path)])
        self._change_catalogue(Catalogue.drop_unused_texts)
        return freed

    def prune(self, max_bytes: int | None = None, *, dry_run: bool = False) -> PruneResult:
        """Removes former documents and what killed ingests left, then the least recently used until
        the library takes at most `max_bytes` (None: no other). Raises LibraryError: some documents
        cannot be used, so that none can be removed for the limit; or as `remove`."""
        paths = self._paths
        if not self.root.exists():
            return PruneResult((), 0, 0, 0)
        paths.make()
        former = {entry.key for entry in self.divided_entries().former}
        with disk.write_errors(self.root), paths.locked("library"):
            entries, total = manifest.read_entries(paths), self.nbytes
            unusable = [entry for entry in entries if entry.error]
            usable = [entry for entry in reversed(entries) if not entry.error]
            order = sorted(usable, key=lambda entry: entry.key not in former)

            def find_unneeded(count: int) -> list[Path]:
                return unneeded_files(paths, unusable + order[count:], order[:count])

            def fits_limit(count: int) -> bool:
                freed = sum(map(disk.file_size, find_unneeded(count)))
                return max_bytes is None or total - freed <= max_bytes

            count = first = sum(entry.key in former for entry in order)
            if not fits_limit(first) and first < len(order):
                _check_all_usable(unusable)
                count += bisect_left(range(first, len(order)), True, key=fits_limit)
            files, leftovers = find_unneeded(count), len(find_unneeded(0))
            freed = sum(map(disk.file_size, files))
            if not dry_run:
                delete_files(paths, sorted(files, key=lambda path: path.suffix != ".doc"))
        if not dry_run:
            self._change_catalogue(Catalogue.tidy)
        return PruneResult(tuple(order[:count]), leftovers, freed, total - freed, tuple(unusable))

    def _change_catalogue(self, work: Callable[[Catalogue], object]) -> None:
        try:
            with self.catalogue() as opened:
                work(opened)
        except EsaError:
            if catalogue.catalogue_path(self._paths).exists():
                raise


def _check_all_usable(unusable: Sequence[Entry]) -> None:
    if unusable:
        ids = " ".join(entry.id for entry in unusable)
        raise LibraryError(
            f"nothing was removed: {len(unusable)} documents cannot be used, and any segment may "
            f"be theirs: {unusable[0].damage}",
            f"`esa library verify` says what hinders; `esa library rm {ids}` gives them up",
        )


def claim_segments(paths: LibraryPaths, key: str, prefixes: list[str]) -> None:
    """Claims segments with these prefixes for the ingest of a document. Raises LibraryError,
    DiskError."""
    with disk.write_errors(paths.root), paths.locked("library"):
        disk.write_file(paths.claim(key), "claim", json.dumps(prefixes).encode(), key)


def needed_files(
    paths: LibraryPaths, entries: Iterable[Entry], *, abandoned: bool
) -> Callable[[Path], bool]:
    """Returns a function that says whether documents and ingests need the file of a segment or of
    projections; the caller holds the library's lock.

    Args:
        entries: the documents. abandoned: count the claims of ingests that were killed, too.
    """
    entries = list(entries)
    segments = {name for entry in entries for name in entry.segments}
    fits, prefixes = {entry.fit for entry in entries}, set[str]()
    needs_unknown, is_ingesting = any(entry.error for entry in entries), False
    for path in paths.whole_files("claims"):
        is_live = paths.is_locked(path.stem)
        is_ingesting = is_ingesting or is_live
        if is_live or abandoned:
            try:
                prefixes.update(json.loads(disk.read_file(path, "claim", path.stem)))
            except LibraryError:
                needs_unknown = True

    def is_needed(path: Path) -> bool:
        if path.suffix == ".fit":
            # An ingest writes its projections before the first segment that names them.
            return needs_unknown or is_ingesting or path.stem in fits
        return needs_unknown or path.stem in segments or prefix_of(path.stem) in prefixes

    kept = filter(is_needed, paths.whole_files("segments"))
    fits |= {path.stem.partition("-")[2] for path in kept}
    return is_needed


def unneeded_files(
    paths: LibraryPaths, kept: Sequence[Entry], removed: Sequence[Entry]
) -> list[Path]:
    """Returns the files that neither the kept documents nor a running ingest need."""
    is_needed, is_locked = needed_files(paths, kept, abandoned=False), cache(paths.is_locked)
    kept_keys, removed_keys = ({entry.key for entry in entries} for entries in (kept, removed))

    def is_kept(path: Path) -> bool:
        if path.suffix == ".part":
            return is_locked(path.name.split(".")[-2])
        if path.suffix in (".seg", ".fit"):
            return is_needed(path)
        if path.parent == paths.documents and path.stem in kept_keys | removed_keys:
            return path.stem in kept_keys
        return path.suffix == ".folder" or is_locked(path.stem)

    return [path for path in paths.files() if not is_kept(path)]


def delete_files(paths: LibraryPaths, files: Sequence[Path]) -> int:
    """Deletes files in the given order, and returns their total size in bytes."""
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

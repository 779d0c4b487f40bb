"""The library: prefilled documents on disk, found by their text.

What a document was prefilled with is one opaque string, `identity`. Readers take no lock: a mapped
file may be removed (except on Windows, where `remove` fails).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from esa_cli.errors import EsaError, LibraryError, ResourceError
from esa_cli.storage.library import (
    catalogue,
    checksummed_file,
    library_paths,
    maintenance,
    manifest,
)
from esa_cli.storage.library.catalogue import Catalogue, DividedEntries
from esa_cli.storage.library.library_paths import LibraryPaths
from esa_cli.storage.library.manifest import OTHER_BYTES, Entry, Layout

if TYPE_CHECKING:
    import torch

    from esa_cli.storage.library.document_files import StoredDocument
    from esa_cli.storage.library.entry_writer import Writer


class Library:
    """The documents below one folder; the constructor changes nothing on disk.

    Args:
        root: None takes $ESA_LIBRARY, else the user's data folder.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = library_paths.default_root() if root is None else root
        self._paths = LibraryPaths(self.root)

    def key(self, identity: str, text: str) -> str:
        """The key of a text that was prefilled with what `identity` names."""
        return manifest.document_key(identity, text)

    def find(self, key: str) -> Entry | None:
        """The document with that key, or None. Raises LibraryError: its manifest is damaged or of
        another version, or the folder may not be read, or is no library."""
        self._paths.check()
        exists = manifest.exists(self._paths, key)
        for entry in manifest.read_all(self._paths, [key] if exists else []):
            if entry.error:
                raise entry.error
            return entry
        return None

    def entries(self) -> list[Entry]:
        """Every present document, the most recently used first; those with an `error` cannot be
        used. Raises LibraryError: the folder may not be read, or is no library."""
        return self.divided_entries().present

    def divided_entries(self) -> DividedEntries:
        """Present and former documents: the file of a former one has another text now, or was
        removed. Raises: as `entries`."""
        self._paths.check()
        return catalogue.known_files(self._paths).divide(manifest.read_all(self._paths))

    def matches(self, text: str) -> list[Entry]:
        """The documents whose key begins with `text`, at least 4 digits; if there are none, those
        whose name or source it is. The present ones, else former ones. Raises: as `entries`."""
        paths, prefix = self._paths, text.lower()
        paths.check()
        keys = [key for key in manifest.keys(paths) if len(text) >= 4 and key.startswith(prefix)]
        entries = manifest.read_all(paths, keys or None)
        if not keys:
            entries = [one for one in entries if text in (one.name, one.provenance.get("source"))]
        present, former = catalogue.known_files(paths).divide(entries)
        return present or former

    def text_digests(self) -> set[str]:
        """Digests of the texts of all documents. Raises LibraryError: as `entries`."""
        self._paths.check()
        return set(catalogue.stored_keys(self._paths))

    @property
    def nbytes(self) -> int:
        """Bytes of all files in the library, without its catalogue."""
        return sum(map(library_paths.size_of, self._paths.files()))

    @property
    def catalogue_bytes(self) -> int:
        return library_paths.size_of(catalogue.catalogue_path(self._paths))

    @property
    def synced_files(self) -> int:
        """How many files `esa ingest --words` has put into it, to be found by their words."""
        records = catalogue.file_records(self._paths)
        return sum(bool(one.folder and one.digest) for one in records)

    def catalogue(self, keep: bool = True) -> AbstractContextManager[Catalogue]:
        """Its catalogue; an empty one in memory if not `keep`. Raises LibraryError, DiskError: it
        cannot be written."""
        return catalogue.open_catalogue(self._paths, keep)

    def search_catalogue(self, copy: bool = False) -> AbstractContextManager[Catalogue]:
        """The same; a copy if it cannot be written, or `copy`. Raises LibraryError, DiskError."""
        return catalogue.search_catalogue(self._paths, copy)

    def size_of(self, tokens: int, layout: Layout, states: int = 0) -> int:
        """Estimated bytes of a document of so many tokens; `states`: those of its states."""
        return layout.nbytes(tokens) + OTHER_BYTES * tokens + states

    @property
    def exists(self) -> bool:
        """Whether something was stored in it once."""
        return (self.root / library_paths.MARKER).is_file()

    @property
    def writable(self) -> bool:
        """Whether this user may write its folder, or make it."""
        return os.access(library_paths.nearest_folder(self.root), os.W_OK)

    def check_room(self, nbytes: int) -> None:
        """Raises DiskError if the disk has less free space."""
        library_paths.check_room(self.root, nbytes)

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
        """Yields a `Writer`, or the document if it exists by now.

        If the block ends without `finish`, whole segments stay and the next ingest resumes from
        them; if the disk is full, what it wrote is removed.

        Args:
            ids: all tokens. waiting: called every half second while another process ingests the
                same document; an exception it raises propagates.
            devices: where each layer's tail is kept; (): the CPU. states: see `size_of`.

        Raises:
            ResourceError: the disk lacks room. LibraryError: the library cannot be written, its
                folder is not a library, or the document exists and is damaged.
        """
        from esa_cli.storage.library.entry_writer import Writer

        self._paths.make()
        with self._paths.locked(key, waiting):
            entry = self.find(key)
            if entry is None:
                writer = Writer(self._paths, key, identity, ids, layout, devices)
                try:
                    size = self.size_of(len(ids), layout, states)
                    self.check_room(size - layout.nbytes(writer.done))
                    yield writer
                finally:
                    writer.end()
        if entry is not None:
            yield entry

    def open(self, entry: Entry) -> StoredDocument:
        """Opens the document for questions and sets the time of its last use. Raises LibraryError:
        a file of it is missing, damaged or of another version."""
        from esa_cli.storage.library.document_files import StoredDocument

        if entry.error:
            raise entry.error
        stored = StoredDocument(self._paths, entry)
        manifest.touch(self._paths, entry.key)
        return stored

    def text(self, entry: Entry) -> str:
        """The document's text. Raises LibraryError: it is missing or damaged."""
        if entry.error:
            raise entry.error
        return manifest.read_text(self._paths, entry)

    def words(self, entry: Entry) -> bytes | None:
        """What `keep_words` stored for the document; None if there is nothing, or damage, or
        another document's."""
        path, own = self._paths.document(entry.key, "words"), f"{entry.key}\n".encode()
        try:
            payload = checksummed_file.read(path, "words", "")
        except LibraryError:
            return None
        return payload.removeprefix(own) if payload.startswith(own) else None

    def keep_words(self, entry: Entry, payload: bytes) -> None:
        """Stores what can be made from the document's text again, if the library can be written
        and no other process has the document's lock."""
        path, own = self._paths.document(entry.key, "words"), f"{entry.key}\n".encode()
        with (
            suppress(LibraryError, ResourceError, OSError),
            self._paths.locked(entry.key, library_paths.do_not_wait),
        ):
            if manifest.exists(self._paths, entry.key):
                checksummed_file.write(path, "words", own + payload, entry.key)

    def verify(self, entry: Entry) -> list[LibraryError]:
        """Reads every byte that a document needs and returns one error for each damaged file."""
        return maintenance.verify(self._paths, entry)

    def remove(self, entry: Entry) -> int:
        """Removes a document and returns the bytes freed. Segments that others may need stay.
        Raises LibraryError, DiskError: a file cannot be removed, or the catalogue not changed."""
        self._paths.make()
        freed = maintenance.remove(self._paths, entry)
        self._change_catalogue(Catalogue.drop_unused_texts)
        return freed

    def prune(
        self, max_bytes: int | None = None, *, dry_run: bool = False
    ) -> maintenance.PruneResult:
        """Removes former documents and what killed ingests left, then the least recently used until
        the library takes at most `max_bytes` (None: no other). What a running ingest needs stays,
        and documents that cannot be used. Raises LibraryError: there are such documents and more
        bytes than `max_bytes`, and nothing is changed; or as `remove`."""
        if not self.root.exists():
            return maintenance.PruneResult((), 0, 0, 0)
        self._paths.make()
        former = {entry.key for entry in self.divided_entries().former}
        result = maintenance.prune(self._paths, max_bytes, dry_run, former)
        if not dry_run:
            self._change_catalogue(Catalogue.tidy)
        return result

    def _change_catalogue(self, work: Callable[[Catalogue], object]) -> None:
        """A catalogue that is damaged is removed, and with it the words to be removed."""
        try:
            with self.catalogue() as opened:
                work(opened)
        except EsaError:
            if catalogue.catalogue_path(self._paths).exists():
                raise

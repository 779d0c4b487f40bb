"""A library's catalogue, open: its stored documents, the files that were read, and their words."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from esa_cli.errors import LibraryError
from esa_cli.storage.library import synced_folders
from esa_cli.storage.library.catalogue.catalogue_file import (
    catalogue_copy,
    catalogue_in_memory,
    readable_catalogue,
    writable_catalogue,
)
from esa_cli.storage.library.catalogue.catalogue_tables import transaction
from esa_cli.storage.library.catalogue.file_records import FileRecords
from esa_cli.storage.library.catalogue.present_entries import DividedEntries, KnownFiles
from esa_cli.storage.library.catalogue.text_index import TextIndex
from esa_cli.storage.library.formats import manifest
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.system.progress import Progress

COMMIT_S, MOST_WRITES = 1.0, 100
"""Seconds of work that a kill may cost, and most changes that are in memory meanwhile."""
Write = Callable[[], object]
"""A change of the catalogue, to be called in a transaction."""


class Catalogue:
    """Tables of one connection. Not thread-safe."""

    def __init__(self, paths: LibraryPaths, db: sqlite3.Connection) -> None:
        self._paths, self._db = paths, db
        self.texts, self.files = TextIndex(db), FileRecords(db)

    def transaction(self) -> AbstractContextManager[None]:
        """Everything that the block writes, or nothing."""
        return transaction(self._db)

    def entries(self) -> DividedEntries:
        """The library's documents, the last used first. Raises LibraryError: the folder may not be
        read."""
        return self.known_files().divide(manifest.read_all(self._paths))

    def known_files(self) -> KnownFiles:
        """The records of all files, as they are now."""
        return KnownFiles(self._paths, self.files.all())

    def stored_keys(self) -> dict[str, list[str]]:
        """Keys of the library's documents by the digest of their text, in the order in which they
        were stored. Raises LibraryError: the folder may not be read."""
        return stored_keys(self._paths)

    def keep_synced(self, folder: str) -> None:
        """Writes the records of a synchronised folder beside the documents, from which they come
        again if the catalogue is lost. Raises LibraryError, DiskError."""
        records = [one._asdict() for one in self.files.below(folder) if one.folder == folder]
        synced_folders.write(self._paths, folder, records)

    def in_pieces(self, prepare: Callable[[], Write | None], more: Callable[[], bool]) -> None:
        """Calls `prepare` while there is `more`, and what it returns in transactions of about a
        second. Nothing is locked while it prepares."""
        while more():
            until, writes = time.monotonic() + COMMIT_S, list[Write]()
            while more() and len(writes) < MOST_WRITES and time.monotonic() < until:
                if (write := prepare()) is not None:
                    writes.append(write)
            if writes:
                with self.transaction():
                    for write in writes:
                        write()

    def add_stored_texts(self, progress: Progress | None = None) -> list[LibraryError]:
        """Adds the words of stored documents that it has not, and returns the errors of those whose
        text cannot be read.

        Args:
            progress: called with the texts done and those to do.
        """
        known, errors = self.texts.digests(), list[LibraryError]()
        missing = [keys[0] for digest, keys in self.stored_keys().items() if digest not in known]
        at = 0

        def add_next() -> Write | None:
            nonlocal at
            key, at = missing[at], at + 1
            if progress:
                progress(at, len(missing))
            try:
                entry = manifest.read(self._paths, key)
                text = manifest.read_text(self._paths, entry)
            except LibraryError as error:
                errors.append(error)
                return None
            return partial(self.texts.add, text, entry.text_sha256)

        self.in_pieces(add_next, lambda: at < len(missing))
        return errors

    def drop_unused_texts(self) -> int:
        """Removes the words of texts of no document and no file; how many texts these were."""
        stored = {*stored_keys(self._paths)}
        if not self.texts.digests() - stored - self.files.digests():
            return 0
        with self.transaction():  # within it no other process can begin to use one
            unused = self.texts.digests() - stored - self.files.digests()
            for digest in unused:
                self.texts.remove(digest)
        return len(unused)


def stored_keys(paths: LibraryPaths) -> dict[str, list[str]]:
    """See `Catalogue.stored_keys`."""
    keys: dict[str, list[str]] = {}
    for entry in sorted(manifest.read_all(paths), key=lambda one: (one.created, one.key)):
        if not entry.damage:
            keys.setdefault(entry.text_sha256, []).append(entry.key)
    return keys


@contextmanager
def open_catalogue(paths: LibraryPaths, keep: bool) -> Iterator[Catalogue]:
    """The library's catalogue; an empty one in memory if not `keep`. Raises LibraryError,
    DiskError: it cannot be written."""
    with writable_catalogue(paths) if keep else catalogue_in_memory() as db:
        yield Catalogue(paths, db)


@contextmanager
def search_catalogue(paths: LibraryPaths, copy: bool = False) -> Iterator[Catalogue]:
    """The library's catalogue, to be searched; where it cannot be written, or is not to be, a copy.
    Raises LibraryError: the folder is no library, or may not be read. DiskError: there is no room
    for what is written into it."""
    with catalogue_copy(paths) if copy else readable_catalogue(paths) as db:
        yield Catalogue(paths, db)


def tidy(paths: LibraryPaths, db: sqlite3.Connection) -> None:
    """Forgets files that do not exist any more, but those of `esa sync`, and words that nothing
    needs; then rewrites the file without them."""
    catalogue = Catalogue(paths, db)
    gone = catalogue.files.gone()
    with catalogue.transaction():
        catalogue.files.remove(gone)
    catalogue.drop_unused_texts()
    catalogue.texts.compact()

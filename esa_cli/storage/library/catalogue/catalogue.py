"""The catalogue of a library: one sqlite file of what commands would otherwise scan many files for.

    files       files that were read, with size, time, text's digest   (`file_records.py`)
    texts, passages   words of texts, each once by its digest          (`text_index.py`)

All of it is made from other files, again where it is missing, damaged or older than these. It is
written in transactions, so a kill loses at most what is then made again; with a rollback journal,
because a write-ahead log needs memory that processes share, and a library may be used by several
machines.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from esa_cli.errors import DiskError, EsaError, LibraryError
from esa_cli.storage.library.catalogue.catalogue_tables import (
    DamagedRowError,
    prepare,
    restore,
    transaction,
)
from esa_cli.storage.library.catalogue.file_records import (
    DividedEntries,
    FileRecords,
    KnownFiles,
    synced_records,
    write_synced,
)
from esa_cli.storage.library.catalogue.text_index import TextIndex
from esa_cli.storage.library.formats import manifest
from esa_cli.storage.library.formats.checksummed_file import write_errors
from esa_cli.storage.library.formats.library_paths import MARKER, LibraryPaths, size_of
from esa_cli.system.progress import Progress

NAME = "catalogue-1.sqlite"
"""With the version of the tables: another version of esa has a file of its own."""
BUSY_S = 30.0
"""Seconds of waiting while another process writes."""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
Result = TypeVar("Result")
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
        write_synced(self._paths, folder, records)

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

    def tidy(self) -> None:
        """Forgets files that do not exist any more, but those of `esa ingest --words`, and words
        that nothing needs; then rewrites the file without them."""
        gone = self.files.gone()
        with self.transaction():
            self.files.remove(gone)
        self.drop_unused_texts()
        self.texts.compact()


def stored_keys(paths: LibraryPaths) -> dict[str, list[str]]:
    """See `Catalogue.stored_keys`."""
    keys: dict[str, list[str]] = {}
    for entry in sorted(manifest.read_all(paths), key=lambda one: (one.created, one.key)):
        if not entry.damage:
            keys.setdefault(entry.text_sha256, []).append(entry.key)
    return keys


def catalogue_path(paths: LibraryPaths) -> Path:
    return paths.root / NAME


def catalogue_bytes(paths: LibraryPaths) -> int:
    """Bytes of the catalogue."""
    return size_of(catalogue_path(paths))


def with_catalogue(paths: LibraryPaths, work: Callable[[Catalogue], Result]) -> Result:
    """What `work` returns of the catalogue; where it cannot be written, of a copy that ends with
    this call, and where there is no library yet, of an empty one. `work` may run twice."""
    if not (paths.root / MARKER).is_file():
        with _in_memory(paths) as catalogue:
            return work(catalogue)
    with suppress(sqlite3.Error, UnicodeError, OSError, EsaError), _opened(paths) as catalogue:
        return work(catalogue)
    with _copied(paths) as catalogue:
        return work(catalogue)


def change_catalogue(paths: LibraryPaths, work: Callable[[Catalogue], object]) -> str:
    """Does `work`, a change after which nothing else depends on the catalogue. What to tell people
    where it could not be done; empty: it was, or the catalogue was damaged and is removed."""
    try:
        with _opened(paths) as catalogue:
            work(catalogue)
        return ""
    except (sqlite3.Error, UnicodeError, OSError) as error:
        if not _inode(catalogue_path(paths)):
            return ""
        why = str(error)
    except EsaError as error:
        why = error.message
    return (
        f"the catalogue {catalogue_path(paths)} cannot be changed ({why}): words of what was "
        "removed are still in it, until `esa library prune` can change it, or it is deleted"
    )


@contextmanager
def open_catalogue(paths: LibraryPaths, keep: bool = True) -> Iterator[Catalogue]:
    """The library's catalogue, for work that is not repeated; an empty one in memory if not `keep`.
    Raises LibraryError, DiskError: it cannot be written."""
    if not keep:
        with _in_memory(paths) as catalogue:
            yield catalogue
        return
    with write_errors(paths.root):
        paths.make()
    try:
        with _opened(paths) as catalogue:
            yield catalogue
    except (sqlite3.Error, UnicodeError) as error:
        full = _code(error) == sqlite3.SQLITE_FULL
        raise (DiskError if full else LibraryError)(
            f"the catalogue {catalogue_path(paths)} cannot be written: {error}",
            "free some space, check who may write there, or point ESA_LIBRARY to another folder; "
            "the file may be deleted, and is made again",
        ) from error


@contextmanager
def search_catalogue(paths: LibraryPaths, copy: bool = False) -> Iterator[Catalogue]:
    """The library's catalogue, to be searched; where it cannot be written, or is not to be, a copy
    that ends with the block. Raises LibraryError: the folder is no library, or may not be read.
    DiskError: there is no room for what is written into it."""
    with ExitStack() as stack:
        try:
            opened = None if copy else stack.enter_context(open_catalogue(paths))
        except EsaError:
            paths.check()
            opened = None
        yield opened or stack.enter_context(_copied(paths))


@contextmanager
def _copied(paths: LibraryPaths) -> Iterator[Catalogue]:
    """A copy of the catalogue that ends with its block, in a file without a name where it is large.
    What cannot be copied is left out, as when it is made again. Raises LibraryError: the folder may
    not be read."""
    with closing(sqlite3.connect("", isolation_level=None)) as db:
        try:
            _copy(catalogue_path(paths), db)
            prepare(db)
        except (sqlite3.Error, UnicodeError):
            with closing(sqlite3.connect(":memory:")) as empty:
                empty.backup(db)
            prepare(db)
        restore(db, partial(synced_records, paths))
        yield Catalogue(paths, db)


@contextmanager
def _in_memory(paths: LibraryPaths) -> Iterator[Catalogue]:
    """An empty catalogue that ends with its block."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        prepare(db)
        yield Catalogue(paths, db)


@contextmanager
def _opened(paths: LibraryPaths) -> Iterator[Catalogue]:
    """The catalogue; one that is damaged is removed, before or when it is found to be."""
    path = catalogue_path(paths)
    before = _inode(path)
    try:
        db = _connect(paths)
    except (sqlite3.Error, UnicodeError) as error:
        if not _is_damage(error):
            raise
        _remove(paths, before)
        db = _connect(paths)
    with closing(db):
        opened = _inode(path)
        try:
            yield Catalogue(paths, db)
        except (sqlite3.Error, UnicodeError) as error:
            if _is_damage(error):
                _remove(paths, opened)
            raise


def _copy(path: Path, db: sqlite3.Connection) -> None:
    """Raises sqlite3.Error: the catalogue is not there, may not be read, is locked or damaged."""
    address = f"{path.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as there:
        # While this reads nobody else can lock it, for which `backup` would wait without end.
        there.execute("BEGIN")
        there.execute("SELECT 1 FROM sqlite_master").fetchone()
        there.backup(db)
    [(found,)] = db.execute("PRAGMA quick_check(1)")
    if found != "ok":
        raise DamagedRowError(f"{path} is damaged: {found}")


def _connect(paths: LibraryPaths) -> sqlite3.Connection:
    path = catalogue_path(paths)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # for its owner alone
    except OSError as error:
        raise sqlite3.OperationalError(error.strerror) from error
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        prepare(db)
        restore(db, partial(synced_records, paths))
    except BaseException:
        db.close()
        raise
    return db


def _remove(paths: LibraryPaths, damaged: int) -> None:
    """Removes the catalogue, unless another process has made a new one by now.

    Args:
        damaged: the inode of the damaged file.
    """
    path = catalogue_path(paths)
    with paths.locked("catalogue"):
        if _inode(path) == damaged:
            # A journal that is left would be applied to the catalogue that is made next.
            for suffix in ("-journal", ""):
                path.with_name(NAME + suffix).unlink(missing_ok=True)


def _inode(path: Path) -> int:
    """0 where there is no such file."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _is_damage(error: sqlite3.Error | UnicodeError) -> bool:
    """Whether the file is to blame: what is in it, or that its tables are not ours."""
    if isinstance(error, UnicodeError):
        return isinstance(error, UnicodeDecodeError)
    return _code(error) in _DAMAGED or "Could not decode" in str(error)


def _code(error: Exception) -> int:
    """The primary result code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

"""The catalogue of a library: one sqlite file in place of a scan of many files.

    files             files that were read, with size, time, text's digest   (`FileRecords`)
    texts, passages   words of texts, each once by its digest                (`TextIndex`)

It is made from other files, again if it is missing or damaged. It is written in transactions, so a
kill loses at most what is then made again; with a rollback journal, because a write-ahead log needs
memory that processes share, and a library may be used by several machines. The records of a folder
of `esa ingest --words` are also in a file of their own, from which a new catalogue takes them.

A document is former if its file has another text now or was removed, and no other file has its
text. It stays on disk until it is pruned. Whoever answers brings the records up to date first
(`qa.ingestion.library_texts`). A document stays present where its file cannot be checked: it
came from standard input or another machine, or its disk is not mounted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.errors import DiskError, EsaError, LibraryError
from esa_cli.storage.library import checksummed_file, manifest
from esa_cli.storage.library.checksummed_file import read_errors, write_errors
from esa_cli.storage.library.library_paths import LibraryPaths
from esa_cli.storage.library.manifest import Entry
from esa_cli.storage.library.text_index import TextIndex, is_searchable
from esa_cli.system.content_words import words_version
from esa_cli.system.files import file_stamp, real_path
from esa_cli.system.progress import Progress
from esa_cli.system.text import has_lone_surrogate, text_bytes

NAME = "catalogue-1.sqlite"
"""With the version of the tables: another version of esa has a file of its own."""
BUSY_S = 30.0
"""Seconds of waiting while another process writes."""
COMMIT_S, MOST_WRITES = 1.0, 100
"""Seconds of work that a kill may cost, and most changes that are in memory meanwhile."""
FOLDER_KIND = "folder"
Write = Callable[[], object]
"""A change of the catalogue, to be called in a transaction."""
_ERRORS = (sqlite3.Error, UnicodeError)
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_TABLES = """
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, stamp TEXT, digest TEXT, bytes INTEGER, why TEXT, hint TEXT,
    folder TEXT DEFAULT '');
CREATE INDEX IF NOT EXISTS file_digests ON files (digest);
CREATE TABLE IF NOT EXISTS texts (
    id INTEGER PRIMARY KEY, digest TEXT UNIQUE, characters INTEGER, passages INTEGER, words BLOB);
CREATE TABLE IF NOT EXISTS languages (name TEXT PRIMARY KEY);
"""
# Contentless: the words are in `texts`, compressed. ASCII: stems have no capitals, and every other
# character counts as a letter.
_PASSAGES = "CREATE VIRTUAL TABLE passages USING fts5(words, content='', tokenize='ascii')"


class FileRecord(NamedTuple):
    """A file as it was read.

    `path` is absolute. `digest` is that of its text; empty if it cannot be read: `why` and `hint`
    then say so. `folder`: that of `esa ingest --words`; empty: it was asked only. The record is
    used while the file has the same size and time.
    """

    path: str
    stamp: str
    digest: str
    bytes: int
    why: str = ""
    hint: str = ""
    folder: str = ""

    @property
    def is_current(self) -> bool:
        """Whether the file is as it was."""
        try:
            return bool(self.stamp) and file_stamp(self.path) == self.stamp
        except OSError:
            return False


def _to_sql(value: Any) -> Any:
    """Converts text with lone surrogates, such as file names that are not UTF-8, to bytes."""
    lone = isinstance(value, str) and has_lone_surrogate(value)
    return text_bytes(value) if lone else value


def _of_sql(value: Any) -> Any:
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


_COLUMNS = ", ".join(FileRecord._fields)
_PUT = f"INTO files ({_COLUMNS}) VALUES ({', '.join('?' * len(FileRecord._fields))})"


class FileRecords:
    """The records of a catalogue. The caller opens transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def all(self) -> list[FileRecord]:
        """Those of all files, by path."""
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM files ORDER BY path")
        return [FileRecord(*map(_of_sql, row)) for row in rows]

    def find(self, path: str) -> FileRecord | None:
        key = (_to_sql(path),)
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM files WHERE path = ?", key).fetchall()
        return FileRecord(*map(_of_sql, rows[0])) if rows else None

    def put(self, record: FileRecord) -> None:
        """Adds or replaces the record of a path."""
        self._db.execute(f"REPLACE {_PUT}", list(map(_to_sql, record)))

    def remove(self, paths: Iterable[str]) -> None:
        rows = [(_to_sql(path),) for path in paths]
        self._db.executemany("DELETE FROM files WHERE path = ?", rows)

    def below(self, folder: str) -> list[FileRecord]:
        """Those of files in a folder or below it."""
        start = os.path.join(folder, "")
        return [one for one in self.all() if one.path.startswith(start)]

    def all_synced(self) -> list[FileRecord]:
        """Files of folders of `esa ingest --words`, also those that cannot be read or were removed,
        by path."""
        return [one for one in self.all() if one.folder]


class Catalogue:
    """Tables of one connection. Not thread-safe."""

    def __init__(self, paths: LibraryPaths, db: sqlite3.Connection) -> None:
        self._paths, self._db = paths, db
        self.texts, self.files = TextIndex(db), FileRecords(db)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything that the block writes, or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield

    def entries(self) -> DividedEntries:
        """The library's documents, the last used first. Raises LibraryError: the folder may not be
        read."""
        return self.known_files().divide(manifest.read_all(self._paths))

    def known_files(self) -> KnownFiles:
        """The records of all files, as they are now."""
        return KnownFiles(self._paths, self.files.all())

    def keep_synced(self, folder: str) -> None:
        """Writes the records of a synchronised folder beside the documents, for a catalogue that is
        made again; without records the file is removed. Raises LibraryError, DiskError."""
        records = [one._asdict() for one in self.files.below(folder) if one.folder == folder]
        path = _folder_file(self._paths, folder)
        payload = json.dumps({"folder": folder, "files": records}).encode()
        with self._paths.locked(path.stem), write_errors(self._paths.root):
            if not records:
                path.unlink(missing_ok=True)
            elif _folder_payload(path) != payload:
                checksummed_file.write(path, FOLDER_KIND, payload, path.stem)

    def carry_out(self, writes: Iterable[Write | None]) -> None:
        """Carries out writes in transactions of about a second. Nothing is locked while the next
        one is prepared; None: there is nothing to write."""
        batch, until = list[Write](), time.monotonic() + COMMIT_S
        for write in writes:
            batch += [write] if write else []
            if len(batch) == MOST_WRITES or time.monotonic() > until:
                self._commit(batch)
                batch, until = [], time.monotonic() + COMMIT_S
        self._commit(batch)

    def _commit(self, batch: Sequence[Write]) -> None:
        if batch:
            with self.transaction():
                for write in batch:
                    write()

    def add_stored_texts(self, progress: Progress | None = None) -> list[LibraryError]:
        """Adds the words of stored documents that it has not, and returns the errors of those whose
        text cannot be read.

        Args:
            progress: called with the texts done and those to do.
        """
        known, errors = self.texts.digests(), list[LibraryError]()
        stored = stored_keys(self._paths)
        missing = [key for digest, key in stored.items() if digest not in known]

        def writes() -> Iterator[Write]:
            for done, key in enumerate(missing, 1):
                if progress:
                    progress(done, len(missing))
                try:
                    entry = manifest.read(self._paths, key)
                    text = manifest.read_text(self._paths, entry)
                except LibraryError as error:
                    errors.append(error)
                else:
                    yield partial(self.texts.add, text, entry.text_sha256)

        self.carry_out(writes())
        return errors

    def drop_unused_texts(self) -> int:
        """Removes the words of texts of no document and no file; how many texts these were."""
        stored = {*stored_keys(self._paths)}

        def unused() -> set[str]:
            return self.texts.digests() - stored - {one.digest for one in self.files.all()}

        if not unused():
            return 0
        with self.transaction():  # within it no other process can begin to use one
            digests = unused()
            for digest in digests:
                self.texts.remove(digest)
        return len(digests)

    def tidy(self) -> None:
        """Forgets files that do not exist any more, but those of `esa ingest --words`, and words
        that nothing needs; then rewrites the file without them."""
        records = [one for one in self.files.all() if not one.folder]
        gone = [one.path for one in records if not os.path.exists(one.path)]
        with self.transaction():
            self.files.remove(gone)
        self.drop_unused_texts()
        self.texts.compact()


def stored_keys(paths: LibraryPaths) -> dict[str, str]:
    """The key of the first stored document with each text, by the digest of the text. Raises
    LibraryError: the folder may not be read."""
    keys: dict[str, str] = {}
    for entry in sorted(manifest.read_all(paths), key=lambda one: (one.created, one.key)):
        if not entry.error:
            keys.setdefault(entry.text_sha256, entry.key)
    return keys


def synced_records(paths: LibraryPaths) -> list[FileRecord]:
    """The records of all synchronised folders. One whose file is damaged has none: its next
    `esa ingest --words` writes the file again. Raises LibraryError: the folder may not be read."""
    with read_errors(paths.root):
        payloads = [_folder_payload(path) for path in paths.whole("folders")]
    return [FileRecord(**one) for data in payloads if data for one in json.loads(data)["files"]]


def is_away(paths: LibraryPaths, folder: str) -> bool:
    """Whether a synchronised folder may be on a disk that is not mounted: it does not exist, or it
    is as empty as a mount point, and nothing was removed since its records were written."""
    try:
        if os.listdir(folder):
            return False
        written = _folder_file(paths, folder).stat().st_mtime_ns
        return os.stat(folder).st_mtime_ns < written
    except OSError:
        return not os.path.isdir(folder)


def _folder_file(paths: LibraryPaths, folder: str) -> Path:
    name = hashlib.blake2b(text_bytes(folder), digest_size=20).hexdigest()
    return paths.folders / f"{name}.folder"


def _folder_payload(path: Path) -> bytes:
    """Empty if the file is missing, damaged or of another version."""
    try:
        return checksummed_file.read(path, FOLDER_KIND, path.stem)
    except LibraryError:
        return b""


class DividedEntries(NamedTuple):
    """Stored documents: those that are present, with the name and path of a file that has their
    text, and former ones. Both in their former order."""

    present: list[Entry]
    former: list[Entry]


class KnownFiles:
    """Records of files by path and by text.

    Args:
        records: all of a catalogue.
    """

    def __init__(self, paths: LibraryPaths, records: Iterable[FileRecord]) -> None:
        self._is_away = cache(partial(is_away, paths))
        self._folder = cache(real_path)
        self._of_path = defaultdict[str, list[FileRecord]](list)
        self._of_text: dict[str, FileRecord] = {}
        for record in records:
            self._of_path[self._resolved(record.path)].append(record)
            has_text = record.digest and not self.is_removed(record)
            if has_text and (record.folder or os.path.lexists(record.path)):
                self._of_text.setdefault(record.digest, record)

    def is_removed(self, record: FileRecord) -> bool:
        """Whether a file was removed: of a folder of `esa ingest --words`, if it does not exist and
        its disk is not away; else if its record says so."""
        if os.path.lexists(record.path):
            return False
        return not self._is_away(record.folder) if record.folder else not record.digest

    def of_path(self, path: str) -> list[FileRecord]:
        """Records of a file, by whatever path it was read; the current ones, if there are some."""
        known = self._of_path.get(self._resolved(path), []) if path else []
        return [one for one in known if one.is_current] or known

    def divide(self, entries: Sequence[Entry]) -> DividedEntries:
        """Present and former documents; damaged ones are present."""
        divided = DividedEntries([], [])
        for entry in entries:
            present = entry if entry.error else self._present(entry)
            (divided.former if present is None else divided.present).append(present or entry)
        return divided

    def _present(self, entry: Entry) -> Entry | None:
        """The document, under the name of a file that has its text; None: it is former."""
        known = self.of_path(entry.file)
        has_text = any(
            one.digest == entry.text_sha256 and not self.is_removed(one) for one in known
        )
        if has_text or not known:
            return entry
        other = self._of_text.get(entry.text_sha256)
        if other is None:
            return None
        names = {"name": os.path.basename(other.path), "source": other.path, "path": other.path}
        return replace(entry, provenance={**entry.provenance, **names})

    def _resolved(self, path: str) -> str:
        """As `resolved_path`, with each folder looked up once."""
        folder, name = os.path.split(os.path.abspath(path))
        return os.path.join(self._folder(folder), name)


def catalogue_path(paths: LibraryPaths) -> Path:
    return paths.root / NAME


def file_records(paths: LibraryPaths) -> list[FileRecord]:
    """The records of all files; those of synchronised folders if the catalogue cannot be read.
    Changes nothing. Raises LibraryError: the folder may not be read."""
    with suppress(*_ERRORS), closing(_existing(paths)) as db:
        [(version,)] = db.execute("PRAGMA user_version")
        if version:  # else another process is making it
            return FileRecords(db).all()
    return synced_records(paths)


def known_files(paths: LibraryPaths) -> KnownFiles:
    """As `Catalogue.known_files`, without opening a catalogue for changes."""
    return KnownFiles(paths, file_records(paths))


@contextmanager
def open_catalogue(paths: LibraryPaths, keep: bool = True) -> Iterator[Catalogue]:
    """The library's catalogue; an empty one in memory if not `keep`. One that is damaged is deleted
    and made again: here, or after an error in the block by whoever opens it next. Raises
    LibraryError, DiskError: it cannot be written."""
    if not keep:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            prepare(db)
            yield Catalogue(paths, db)
        return
    paths.make()
    path = catalogue_path(paths)
    inode = _inode(path)
    try:
        try:
            db = _connect(paths)
        except _ERRORS as error:
            _delete_damaged(paths, inode, error)
            db = _connect(paths)
        with closing(db):
            inode = _inode(path)
            yield Catalogue(paths, db)
    except _ERRORS as error:
        _delete_damaged(paths, inode, error)
        raise (DiskError if _code(error) == sqlite3.SQLITE_FULL else LibraryError)(
            f"the catalogue {path} cannot be written: {error}",
            "free some space, check who may write there, or point ESA_LIBRARY to another folder; "
            "the file may be deleted, and is made again",
        ) from error


@contextmanager
def search_catalogue(paths: LibraryPaths, copy: bool = False) -> Iterator[Catalogue]:
    """The library's catalogue, to be searched; if it cannot be written, or `copy`, a copy that ends
    with the block. Raises LibraryError: the folder is no library, or may not be read. DiskError:
    there is no room for what is written into it."""
    with ExitStack() as stack:
        try:
            opened = None if copy else stack.enter_context(open_catalogue(paths))
        except EsaError:
            opened = None
        if opened is None:
            paths.check()
            db = stack.enter_context(closing(_copied(paths)))
            prepare(db)
            _restore(db, paths)
            opened = Catalogue(paths, db)
        yield opened


def _copied(paths: LibraryPaths) -> sqlite3.Connection:
    """A copy of the catalogue, in a file without a name if it is large; empty if it cannot be
    copied."""
    copy = sqlite3.connect("", isolation_level=None)
    with suppress(*_ERRORS), closing(_existing(paths)) as db:
        # While this reads nobody else can lock it, for which `backup` would wait without end.
        db.execute("BEGIN")
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
        db.backup(copy)
        if copy.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]:
            return copy
    copy.close()
    return sqlite3.connect("", isolation_level=None)


def _existing(paths: LibraryPaths) -> sqlite3.Connection:
    """Raises sqlite3.Error: there is no catalogue."""
    address = f"{catalogue_path(paths).absolute().as_uri()}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)


def _connect(paths: LibraryPaths) -> sqlite3.Connection:
    path = catalogue_path(paths)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # for its owner alone
    except OSError as error:
        raise sqlite3.OperationalError(error.strerror) from error
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        prepare(db)
        _restore(db, paths)
    except BaseException:
        db.close()
        raise
    return db


def prepare(db: sqlite3.Connection) -> None:
    """Makes the tables that are missing."""
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA cache_size = -65536")
    db.executescript(_TABLES)
    if not is_searchable(db):
        try:
            db.execute(_PASSAGES)
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error) and "already exists" not in str(error):
                raise


def _restore(db: sqlite3.Connection, paths: LibraryPaths) -> None:
    """Adds the records of synchronised files to a catalogue that was made now, and removes words
    that another version of `content_words` made: they are made again as those that are missing."""
    words = int(words_version()[:7], 16) or 1
    [(version,)] = db.execute("PRAGMA user_version")
    if version == words:
        return
    rows = [] if version else [list(map(_to_sql, one)) for one in synced_records(paths)]
    db.execute("BEGIN IMMEDIATE")
    with db:
        if db.execute("PRAGMA user_version").fetchone() != (version,):
            return  # another process was faster
        db.executemany(f"INSERT OR IGNORE {_PUT}", rows)
        if version and is_searchable(db):
            db.execute("DELETE FROM texts")
            db.execute("DELETE FROM languages")
            db.execute("INSERT INTO passages (passages) VALUES ('delete-all')")
        db.execute(f"PRAGMA user_version = {words}")


def _delete_damaged(paths: LibraryPaths, inode: int, error: Exception) -> None:
    """Deletes the catalogue if an error says that it is damaged, or that its tables are not ours;
    unless another process has made a new one by now.

    Args:
        inode: of the file that was opened.
    """
    decoding = isinstance(error, UnicodeDecodeError) or "Could not decode" in str(error)
    if not decoding and _code(error) not in _DAMAGED:
        return
    path = catalogue_path(paths)
    with paths.locked("catalogue"):
        if _inode(path) == inode:
            # A journal that is left would be applied to the catalogue that is made next.
            for suffix in ("-journal", ""):
                path.with_name(NAME + suffix).unlink(missing_ok=True)


def _inode(path: Path) -> int:
    """0 if there is no such file."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _code(error: Exception) -> int:
    """The primary result code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

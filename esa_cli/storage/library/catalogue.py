"""The catalogue of a library: one sqlite file in place of a scan of many files.

    files             files that were read, with size, time, text's digest   (`FileRecords`)
    texts, passages   words of texts, each once by its digest                (`TextIndex`)

The catalogue is made from other files, again if it is missing or damaged. It is written in
transactions, so a kill loses at most what is then made again; with a rollback journal, because a
write-ahead log needs memory that processes share, and a library may be used by several machines.
The records of a folder of `esa ingest --words` are also stored in a separate file, from which a new
catalogue takes them.

A document is former if its file has another text now or was removed, and no other file has its
text. A document stays present where its file cannot be checked: it came from standard input or
another machine, or its disk is not mounted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.errors import DiskError, EsaError, LibraryError
from esa_cli.storage.library import disk, manifest
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.manifest import Entry
from esa_cli.system.content_words import language_of, located_words, question_words, words_version
from esa_cli.system.files import file_stamp, real_path
from esa_cli.system.progress import Progress
from esa_cli.system.text import has_lone_surrogate, text_bytes

NAME = "catalogue-1.sqlite"
"""With the version of the tables: another version of esa has a file of its own."""
BUSY_S = 30.0
"""Seconds of waiting while another process make_writes."""
COMMIT_S, MAX_WRITES = 1.0, 100
"""Seconds of work that a kill may cost, and changes in memory meanwhile."""
Write = Callable[[], object]
"""A change of the catalogue, to be called in a transaction."""
PASSAGE_WORDS = 150
"""Content words of a passage: about 300 words of English, stop words included."""
WHOLE = 0.6
"""Weight of the words that stand anywhere in a text."""
_SHIFT = 24
"""A passage's row is its text's id times 2^24, plus its number in the text."""
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
CREATE VIRTUAL TABLE IF NOT EXISTS passages USING fts5(words, content='', tokenize='ascii');
"""
# Contentless: the words are in `texts`, compressed. ASCII: stems have no capitals, and every other
# character counts as a letter.
_FIND = "INSERT INTO hits SELECT rowid, ?, -bm25(passages) FROM passages WHERE passages MATCH ?"
_RANK = f"""
WITH best (id, score) AS (
    SELECT passage >> {_SHIFT}, max(score) FROM (
        SELECT passage, sum(score) AS score FROM hits GROUP BY passage) GROUP BY 1),
whole (id, score) AS (
    SELECT id, sum(score) FROM (
        SELECT passage >> {_SHIFT} AS id, max(score) AS score FROM hits GROUP BY 1, word)
    GROUP BY 1)
SELECT digest, best.score + {WHOLE} * whole.score AS score
FROM best JOIN whole USING (id) JOIN texts USING (id)
ORDER BY score DESC, characters DESC, id
"""


class FileRecord(NamedTuple):
    """A file as it was read: its absolute path and the digest of its text, which is empty if the
    file cannot be read (`why`, `hint`). `folder` is that of `esa ingest --words`, or empty."""

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


def _encode_text(value: Any) -> Any:
    """Converts text with lone surrogates, such as file names that are not UTF-8, to bytes."""
    lone = isinstance(value, str) and has_lone_surrogate(value)
    return text_bytes(value) if lone else value


def _decode_record(row: Iterable[Any]) -> FileRecord:
    values: list[Any] = [
        value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value
        for value in row
    ]
    return FileRecord(*values)


_SELECT = f"SELECT {', '.join(FileRecord._fields)} FROM files"
_PUT = f"INTO files VALUES ({', '.join('?' * len(FileRecord._fields))})"


class FileRecords:
    """The table of files in a catalogue; callers open transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def all(self) -> list[FileRecord]:
        return [*map(_decode_record, self._db.execute(f"{_SELECT} ORDER BY path"))]

    def find(self, path: str) -> FileRecord | None:
        rows = self._db.execute(f"{_SELECT} WHERE path = ?", (_encode_text(path),)).fetchall()
        return _decode_record(rows[0]) if rows else None

    def put(self, record: FileRecord) -> None:
        self._db.execute(f"REPLACE {_PUT}", [*map(_encode_text, record)])

    def remove(self, paths: Iterable[str]) -> None:
        rows = [(_encode_text(path),) for path in paths]
        self._db.executemany("DELETE FROM files WHERE path = ?", rows)

    def below(self, folder: str) -> list[FileRecord]:
        """Returns the records of files in a folder or below it."""
        start = os.path.join(folder, "")
        return [record for record in self.all() if record.path.startswith(start)]

    def all_synced(self) -> list[FileRecord]:
        """Returns the records of folders of `esa ingest --words`, by path."""
        return [record for record in self.all() if record.folder]


class RankedText(NamedTuple):
    """A text by its digest, and its score for a question."""

    digest: str
    score: float


class TextIndex:
    """Lexical search over texts, by full-text search of sqlite (FTS5); callers open transactions.

    A text is cut into passages of 150 content words. With BM25 over the passages of all texts, the
    score of a text for a question's words w is

        max over its passages p of sum over w of bm25(w, p)
        + 0.6 * sum over w of max over its passages p of bm25(w, p)

    The second part counts words that stand elsewhere in the text, as a name in its title. A word
    has the stems of each language of the library's texts.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __len__(self) -> int:
        [(count,)] = self._db.execute("SELECT count(*) FROM texts")
        return int(count)

    def digests(self) -> set[str]:
        return {digest for (digest,) in self._db.execute("SELECT digest FROM texts")}

    def has(self, digest: str) -> bool:
        rows = self._db.execute("SELECT 1 FROM texts WHERE digest = ?", (digest,))
        return rows.fetchone() is not None

    def add(self, text: str, digest: str) -> None:
        """Adds a text unless the index has it."""
        if self.has(digest):
            return
        insert = "INSERT INTO texts (digest, characters) VALUES (?, ?)"
        row = self._db.execute(insert, (digest, len(text))).lastrowid
        assert row is not None
        language = language_of(text)
        self._db.execute("INSERT OR IGNORE INTO languages (name) VALUES (?)", (language,))
        words = (_make_index_token(word) for _, _, word in located_words(text, language))
        packer, packed, count = zlib.compressobj(1), list[bytes](), 0
        while passage := " ".join(islice(words, PASSAGE_WORDS)):
            data = passage.encode("utf-8", "replace")  # it may have lone surrogates
            values = ((row << _SHIFT) + count, data.decode())
            self._db.execute("INSERT INTO passages (rowid, words) VALUES (?, ?)", values)
            packed.append(packer.compress(data + b"\n"))
            count += 1
        blob = b"".join([*packed, packer.flush()])
        update = "UPDATE texts SET passages = ?, words = ? WHERE id = ?"
        self._db.execute(update, (count, blob, row))

    def remove(self, digest: str) -> None:
        """Removes a text, if the index has it."""
        rows = self._db.execute("SELECT id, words FROM texts WHERE digest = ?", (digest,))
        for row, words in rows.fetchall():
            try:
                passages = zlib.decompress(words).decode().split("\n")[:-1]
            except (zlib.error, TypeError, UnicodeDecodeError) as error:
                raise sqlite3.DatabaseError(f"Could not decode the words of {digest}") from error
            self._db.executemany(
                "INSERT INTO passages (passages, rowid, words) VALUES ('delete', ?, ?)",
                [((row << _SHIFT) + at, passage) for at, passage in enumerate(passages)],
            )
            self._db.execute("DELETE FROM texts WHERE id = ?", (row,))

    def clear(self) -> None:
        """Removes all texts."""
        self._db.execute("DELETE FROM texts")
        self._db.execute("DELETE FROM languages")
        self._db.execute("INSERT INTO passages (passages) VALUES ('delete-all')")

    def ranked(self, question: str) -> list[RankedText]:
        """Returns the texts with a word of the question, best first; of equal ones the longer
        first."""
        languages = [name for (name,) in self._db.execute("SELECT name FROM languages")]
        words = dict.fromkeys(question_words(question, languages))
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS hits (passage, word, score)")
        self._db.execute("DELETE FROM hits")
        for number, stems in enumerate(words):
            query = " OR ".join(f'"{_make_index_token(stem)}"' for stem in stems)
            self._db.execute(_FIND, (number, query))
        return [RankedText(*row) for row in self._db.execute(_RANK)]

    def compact(self) -> None:
        """Frees the space of removed texts in the file; nobody may write meanwhile."""
        self._db.execute("INSERT INTO passages (passages) VALUES ('optimize')")
        self._db.execute("VACUUM")


def _make_index_token(word: str) -> str:
    """Returns a word without ASCII apostrophes, which would end a token of the index."""
    return word.replace("'", "’")


class DividedEntries(NamedTuple):
    """Stored documents: those that are present, under the name and path of a file that has their
    text, and former ones."""

    present: list[Entry]
    former: list[Entry]


class KnownFiles:
    """The records of a catalogue by path and by text."""

    def __init__(self, paths: LibraryPaths, records: Iterable[FileRecord]) -> None:
        self._is_away = cache(partial(_is_away, paths))
        self._real_folder = cache(real_path)
        self._by_path = defaultdict[str, list[FileRecord]](list)
        self._by_text: dict[str, FileRecord] = {}
        for record in records:
            self._by_path[self._resolve_links(record.path)].append(record)
            has_text = record.digest and not self.is_removed(record)
            if has_text and (record.folder or os.path.lexists(record.path)):
                self._by_text.setdefault(record.digest, record)

    def is_removed(self, record: FileRecord) -> bool:
        """Whether a file was removed: of a folder of `esa ingest --words`, if it does not exist and
        its disk is not away; else if its record says so."""
        if os.path.lexists(record.path):
            return False
        return not self._is_away(record.folder) if record.folder else not record.digest

    def of_path(self, path: str) -> list[FileRecord]:
        """Returns the records of a file under all its paths; only current ones if there are any."""
        known = self._by_path.get(self._resolve_links(path), []) if path else []
        return [record for record in known if record.is_current] or known

    def divide(self, entries: Sequence[Entry]) -> DividedEntries:
        """Returns present and former documents; damaged ones are present."""
        divided = DividedEntries([], [])
        for entry in entries:
            present = entry if entry.error else self._find_present(entry)
            (divided.former if present is None else divided.present).append(present or entry)
        return divided

    def _find_present(self, entry: Entry) -> Entry | None:
        """Returns a document under the name of a file that has its text; None for a former one."""
        known = self.of_path(entry.file)
        for record in known:
            if record.digest == entry.text_sha256 and not self.is_removed(record):
                return entry
        if not known:
            return entry
        other = self._by_text.get(entry.text_sha256)
        if other is None:
            return None
        names = {"name": os.path.basename(other.path), "source": other.path, "path": other.path}
        return replace(entry, provenance={**entry.provenance, **names})

    def _resolve_links(self, path: str) -> str:
        folder, name = os.path.split(os.path.abspath(path))
        return os.path.join(self._real_folder(folder), name)


def _is_away(paths: LibraryPaths, folder: str) -> bool:
    """Whether a synchronised folder may be on a disk that is not mounted: it does not exist, or it
    is as empty as a mount point, and nothing was removed since its records were written."""
    try:
        if os.listdir(folder):
            return False
        written = _folder_path(paths, folder).stat().st_mtime_ns
        return os.stat(folder).st_mtime_ns < written
    except OSError:
        return not os.path.isdir(folder)


class Catalogue:
    """An open catalogue: one connection to sqlite. Not thread-safe."""

    def __init__(self, paths: LibraryPaths, db: sqlite3.Connection) -> None:
        self._paths, self._db = paths, db
        self.texts, self.files = TextIndex(db), FileRecords(db)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Keeps everything that the block make_writes, or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield

    def entries(self) -> DividedEntries:
        """Returns the library's documents, the last used first. Raises LibraryError: the folder may
        not be read."""
        return self.known_files().divide(manifest.read_entries(self._paths))

    def known_files(self) -> KnownFiles:
        return KnownFiles(self._paths, self.files.all())

    def keep_synced(self, folder: str) -> None:
        """Writes the records of a synchronised folder into a file of their own, from which a new
        catalogue takes them. Raises LibraryError, DiskError."""
        records = [one._asdict() for one in self.files.below(folder) if one.folder == folder]
        path = _folder_path(self._paths, folder)
        payload = json.dumps({"folder": folder, "files": records}).encode()
        with self._paths.locked(path.stem), disk.write_errors(self._paths.root):
            if not records:
                path.unlink(missing_ok=True)
            elif _read_folder_file(path) != payload:
                disk.write_file(path, "folder", payload, path.stem)

    def carry_out(self, writes: Iterable[Write | None]) -> None:
        """Carries out writes in transactions of about a second. Nothing is locked while the next
        one is prepared; None: there is nothing to write."""
        batch, until = list[Write](), time.monotonic() + COMMIT_S
        for write in writes:
            batch += [write] if write else []
            if len(batch) == MAX_WRITES or time.monotonic() > until:
                self._write_batch(batch)
                batch, until = [], time.monotonic() + COMMIT_S
        self._write_batch(batch)

    def _write_batch(self, batch: Sequence[Write]) -> None:
        if batch:
            with self.transaction():
                for write in batch:
                    write()

    def add_stored_texts(self, progress: Progress | None = None) -> list[LibraryError]:
        """Adds the words of stored documents that it lacks, and returns the errors of those whose
        text cannot be read. `progress` is called with the texts done and those to do."""
        known, errors = self.texts.digests(), list[LibraryError]()
        missing = [key for digest, key in stored_keys(self._paths).items() if digest not in known]

        def make_writes() -> Iterator[Write]:
            for done, key in enumerate(missing, 1):
                if progress:
                    progress(done, len(missing))
                try:
                    entry = manifest.read_manifest(self._paths, key)
                    text = manifest.read_text(self._paths, entry)
                except LibraryError as error:
                    errors.append(error)
                else:
                    yield partial(self.texts.add, text, entry.text_sha256)

        self.carry_out(make_writes())
        return errors

    def drop_unused_texts(self) -> int:
        """Removes the words of texts of no document and no file, and returns their number."""
        stored = set(stored_keys(self._paths))

        def find_unused() -> set[str]:
            return self.texts.digests() - stored - {record.digest for record in self.files.all()}

        if not find_unused():
            return 0
        with self.transaction():  # within it no other process can begin to use one
            digests = find_unused()
            for digest in digests:
                self.texts.remove(digest)
        return len(digests)

    def tidy(self) -> None:
        """Forgets files that do not exist any more, but those of `esa ingest --words`, and words
        that nothing needs; then rewrites the file without them."""
        paths = [record.path for record in self.files.all() if not record.folder]
        with self.transaction():
            self.files.remove(path for path in paths if not os.path.exists(path))
        self.drop_unused_texts()
        self.texts.compact()


def stored_keys(paths: LibraryPaths) -> dict[str, str]:
    """Returns the key of the first stored document with each text, by the text's digest."""
    keys: dict[str, str] = {}
    entries = manifest.read_entries(paths)
    for entry in sorted(entries, key=lambda entry: (entry.created, entry.key)):
        if not entry.error:
            keys.setdefault(entry.text_sha256, entry.key)
    return keys


def _synced_records(paths: LibraryPaths) -> list[FileRecord]:
    """Returns the records of all synchronised folders but those whose file is damaged, which the
    next `esa ingest --words` make_writes again."""
    with disk.read_errors(paths.root):
        payloads = [_read_folder_file(path) for path in paths.whole_files("folders")]
    return [FileRecord(**one) for data in payloads if data for one in json.loads(data)["files"]]


def _folder_path(paths: LibraryPaths, folder: str) -> Path:
    name = hashlib.blake2b(text_bytes(folder), digest_size=20).hexdigest()
    return paths.folders / f"{name}.folder"


def _read_folder_file(path: Path) -> bytes:
    """Returns the payload; empty if it is missing or damaged."""
    try:
        return disk.read_file(path, "folder", path.stem)
    except LibraryError:
        return b""


def catalogue_path(paths: LibraryPaths) -> Path:
    return paths.root / NAME


def read_file_records(paths: LibraryPaths) -> list[FileRecord]:
    """Returns the records of all files, or of synchronised folders if the catalogue cannot be read;
    changes nothing. Raises LibraryError: the folder may not be read."""
    with suppress(*_ERRORS), closing(_open_existing(paths)) as db:
        [(version,)] = db.execute("PRAGMA user_version")
        if version:  # else another process is making it
            return FileRecords(db).all()
    return _synced_records(paths)


def known_files(paths: LibraryPaths) -> KnownFiles:
    """As `Catalogue.known_files`, without opening a catalogue for changes."""
    return KnownFiles(paths, read_file_records(paths))


@contextmanager
def open_catalogue(paths: LibraryPaths, keep: bool = True) -> Iterator[Catalogue]:
    """Opens the library's catalogue; an empty one in memory if not `keep`. A damaged one is deleted
    and made again: here, or after an error in the block by whoever opens it next. Raises
    LibraryError, DiskError: the catalogue cannot be written."""
    if not keep:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            make_tables(db)
            yield Catalogue(paths, db)
        return
    paths.make()
    try:
        try:
            db = _open_or_make(paths)
        except _ERRORS as error:
            _delete_damaged(paths, error)
            db = _open_or_make(paths)
        with closing(db):
            yield Catalogue(paths, db)
    except _ERRORS as error:
        _delete_damaged(paths, error)
        raise (DiskError if _result_code(error) == sqlite3.SQLITE_FULL else LibraryError)(
            f"the catalogue {catalogue_path(paths)} cannot be written: {error}",
            "free some space, check who may write there, or point ESA_LIBRARY to another folder; "
            "the file may be deleted, and is made again",
        ) from error


@contextmanager
def search_catalogue(paths: LibraryPaths, copy: bool = False) -> Iterator[Catalogue]:
    """Opens the library's catalogue to search it; if it cannot be written, or `copy`, a copy that
    ends with the block. Raises LibraryError: the folder is no library, or may not be read.
    DiskError: there is no room for what is written into the catalogue."""
    with ExitStack() as stack:
        try:
            opened = None if copy else stack.enter_context(open_catalogue(paths))
        except EsaError:
            opened = None
        if opened is None:
            paths.check()
            db = stack.enter_context(closing(_prepare_tables(_open_copy(paths), paths)))
            opened = Catalogue(paths, db)
        yield opened


def _open_copy(paths: LibraryPaths) -> sqlite3.Connection:
    """Copies the catalogue into a file without a name; an empty one if it cannot be copied."""
    copy = sqlite3.connect("", isolation_level=None)
    with suppress(*_ERRORS), closing(_open_existing(paths)) as db:
        # While this reads nobody else can lock it, for which `backup` would wait without end.
        db.execute("BEGIN")
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
        db.backup(copy)
        if copy.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]:
            return copy
    copy.close()
    return sqlite3.connect("", isolation_level=None)


def _open_existing(paths: LibraryPaths) -> sqlite3.Connection:
    """Opens the catalogue as it is. Raises sqlite3.Error: there is none."""
    address = f"{catalogue_path(paths).absolute().as_uri()}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)


def _open_or_make(paths: LibraryPaths) -> sqlite3.Connection:
    """Opens the catalogue, with all tables; makes a new one if there is none."""
    path = catalogue_path(paths)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # for its owner alone
    except OSError as error:  # where sqlite would open the catalogue only to be read
        raise sqlite3.OperationalError(error.strerror) from error
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    return _prepare_tables(db, paths)


def _prepare_tables(db: sqlite3.Connection, paths: LibraryPaths) -> sqlite3.Connection:
    """Makes the tables and records that are missing; closes the catalogue after an error."""
    with ExitStack() as stack:
        stack.callback(db.close)
        make_tables(db)
        _restore_records(db, paths)
        stack.pop_all()
    return db


def make_tables(db: sqlite3.Connection) -> None:
    """Makes the tables that are missing. Raises LibraryError: sqlite3 lacks full-text search."""
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA cache_size = -65536")
    try:
        db.executescript(_TABLES)
    except sqlite3.OperationalError as error:
        if "no such module" not in str(error):
            raise
        message = "the sqlite3 of this Python has no full-text search (FTS5)"
        raise LibraryError(message, "use another Python, as that of python.org") from error


def _restore_records(db: sqlite3.Connection, paths: LibraryPaths) -> None:
    """Adds the records of synchronised files to a new catalogue, and removes words that another
    version of `content_words` made: they are made again as those that are missing."""
    words = int(words_version()[:7], 16) or 1
    [(version,)] = db.execute("PRAGMA user_version")
    if version == words:
        return
    rows = [] if version else [[*map(_encode_text, record)] for record in _synced_records(paths)]
    db.execute("BEGIN IMMEDIATE")
    with db:
        if db.execute("PRAGMA user_version").fetchone() != (version,):
            return  # another process was faster
        db.executemany(f"INSERT OR IGNORE {_PUT}", rows)
        if version:
            TextIndex(db).clear()
        db.execute(f"PRAGMA user_version = {words}")


def _delete_damaged(paths: LibraryPaths, error: Exception) -> None:
    """Deletes the catalogue if an error says that it is damaged, or has tables of others."""
    decoding = isinstance(error, UnicodeDecodeError) or "Could not decode" in str(error)
    if decoding or _result_code(error) in _DAMAGED:
        # A journal that is left would be applied to the catalogue that is made next.
        for suffix in ("-journal", ""):
            with suppress(OSError):
                (paths.root / (NAME + suffix)).unlink(missing_ok=True)


def _result_code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

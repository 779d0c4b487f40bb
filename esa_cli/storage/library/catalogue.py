"""The catalogue of a library, a sqlite database that finds ingested files and words in texts.

If the catalogue is missing or damaged, it is created again from the stored documents, and from the
files in which `esa ingest --words` records the contents of folders. Sqlite uses a rollback journal,
because a write-ahead log needs shared memory, and several machines may use one library.
docs/library.md says which stored documents are called former; all others are called present."""

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
from esa_cli.storage.library import disk, document_files
from esa_cli.storage.library.disk import LibraryPaths
from esa_cli.storage.library.document_files import LibraryEntry
from esa_cli.system.files import compute_file_stamp, resolve_folder_links, resolve_links
from esa_cli.system.progress import Progress
from esa_cli.system.text import (
    compute_digest_of_word_rules,
    detect_language,
    encode_text,
    find_question_words,
    has_lone_surrogate,
    locate_content_words,
)

BUSY_S = 30.0
"""Seconds to wait at most while another process writes to the catalogue."""
COMMIT_S, MAX_WRITES = 1.0, 100
"""The longest time in seconds, and the largest number of changes, between two transactions."""
CatalogueChange = Callable[[], object]
PASSAGE_WORDS = 150
"""Content words of a passage: about 300 words of English if stop words are counted."""
WHOLE_TEXT_WEIGHT = 0.6
"""Weight of a text's score over all its passages."""
_PASSAGE_BITS = 24
"""A passage's row id is its text's id times 2^24, plus the passage's number in the text."""
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
    SELECT passage >> {_PASSAGE_BITS}, max(score) FROM (
        SELECT passage, sum(score) AS score FROM hits GROUP BY passage) GROUP BY 1),
whole (id, score) AS (
    SELECT id, sum(score) FROM (
        SELECT passage >> {_PASSAGE_BITS} AS id, max(score) AS score FROM hits GROUP BY 1, word)
    GROUP BY 1)
SELECT digest, best.score + {WHOLE_TEXT_WEIGHT} * whole.score AS score
FROM best JOIN whole USING (id) JOIN texts USING (id)
ORDER BY score DESC, characters DESC, id
"""


class FileRecord(NamedTuple):
    """The record of an ingested file in the catalogue of a library."""

    path: str  # absolute
    stamp: str  # the file's size and times, to notice changes
    digest: str  # of the file's text, or empty if the file cannot be read
    bytes: int
    why: str = ""  # why the file cannot be read
    hint: str = ""  # what to try if the file cannot be read
    folder: str = ""  # for which `esa ingest --words` recorded the file, or empty

    @property
    def is_file_unchanged(self) -> bool:
        try:
            return bool(self.stamp) and compute_file_stamp(self.path) == self.stamp
        except OSError:
            return False


def _encode_text_with_lone_surrogates(value: Any) -> Any:
    """Converts text with lone surrogates, such as a file name that is not UTF-8, to bytes."""
    return encode_text(value) if isinstance(value, str) and has_lone_surrogate(value) else value


def _decode_file_record(row: Iterable[Any]) -> FileRecord:
    values = (one.decode(errors="surrogatepass") if isinstance(one, bytes) else one for one in row)
    return FileRecord._make(values)


_SELECT = f"SELECT {', '.join(FileRecord._fields)} FROM files"
_INSERT = f"INTO files VALUES ({', '.join('?' * len(FileRecord._fields))})"


class TextIndex:
    """Searches texts by words with sqlite's full-text search (FTS5). Callers open the transactions.

    Each text is indexed as passages of 150 content words. A text's score is a sum of two terms, the
    second of which counts words in other passages, such as a name in the title:

        max over passages of (sum over words of BM25 score)
        + 0.6 * sum over words of (max over passages of BM25 score).

    Each word of a question is stemmed in every language of the library's texts."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def list_digests(self) -> set[str]:
        return {digest for (digest,) in self._db.execute("SELECT digest FROM texts")}

    def has_text(self, text_digest: str) -> bool:
        rows = self._db.execute("SELECT 1 FROM texts WHERE digest = ?", (text_digest,))
        return rows.fetchone() is not None

    def add_text(self, text: str, text_digest: str) -> None:
        """Adds the words of a text to the index, unless the index has the text."""
        if self.has_text(text_digest):
            return
        insert = "INSERT INTO texts (digest, characters) VALUES (?, ?)"
        row = self._db.execute(insert, (text_digest, len(text))).lastrowid
        assert row is not None
        language = detect_language(text)
        self._db.execute("INSERT OR IGNORE INTO languages (name) VALUES (?)", (language,))
        words = (_replace_apostrophes(word) for _, _, word in locate_content_words(text, language))
        packer, packed, count = zlib.compressobj(1), list[bytes](), 0
        while passage := " ".join(islice(words, PASSAGE_WORDS)):
            data = passage.encode("utf-8", "replace")  # it may have lone surrogates
            values = ((row << _PASSAGE_BITS) + count, data.decode())
            self._db.execute("INSERT INTO passages (rowid, words) VALUES (?, ?)", values)
            packed.append(packer.compress(data + b"\n"))
            count += 1
        blob = b"".join([*packed, packer.flush()])
        update = "UPDATE texts SET passages = ?, words = ? WHERE id = ?"
        self._db.execute(update, (count, blob, row))

    def remove_text(self, text_digest: str) -> None:
        rows = self._db.execute("SELECT id, words FROM texts WHERE digest = ?", (text_digest,))
        for row, words in rows.fetchall():
            try:
                passages = zlib.decompress(words).decode().split("\n")[:-1]
            except (zlib.error, TypeError, UnicodeDecodeError) as error:
                raise sqlite3.DatabaseError(f"Could not decode words of {text_digest}") from error
            self._db.executemany(
                "INSERT INTO passages (passages, rowid, words) VALUES ('delete', ?, ?)",
                [((row << _PASSAGE_BITS) + at, passage) for at, passage in enumerate(passages)],
            )
            self._db.execute("DELETE FROM texts WHERE id = ?", (row,))

    def rank_texts(self, question: str) -> dict[str, float]:
        """Returns the scores of the texts that have a word of the question by their digests, in
        descending order of score and length."""
        languages = [name for (name,) in self._db.execute("SELECT name FROM languages")]
        words = dict.fromkeys(find_question_words(question, languages))
        self._db.execute("CREATE TEMP TABLE IF NOT EXISTS hits (passage, word, score)")
        self._db.execute("DELETE FROM hits")
        for number, stems in enumerate(words):
            query = " OR ".join(f'"{_replace_apostrophes(stem)}"' for stem in stems)
            self._db.execute(_FIND, (number, query))
        return dict(self._db.execute(_RANK))


def _replace_apostrophes(word: str) -> str:
    """Replaces ASCII apostrophes in a word, since an apostrophe would end a token of FTS5."""
    return word.replace("'", "’")


class PresentAndFormerEntries(NamedTuple):
    """The stored documents, divided into present documents and documents whose text no file has."""

    present: list[LibraryEntry]
    former: list[LibraryEntry]


class FileRecordLookup:
    """Finds the catalogue's records of ingested files by path or by digest of the file's text."""

    def __init__(self, paths: LibraryPaths, records: Iterable[FileRecord]) -> None:
        self._is_folder_unmounted = cache(partial(_is_folder_unmounted, paths))
        self._has_files = cache(_has_files)
        self._resolve_links = partial(resolve_folder_links, resolve_folder=cache(resolve_links))
        self._by_path = defaultdict[str, list[FileRecord]](list)
        self._by_text: dict[str, FileRecord] = {}
        for record in records:
            self._by_path[self._resolve_links(record.path)].append(record)
            has_text = record.digest and not self.is_file_removed(record)
            if has_text and (record.folder or os.path.lexists(record.path)):
                self._by_text.setdefault(record.digest, record)

    def is_file_removed(self, record: FileRecord) -> bool:
        """Whether a recorded file was removed, rather than unmounted together with its disk."""
        if os.path.lexists(record.path):
            return False
        if record.folder:
            return not self._is_folder_unmounted(record.folder)
        return not record.digest or self._has_files(os.path.dirname(record.path))

    def find_file_records(self, file_path: str) -> list[FileRecord]:
        """Returns the records of a file's paths, or only up-to-date records if there are any."""
        known = self._by_path.get(self._resolve_links(file_path), []) if file_path else []
        return [record for record in known if record.is_file_unchanged] or known

    def divide_by_presence(self, entries: Sequence[LibraryEntry]) -> PresentAndFormerEntries:
        divided = PresentAndFormerEntries([], [])
        for entry in entries:
            present = entry if entry.error else self._update_entry_file_path(entry)
            (divided.former if present is None else divided.present).append(present or entry)
        return divided

    def _update_entry_file_path(self, entry: LibraryEntry) -> LibraryEntry | None:
        """Returns the entry with the path of a file that has its text now, or None if none has."""
        known = self.find_file_records(entry.file_path)
        digests = [record.digest for record in known if not self.is_file_removed(record)]
        if not known or entry.text_sha256 in digests:
            return entry
        other = self._by_text.get(entry.text_sha256)
        if other is None:
            return None
        names = {"name": os.path.basename(other.path), "source": other.path, "path": other.path}
        return replace(entry, provenance={**entry.provenance, **names})


def _has_files(folder: str) -> bool:
    """Whether a folder exists and is not empty, so that it is on a disk that is mounted."""
    with suppress(OSError), os.scandir(folder) as found:
        return any(found)
    return False


def _is_folder_unmounted(paths: LibraryPaths, folder: str) -> bool:
    """Whether a folder may be on a disk that is not mounted: the folder is missing, or is empty and
    has not changed since the records of its files were written."""
    try:
        if os.listdir(folder):
            return False
        written = _get_folder_records_path(paths, folder).stat().st_mtime_ns
        return os.stat(folder).st_mtime_ns < written
    except OSError:
        return not os.path.isdir(folder)


class Catalogue:
    """A library's records of ingested files and index of texts, opened by one connection to sqlite
    that is not thread-safe. Callers of `store_record` and `remove_records` open a transaction."""

    def __init__(self, paths: LibraryPaths, db: sqlite3.Connection) -> None:
        self._paths, self._db = paths, db
        self.texts = TextIndex(db)

    @contextmanager
    def run_transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield

    def list_records(self) -> list[FileRecord]:
        return [*map(_decode_file_record, self._db.execute(f"{_SELECT} ORDER BY path"))]

    def find_record(self, file_path: str) -> FileRecord | None:
        values = (_encode_text_with_lone_surrogates(file_path),)
        rows = self._db.execute(f"{_SELECT} WHERE path = ?", values).fetchall()
        return _decode_file_record(rows[0]) if rows else None

    def store_record(self, record: FileRecord) -> None:
        self._db.execute(f"REPLACE {_INSERT}", [*map(_encode_text_with_lone_surrogates, record)])

    def remove_records(self, paths: Iterable[str]) -> None:
        rows = [(_encode_text_with_lone_surrogates(path),) for path in paths]
        self._db.executemany("DELETE FROM files WHERE path = ?", rows)

    def list_records_of_synced_files(self) -> list[FileRecord]:
        """Returns the records of files that `esa ingest --words` added, sorted by path."""
        return [record for record in self.list_records() if record.folder]

    def list_present_and_former(self) -> PresentAndFormerEntries:
        entries = document_files.read_manifests(self._paths)
        return self.load_file_record_lookup().divide_by_presence(entries)

    def load_file_record_lookup(self) -> FileRecordLookup:
        return FileRecordLookup(self._paths, self.list_records())

    def save_file_records_of_folder(self, folder: str) -> None:
        """Saves the records of a folder, for new catalogues. Raises LibraryError, DiskError."""
        records = [one._asdict() for one in self.list_records() if one.folder == folder]
        path = _get_folder_records_path(self._paths, folder)
        payload = json.dumps({"folder": folder, "files": records}).encode()
        with self._paths.hold_lock(path.stem), disk.convert_write_errors(self._paths.root):
            if not records:
                path.unlink(missing_ok=True)
            elif _read_folder_records_file(path) != payload:
                disk.write_checksummed_file(path, payload, path.stem)

    def write_changes_in_batches(self, changes: Iterable[CatalogueChange | None]) -> None:
        """Calls functions that change the catalogue, in transactions of about a second. The
        catalogue is not locked while the iterator `changes` prepares the next change."""
        batch, until = list[CatalogueChange](), time.monotonic() + COMMIT_S
        for change in changes:
            batch += [change] if change else []
            if len(batch) == MAX_WRITES or time.monotonic() > until:
                self._write_changes_in_transaction(batch)
                batch, until = [], time.monotonic() + COMMIT_S
        self._write_changes_in_transaction(batch)

    def _write_changes_in_transaction(self, changes: Sequence[CatalogueChange]) -> None:
        if changes:
            with self.run_transaction():
                for change in changes:
                    change()

    def index_stored_texts(self, progress: Progress | None = None) -> list[LibraryError]:
        """Adds the missing texts of stored documents to the index of words, and returns an error
        for each document whose text cannot be read. `progress` gets the texts done and to do."""
        known, errors = self.texts.list_digests(), list[LibraryError]()
        keys = map_text_digests_to_document_keys(self._paths)
        missing = [key for digest, key in keys.items() if digest not in known]

        def yield_additions_of_missing_texts() -> Iterator[CatalogueChange]:
            for done, key in enumerate(missing, 1):
                if progress:
                    progress(done, len(missing))
                try:
                    entry = document_files.read_manifest(self._paths, key)
                    text = document_files.read_document_text(self._paths, entry)
                except LibraryError as error:
                    errors.append(error)
                else:
                    yield partial(self.texts.add_text, text, entry.text_sha256)

        self.write_changes_in_batches(yield_additions_of_missing_texts())
        return errors

    def remove_unused_texts(self) -> None:
        """Removes texts that no document or file has from the index."""
        stored = set(map_text_digests_to_document_keys(self._paths))
        with self.run_transaction():  # within it no other process can begin to use one
            recorded = {record.digest for record in self.list_records()}
            for digest in self.texts.list_digests() - stored - recorded:
                self.texts.remove_text(digest)

    def remove_unused_contents(self) -> None:
        """Removes unused texts, and the records of missing files that were not ingested by `esa
        ingest --words`, and compacts the catalogue's file, which no other process may change."""
        paths = [record.path for record in self.list_records() if not record.folder]
        with self.run_transaction():
            self.remove_records(path for path in paths if not os.path.exists(path))
        self.remove_unused_texts()
        self._db.execute("INSERT INTO passages (passages) VALUES ('optimize')")
        self._db.execute("VACUUM")


def map_text_digests_to_document_keys(paths: LibraryPaths) -> dict[str, str]:
    """Maps the digest of each stored text to the key of the oldest document with the text."""
    keys: dict[str, str] = {}
    entries = document_files.read_manifests(paths)
    for entry in sorted(entries, key=lambda entry: (entry.created, entry.key)):
        if not entry.error:
            keys.setdefault(entry.text_sha256, entry.key)
    return keys


def _read_records_of_synced_files(paths: LibraryPaths) -> list[FileRecord]:
    """Reads what `esa ingest --words` saved, except damaged files, which it writes again."""
    with disk.convert_read_errors(paths.root):
        payloads = [*map(_read_folder_records_file, paths.list_complete_files("folders"))]
    return [FileRecord(**one) for data in payloads if data for one in json.loads(data)["files"]]


def _get_folder_records_path(paths: LibraryPaths, ingested_folder: str) -> Path:
    name = hashlib.blake2b(encode_text(ingested_folder), digest_size=20).hexdigest()
    return paths.folders / f"{name}.folder"


def _read_folder_records_file(records_path: Path) -> bytes:
    """Returns the JSON in a file of a folder's records, or b"" for a missing or damaged file."""
    try:
        return disk.read_checksummed_file(records_path, records_path.stem)
    except LibraryError:
        return b""


def load_file_records(paths: LibraryPaths) -> list[FileRecord]:
    """Returns the records of all ingested files, or only of the files that `esa ingest --words`
    added if the catalogue is unreadable. Raises LibraryError: the folder cannot be read."""
    with suppress(*_ERRORS), closing(_open_existing_catalogue(paths)) as db:
        [(version,)] = db.execute("PRAGMA user_version")
        if version:  # else another process is making it
            return Catalogue(paths, db).list_records()
    return _read_records_of_synced_files(paths)


def load_file_record_lookup(paths: LibraryPaths) -> FileRecordLookup:
    return FileRecordLookup(paths, load_file_records(paths))


@contextmanager
def open_catalogue(paths: LibraryPaths, keep_on_disk: bool = True) -> Iterator[Catalogue]:
    """Opens the library's catalogue, or an empty catalogue in memory if `keep_on_disk` is false. A
    damaged catalogue is deleted and, when a process opens the catalogue next, created again. Raises
    LibraryError, DiskError: the catalogue cannot be written."""
    if not keep_on_disk:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            create_catalogue_tables(db)
            yield Catalogue(paths, db)
        return
    paths.create_library_folders()
    try:
        try:
            db = _open_or_create_catalogue(paths)
        except _ERRORS as error:
            _delete_damaged_catalogue(paths, error)
            db = _open_or_create_catalogue(paths)
        with closing(db):
            yield Catalogue(paths, db)
    except _ERRORS as error:
        _delete_damaged_catalogue(paths, error)
        raise (DiskError if _get_sqlite_error_code(error) == sqlite3.SQLITE_FULL else LibraryError)(
            f"the catalogue {paths.catalogue} cannot be written: {error}",
            "free some space, check the file's permissions, or point ESA_LIBRARY to another disk; "
            "you may also delete the file, which esa then creates again",
        ) from error


@contextmanager
def open_search_catalogue(paths: LibraryPaths, always_copy: bool = False) -> Iterator[Catalogue]:
    """Opens the library's catalogue or, with `always_copy` or if it cannot be written, a temporary
    copy. Raises LibraryError: the folder is not a library, or cannot be read. DiskError."""
    with ExitStack() as stack:
        opened = None
        with suppress(EsaError):
            opened = None if always_copy else stack.enter_context(open_catalogue(paths))
        if opened is None:
            paths.refuse_folder_without_marker()
            db = _set_up_catalogue(_open_temporary_catalogue_copy(paths), paths)
            opened = Catalogue(paths, stack.enter_context(closing(db)))
        yield opened


def _open_temporary_catalogue_copy(paths: LibraryPaths) -> sqlite3.Connection:
    """Opens a temporary copy of the catalogue, or an empty catalogue if copying fails."""
    copy = sqlite3.connect("", isolation_level=None)
    with suppress(*_ERRORS), closing(_open_existing_catalogue(paths)) as db:
        # While this reads nobody else can lock it, for which `backup` would wait without end.
        db.execute("BEGIN")
        db.execute("SELECT 1 FROM sqlite_master").fetchone()
        db.backup(copy)
        if copy.execute("PRAGMA quick_check(1)").fetchall() == [("ok",)]:
            return copy
    copy.close()
    return sqlite3.connect("", isolation_level=None)


def _open_existing_catalogue(paths: LibraryPaths) -> sqlite3.Connection:
    """Opens the library's catalogue without changes. Raises sqlite3.Error: no catalogue exists."""
    address = f"{paths.catalogue.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(address, uri=True, timeout=BUSY_S, isolation_level=None)


def _open_or_create_catalogue(paths: LibraryPaths) -> sqlite3.Connection:
    try:
        os.close(os.open(paths.catalogue, os.O_CREAT | os.O_RDWR, 0o600))  # for its owner alone
    except OSError as error:  # where sqlite would open the catalogue only to be read
        raise sqlite3.OperationalError(error.strerror) from error
    db = sqlite3.connect(paths.catalogue, timeout=BUSY_S, isolation_level=None)
    return _set_up_catalogue(db, paths)


def _set_up_catalogue(db: sqlite3.Connection, paths: LibraryPaths) -> sqlite3.Connection:
    """Adds missing tables and records to a catalogue, and closes the catalogue after an error."""
    with ExitStack() as stack:
        stack.callback(db.close)
        create_catalogue_tables(db)
        _bring_catalogue_up_to_date(db, paths)
        stack.pop_all()
    return db


def create_catalogue_tables(db: sqlite3.Connection) -> None:
    """Creates missing tables. Raises LibraryError: sqlite3 lacks full-text search."""
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA cache_size = -65536")
    try:
        db.executescript(_TABLES)
    except sqlite3.OperationalError as error:
        if "no such module" not in str(error):
            raise
        message = "the sqlite3 of this Python has no full-text search (FTS5)"
        hint = "use a Python whose sqlite3 has FTS5, such as that of python.org"
        raise LibraryError(message, hint) from error


def _bring_catalogue_up_to_date(db: sqlite3.Connection, paths: LibraryPaths) -> None:
    """Adds the records of the folders of `esa ingest --words` to a new catalogue, or removes all
    texts from a catalogue whose words an older version of esa stemmed in another way."""
    words = int(compute_digest_of_word_rules()[:7], 16) or 1
    [(version,)] = db.execute("PRAGMA user_version")
    if version == words:
        return
    records = [] if version else _read_records_of_synced_files(paths)
    rows = [[*map(_encode_text_with_lone_surrogates, record)] for record in records]
    db.execute("BEGIN IMMEDIATE")
    with db:
        if db.execute("PRAGMA user_version").fetchone() != (version,):
            return  # another process was faster
        db.executemany(f"INSERT OR IGNORE {_INSERT}", rows)
        if version:
            db.execute("DELETE FROM texts")
            db.execute("DELETE FROM languages")
            db.execute("INSERT INTO passages (passages) VALUES ('delete-all')")
        db.execute(f"PRAGMA user_version = {words}")


def _delete_damaged_catalogue(paths: LibraryPaths, error: Exception) -> None:
    decoding = isinstance(error, UnicodeDecodeError) or "Could not decode" in str(error)
    if decoding or _get_sqlite_error_code(error) in _DAMAGED:
        # A journal that is left would be applied to the catalogue that is made next.
        for suffix in ("-journal", ""):
            with suppress(OSError):
                Path(f"{paths.catalogue}{suffix}").unlink(missing_ok=True)


def _get_sqlite_error_code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

"""The tables of a catalogue, and values in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from esa_cli.system.content_words import words_version
from esa_cli.system.text import has_lone_surrogate

_TABLES = """
DROP TABLE IF EXISTS manifests;
CREATE TABLE IF NOT EXISTS files (
    path TEXT PRIMARY KEY, stamp TEXT, digest TEXT, bytes INTEGER, why TEXT, hint TEXT,
    folder TEXT DEFAULT '');
CREATE INDEX IF NOT EXISTS file_digests ON files (digest);
CREATE TABLE IF NOT EXISTS texts (
    id INTEGER PRIMARY KEY, digest TEXT UNIQUE, characters INTEGER, passages INTEGER, words BLOB);
CREATE TABLE IF NOT EXISTS languages (name TEXT PRIMARY KEY);
"""
_RESTORE = """
INSERT OR IGNORE INTO files (path, stamp, digest, bytes, why, hint, folder)
VALUES (:path, :stamp, :digest, :bytes, :why, :hint, :folder)
"""
# Contentless: the words are in `texts`, compressed. ASCII: stems have no capitals, and every other
# character counts as a letter.
_PASSAGES = "CREATE VIRTUAL TABLE passages USING fts5(words, content='', tokenize='ascii')"
Value = TypeVar("Value")


class DamagedRowError(sqlite3.DatabaseError):
    """What a row has cannot be decoded."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def sql_text(value: Value) -> Value | bytes:
    """A value for the catalogue: text with lone surrogates, as of file names that are not UTF-8,
    as bytes."""
    if not isinstance(value, str) or value.isascii() or not has_lone_surrogate(value):
        return value
    return value.encode("utf-8", "surrogatepass")


def of_sql(value: Any) -> Any:
    """What `sql_text` was given."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else value


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Everything that the block writes, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # where the disk is full, sqlite has ended it
            db.execute("ROLLBACK")
        raise


def searchable(db: sqlite3.Connection) -> bool:
    """Whether this Python's sqlite3 has full-text search (FTS5)."""
    try:
        db.execute("SELECT rowid FROM passages LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def prepare(db: sqlite3.Connection) -> None:
    """Makes the tables that are not there."""
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("PRAGMA cache_size = -65536")
    db.executescript(_TABLES)
    if not searchable(db):
        try:
            db.execute(_PASSAGES)
        except sqlite3.OperationalError as error:
            if "no such module" not in str(error) and "already exists" not in str(error):
                raise


def restore(db: sqlite3.Connection, records: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Adds the records of synchronised files to a catalogue that was made now, and removes words
    that another version of `content_words` made: they are made again as those that are missing."""
    words = int(words_version()[:7], 16) or 1
    [(version,)] = db.execute("PRAGMA user_version")
    if version == words:
        return
    rows = [{name: sql_text(value) for name, value in one.items()} for one in records()]
    with transaction(db):
        if db.execute("PRAGMA user_version").fetchone() != (version,):
            return  # another process was faster
        if not version:
            db.executemany(_RESTORE, rows)
        elif searchable(db):
            db.execute("DELETE FROM texts")
            db.execute("DELETE FROM languages")
            db.execute("INSERT INTO passages (passages) VALUES ('delete-all')")
        db.execute(f"PRAGMA user_version = {words}")

"""Files that were read: their size and time, the digest of their text, or why they cannot be read.

A record is used while its file has the same size and time.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Container, Iterable
from typing import NamedTuple

from esa_cli.storage.library.catalogue.catalogue_tables import of_sql, sql_text
from esa_cli.system.files import file_stamp


class FileRecord(NamedTuple):
    """A file as it was read.

    `path` is absolute. `digest` is that of its text; empty where it cannot be read: `why` and
    `hint` then say so. `folder`: that of `esa sync`; empty: it was asked only.
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


_COLUMNS = ", ".join(FileRecord._fields)


class FileRecords:
    """The records of a catalogue. The caller opens transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def find(self, path: str) -> FileRecord | None:
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM files WHERE path = ?", (sql_text(path),))
        found = rows.fetchone()
        return FileRecord(*map(of_sql, found)) if found else None

    def put(self, record: FileRecord) -> None:
        """Adds or replaces the record of a path."""
        marks = ", ".join("?" * len(record))
        self._db.execute(
            f"REPLACE INTO files ({_COLUMNS}) VALUES ({marks})", tuple(map(sql_text, record))
        )

    def remove(self, paths: Iterable[str]) -> None:
        rows = [(sql_text(path),) for path in paths]
        self._db.executemany("DELETE FROM files WHERE path = ?", rows)

    def below(self, folder: str) -> list[FileRecord]:
        """Those of files in a folder or below it."""
        start = os.path.join(folder, "")
        return [one for one in self.all() if one.path.startswith(start)]

    def synced(self) -> list[FileRecord]:
        """Readable files that `esa sync` has put into the library, by path."""
        return [one for one in self.all_synced() if one.digest]

    def all_synced(self) -> list[FileRecord]:
        """Those and the files of such folders that cannot be read, or were removed, by path."""
        return [one for one in self.all() if one.folder]

    def gone(self) -> list[str]:
        """Paths of files that do not exist any more, but those of `esa sync`."""
        return [one.path for one in self.all() if not one.folder and not os.path.exists(one.path)]

    def kept_digests(self, removed: Container[str]) -> set[str]:
        """Digests of the texts of files, but those removed and those that were asked only and do
        not exist any more. A file of `esa sync` may be on a disk that is away."""
        kept = [one for one in self.all() if one.path not in removed]
        return {one.digest for one in kept if one.folder or os.path.lexists(one.path)}

    def digests(self) -> set[str]:
        """Digests of the texts of all files."""
        return {digest for (digest,) in self._db.execute("SELECT digest FROM files")}

    def all(self) -> list[FileRecord]:
        """Those of all files, by path."""
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM files ORDER BY path")
        return [FileRecord(*map(of_sql, row)) for row in rows]

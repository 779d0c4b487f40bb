"""Files that were read, those of `esa ingest --words`, and which stored documents are present.

A record has a file's size and time, the digest of its text, or why it cannot be read, and is used
while the file has the same size and time. The records of a folder of `esa ingest --words` are in a
small file of their own, too, for a catalogue that is made again.

A document is former where its file has another text now or was removed, and no other file has its
text. It stays on disk until it is pruned. What files say is what their records say, so whoever
answers brings these up to date first (`qa.ingestion.library_texts`). A document stays present where
nothing is known of its file: it came from standard input or another machine, or its disk is away.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.errors import LibraryError
from esa_cli.storage.library.catalogue.catalogue_tables import of_sql, sql_text
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.checksummed_file import read_errors, write_errors
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.system.files import file_stamp, real_path
from esa_cli.system.text import text_bytes


class FileRecord(NamedTuple):
    """A file as it was read.

    `path` is absolute. `digest` is that of its text; empty where it cannot be read: `why` and
    `hint` then say so. `folder`: that of `esa ingest --words`; empty: it was asked only.
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
        """Readable files that `esa ingest --words` has put into the library, by path."""
        return [one for one in self.all_synced() if one.digest]

    def all_synced(self) -> list[FileRecord]:
        """Those and the files of such folders that cannot be read, or were removed, by path."""
        return [one for one in self.all() if one.folder]

    def gone(self) -> list[str]:
        """Paths of files that do not exist any more, but those of `esa ingest --words`."""
        return [one.path for one in self.all() if not one.folder and not os.path.exists(one.path)]

    def kept_digests(self, removed: Container[str]) -> set[str]:
        """Digests of the texts of files, but those removed and those that were asked only and do
        not exist any more. A file of `esa ingest --words` may be on a disk that is away."""
        kept = [one for one in self.all() if one.path not in removed]
        return {one.digest for one in kept if one.folder or os.path.lexists(one.path)}

    def digests(self) -> set[str]:
        """Digests of the texts of all files."""
        return {digest for (digest,) in self._db.execute("SELECT digest FROM files")}

    def all(self) -> list[FileRecord]:
        """Those of all files, by path."""
        rows = self._db.execute(f"SELECT {_COLUMNS} FROM files ORDER BY path")
        return [FileRecord(*map(of_sql, row)) for row in rows]


FOLDER_KIND = "folder"


def write_synced(paths: LibraryPaths, folder: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the records of a folder; without records its file is removed. Raises LibraryError,
    DiskError: it cannot be written."""
    name = _folder_name(folder)
    path = paths.synced_folder(name)
    payload = json.dumps({"folder": folder, "files": list(records)}).encode()
    with paths.locked(name), write_errors(paths.root):
        if not records:
            path.unlink(missing_ok=True)
        elif _folder_payload(path) != payload:
            checksummed_file.write(path, FOLDER_KIND, payload, name)


def synced_records(paths: LibraryPaths) -> list[dict[str, Any]]:
    """The records of all folders. One whose file is damaged has none: its next `esa ingest --words`
    writes the file again. Raises LibraryError: the folder may not be read."""
    with read_errors(paths.root):
        payloads = [_folder_payload(path) for path in paths.whole("folders")]
    return [record for one in payloads if one for record in json.loads(one)["files"]]


def is_away(paths: LibraryPaths, folder: str) -> bool:
    """Whether a synchronised folder may be on a disk that is away: it does not exist, or nothing is
    in it and nothing was removed from it since its records were written, as of a mount point."""
    try:
        if os.listdir(folder):
            return False
        written = paths.synced_folder(_folder_name(folder)).stat().st_mtime_ns
        return os.stat(folder).st_mtime_ns < written
    except OSError:
        return not os.path.isdir(folder)


def _folder_name(folder: str) -> str:
    return hashlib.blake2b(text_bytes(folder), digest_size=20).hexdigest()


def _folder_payload(path: Path) -> bytes:
    """Empty where the file is missing, damaged or of another version."""
    try:
        return checksummed_file.read(path, FOLDER_KIND, path.stem)
    except LibraryError:
        return b""


class DividedEntries(NamedTuple):
    """Stored documents: those that are present, with the name and path of a file that has their
    text, and former ones. Both in the order in which they were given."""

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
        """Whether a file was removed: one of `esa ingest --words` does not exist, though its folder
        does; of another its folder must have been read since."""
        if not record.folder:
            return not record.digest and not os.path.lexists(record.path)
        return not os.path.lexists(record.path) and not self._is_away(record.folder)

    def of_path(self, path: str) -> list[FileRecord]:
        """Records of a file, by whatever path it was read; the current ones, if there are some."""
        known = self._of_path.get(self._resolved(path), []) if path else []
        return [one for one in known if one.is_current] or known

    def divide(self, entries: Sequence[Entry]) -> DividedEntries:
        """Present and former documents; damaged ones are present."""
        divided = DividedEntries([], [])
        for entry in entries:
            present = entry if entry.damage else self._present(entry)
            (divided.former if present is None else divided.present).append(present or entry)
        return divided

    def _present(self, entry: Entry) -> Entry | None:
        """The document, under the name of a file that has its text; None: it is former."""
        known = self.of_path(entry.file)
        if not known:
            return entry
        if any(one.digest == entry.text_sha256 and not self.is_removed(one) for one in known):
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

"""Copies of a library's manifests in its catalogue, so that listing thousands opens no file.

A copy is used while its file has the stamp it had when it was read, and its checksum is verified as
the file's is. Manifests that cannot be used have no copy, and are read each time. Another process
may drop a copy that it has not listed, so whoever deletes files reads the manifests themselves.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from esa_cli.errors import LibraryError
from esa_cli.storage.library.catalogue.catalogue_tables import sql_text, transaction
from esa_cli.storage.library.formats import manifest
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.system.files import file_stamp

_COLUMNS = "key, stamp, name, source, text_sha256, created, data"


class ManifestCopies:
    """The copies, brought up to date when this is made. Raises LibraryError: the folder may not be
    read."""

    def __init__(self, paths: LibraryPaths, db: sqlite3.Connection) -> None:
        self._paths, self._db = paths, db
        self._unusable: dict[str, Entry] = {}
        self._refresh()

    def entries(self) -> list[Entry]:
        """Every document, the most recently used first."""
        return self._chosen("", ())

    def matching(self, text: str) -> list[Entry]:
        """Those whose key begins with `text`, or whose name or source it is."""
        prefix = text.lower() if len(text) >= 4 else ""

        def fits(entry: Entry) -> bool:
            by_key = bool(prefix) and entry.key.startswith(prefix)
            return by_key or text in (entry.name, entry.provenance.get("source"))

        begins = "key >= ? AND key < ? OR " if prefix else ""
        values = (prefix, prefix + "g") if prefix else ()
        found = self._chosen(f"WHERE {begins} name = ? OR source = ?", (*values, text, text))
        # An index of the catalogue may be damaged: what it does not find is looked for in all.
        return list(filter(fits, found)) or list(filter(fits, self.entries()))

    def digests(self) -> list[tuple[str, str]]:
        """(key, digest of its text) of the documents that can be used, in the order in which they
        were stored."""
        return self._db.execute(
            "SELECT key, text_sha256 FROM manifests ORDER BY created, key"
        ).fetchall()

    def _chosen(self, where: str, values: tuple[str, ...]) -> list[Entry]:
        """Those that a condition chooses, and all that cannot be used."""
        chosen = tuple(map(sql_text, values))
        rows = self._db.execute(f"SELECT key, data FROM manifests {where}", chosen)
        found = [one for key, data in rows if (one := self._entry(key, data)) is not None]
        return manifest.last_used_first([*found, *self._unusable.values()])

    def _entry(self, key: str, data: bytes) -> Entry | None:
        """Of a verified copy; where that is damaged, of the file."""
        try:
            entry = manifest.decode_entry(self._paths, key, data)
        except LibraryError:
            self._db.execute("DELETE FROM manifests WHERE key = ?", (key,))
            return manifest.read_or_none(self._paths, key)
        return replace(entry, used=manifest.last_use(self._paths, key, entry.created))

    def _refresh(self) -> None:
        there = manifest.keys(self._paths)
        known = dict(self._db.execute("SELECT key, stamp FROM manifests"))
        gone = [(key,) for key in known if key not in there]
        changed = [key for key in there if self._is_stale(key, known.get(key))]
        rows = [row for key in sorted(changed) if (row := self._read(key)) is not None]
        read = {row[0] for row in rows}
        gone += [(key,) for key in changed if key in known and key not in read]
        if not gone and not rows:
            return
        with transaction(self._db):
            self._db.executemany("DELETE FROM manifests WHERE key = ?", gone)
            marks = "?, ?, ?, ?, ?, ?, ?"
            self._db.executemany(f"REPLACE INTO manifests ({_COLUMNS}) VALUES ({marks})", rows)

    def _is_stale(self, key: str, stamp: str | None) -> bool:
        try:
            return not stamp or file_stamp(self._paths.document(key)) != stamp
        except OSError:
            return True

    def _read(self, key: str) -> tuple[object, ...] | None:
        """The row of a manifest; None where it cannot be used, or was removed meanwhile."""
        path = self._paths.document(key)
        try:
            stamp = file_stamp(path)
            data = path.read_bytes()
            entry = manifest.decode_entry(self._paths, key, data)
        except (OSError, LibraryError):
            unusable = manifest.read_or_none(self._paths, key)
            if unusable is not None:
                self._unusable[key] = unusable
            return None
        source = entry.provenance.get("source")
        names = sql_text(entry.name), sql_text(source)
        return key, stamp, *names, entry.text_sha256, entry.created, data

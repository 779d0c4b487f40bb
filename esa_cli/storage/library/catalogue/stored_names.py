"""Keys and names of stored documents, for whoever cannot wait: a shell that completes a word.

Nothing is written, and no lock is waited for. Names come from the catalogue as it is; the manifests
of documents that it lacks are read, some of them.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing

from esa_cli.storage.library.catalogue.catalogue_file import catalogue_path
from esa_cli.storage.library.catalogue.catalogue_tables import of_sql
from esa_cli.storage.library.formats import manifest
from esa_cli.storage.library.formats.library_paths import LibraryPaths

BUSY_S = 0.2
"""Seconds of waiting while another process writes the catalogue."""
MOST_READ = 100
"""Manifests that are read at most."""


def stored_names(paths: LibraryPaths) -> dict[str, str]:
    """Key -> name of the documents; an empty name where it is not known. Raises LibraryError: the
    folder may not be read."""
    known, found = _catalogue_names(paths), dict[str, str]()
    left = MOST_READ
    for key in sorted(manifest.keys(paths)):
        name = known.get(key)
        if name is None and left:
            left -= 1
            entry = manifest.read_or_none(paths, key)
            name = entry.name if entry else None
        found[key] = name or ""
    return found


def _catalogue_names(paths: LibraryPaths) -> dict[str, str]:
    address = f"{catalogue_path(paths).absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=BUSY_S)) as db:
            return {
                key: str(of_sql(name))
                for key, name in db.execute("SELECT key, name FROM manifests")
            }
    except (sqlite3.Error, UnicodeError):
        return {}

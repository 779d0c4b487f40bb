"""The files of folders that `esa sync` keeps in the library: one small file of records a folder.

The catalogue has the same records and is asked; these are for a catalogue that is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esa_cli.errors import LibraryError
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.checksummed_file import read_errors, write_errors
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.system.text import text_bytes

KIND = "folder"


def write(paths: LibraryPaths, folder: str, records: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the records of a folder; without records its file is removed. Raises LibraryError,
    DiskError: it cannot be written."""
    name = _name(folder)
    path = paths.synced_folder(name)
    payload = json.dumps({"folder": folder, "files": list(records)}).encode()
    with paths.locked(name), write_errors(paths.root):
        if not records:
            path.unlink(missing_ok=True)
        elif _payload(path) != payload:
            checksummed_file.write(path, KIND, payload, name)


def read_all(paths: LibraryPaths) -> list[dict[str, Any]]:
    """The records of all folders. One whose file is damaged has none: its next `esa sync` writes
    the file again. Raises LibraryError: the folder may not be read."""
    with read_errors(paths.root):
        payloads = [_payload(path) for path in paths.whole("folders")]
    return [record for one in payloads if one for record in json.loads(one)["files"]]


def is_away(paths: LibraryPaths, folder: str) -> bool:
    """Whether a synchronised folder may be on a disk that is away: it does not exist, or nothing is
    in it and nothing was removed from it since its records were written, as of a mount point."""
    try:
        if os.listdir(folder):
            return False
        written = paths.synced_folder(_name(folder)).stat().st_mtime_ns
        return os.stat(folder).st_mtime_ns < written
    except OSError:
        return not os.path.isdir(folder)


def _name(folder: str) -> str:
    return hashlib.blake2b(text_bytes(folder), digest_size=20).hexdigest()


def _payload(path: Path) -> bytes:
    """Empty where the file is missing, damaged or of another version."""
    try:
        return checksummed_file.read(path, KIND, path.stem)
    except LibraryError:
        return b""

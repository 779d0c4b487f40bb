"""Which folder is a library: one with our mark in it. Everything else is somebody's own.

Whoever points ESA_LIBRARY to a folder of theirs by mistake must lose nothing. A library has the
mark from its first moment on; older ones are told by what they consist of, and get it with the next
change.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from esa_cli.storage.library.checksummed_file import LibraryError, readable
from esa_cli.storage.library.names import FOLDERS, is_document

MARK = "esa-library"
_TEXT = (
    "This folder is a library of esa: documents that were read once.\n"
    "`esa library --help` says how to look after it. Do not put files of your own here.\n"
)


def check(root: Path) -> None:
    """Refuses a folder that is neither a library, nor empty, nor missing.

    Raises:
        LibraryError: it is such a folder, or may not be read.
    """
    with readable(root):
        if (root / MARK).exists() or not root.exists() or _older(root):
            return
        # Looked for once more: another esa may have made the library meanwhile.
        if os.listdir(root) and not (root / MARK).exists():
            raise LibraryError(
                f"{root} is not a library of esa, and not empty",
                f"point ESA_LIBRARY to a folder of its own, as {root / 'library'}; "
                "it need not be there",
            )


def _older(root: Path) -> bool:
    """Whether it is a library that was made before there was a mark."""
    if all((root / name).is_dir() for name in FOLDERS):
        return True
    documents = root / "documents"
    return documents.is_dir() and any(is_document(name) for name in os.listdir(documents))


def put(root: Path) -> None:
    """Marks the folder as a library. Raises OSError."""
    with contextlib.suppress(FileExistsError), open(root / MARK, "x", encoding="utf-8") as file:
        file.write(_TEXT)

"""Documents on disk: read once, asked for ever. `Library` is the way in; see docs/library.md.

Importing this imports no torch; `esa_cli.library.contents` and `.layer` do.
"""

from __future__ import annotations

from esa_cli.library.entry import Entry
from esa_cli.library.layout import SEGMENT, Layout
from esa_cli.library.library import Library, plain
from esa_cli.library.places import default_root
from esa_cli.library.sealed import DiskError, ForeignVersionError, LibraryError, UnreadableError
from esa_cli.library.sweep import Pruned

__all__ = [
    "SEGMENT",
    "DiskError",
    "Entry",
    "ForeignVersionError",
    "Layout",
    "Library",
    "LibraryError",
    "Pruned",
    "UnreadableError",
    "default_root",
    "plain",
]

"""Documents on disk: read once, asked for ever. `Library` is the way in; see docs/library.md.

Importing this imports no torch; `esa_cli.library.contents` and `.layer` do.
"""

from __future__ import annotations

from .entry import Entry
from .layout import SEGMENT, Layout
from .library import Library, plain
from .places import default_root
from .sealed import DiskError, ForeignVersionError, LibraryError, UnreadableError
from .sweep import Pruned

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

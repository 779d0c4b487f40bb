"""Prefilled documents on disk, by `Library`; see docs/library.md. Imports no torch."""

from __future__ import annotations

from esa_cli.storage.library.catalogue.catalogue import Catalogue
from esa_cli.storage.library.catalogue.file_records import FileRecord
from esa_cli.storage.library.formats.library_paths import default_root
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.formats.row_layout import SEGMENT, Layout
from esa_cli.storage.library.library import Library
from esa_cli.storage.library.maintenance import PruneResult

__all__ = [
    "SEGMENT",
    "Catalogue",
    "Entry",
    "FileRecord",
    "Layout",
    "Library",
    "PruneResult",
    "default_root",
]

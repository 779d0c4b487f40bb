"""Stores prefilled documents on disk, as docs/library.md describes. Imports no torch."""

from __future__ import annotations

from esa_cli.storage.library.catalogue import Catalogue, FileRecord
from esa_cli.storage.library.document_files import SEGMENT, Layout, LibraryEntry
from esa_cli.storage.library.library import Library

__all__ = ["SEGMENT", "Catalogue", "FileRecord", "Layout", "Library", "LibraryEntry"]

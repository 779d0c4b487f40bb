"""The check of a whole export before anything of it is in a library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from esa_cli.errors import LibraryError
from esa_cli.storage.library.contents_check import check_data, check_segment, document_files
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.formats.row_layout import Layout
from esa_cli.storage.library.transfer import export_format
from esa_cli.storage.library.transfer.damaged_copy import file_name
from esa_cli.storage.library.transfer.exported_file import ExportedFile, export_errors
from esa_cli.storage.library.transfer.manifest_check import checked_entry
from esa_cli.system.progress import Progress


def check_export(export: ExportedFile, progress: Progress | None = None) -> list[Entry]:
    """The documents of an export, all of it checked: every byte, that every document has its files
    and every file its document, and that contents fit their names.

    Args:
        progress: called with the files read and all.

    Raises:
        ExportFileError: it must not be imported. ForeignVersionError: it has a document of another
            format.
    """
    for number, _ in enumerate(export.check(), 1):
        if progress:
            progress(number, len(export.members))
    paths = LibraryPaths(Path())  # of no library: paths are the members' names
    with export_errors(export.path):
        entries = list(_entries(paths, export))
        _check_files(paths, export, entries)
    return entries


def _entries(paths: LibraryPaths, export: ExportedFile) -> Iterator[Entry]:
    for name, member in export.members.items():
        if not name.endswith(".doc"):
            continue
        if member.size > export_format.MOST_MANIFEST:
            raise LibraryError(f"{name} must have at most {export_format.MOST_MANIFEST:,} bytes")
        key = name.rpartition("/")[2].removesuffix(".doc")
        yield checked_entry(paths, key, export.read(name))


def _check_files(paths: LibraryPaths, export: ExportedFile, entries: list[Entry]) -> None:
    """Every document has its files, each with its contents, and there is no other file."""
    checked = set[tuple[str, Layout]]()
    for entry in entries:
        for path in document_files(paths, entry):
            name = file_name(paths, path)
            if (name, entry.layout) in checked:  # another document has it, too
                continue
            if path.suffix == ".seg":
                check_segment(export.path, path, entry, export.place(name))
            else:
                check_data(path, entry, export.read(name))
            checked.add((name, entry.layout))
    needed = {name for name, _ in checked}
    for name in export.members:
        if name not in needed and not name.endswith(".doc"):
            raise LibraryError(f"{name} belongs to none of its documents")

"""The check of a whole export before anything of it is in a library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from esa_cli.errors import LibraryError
from esa_cli.storage.library.contents_check import check_contents, check_projections
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.storage.library.formats.state_file import decode_states
from esa_cli.storage.library.transfer import export_format
from esa_cli.storage.library.transfer.damaged_copy import file_name
from esa_cli.storage.library.transfer.document_copy import document_files
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
        checked = set[str]()
        for entry in entries:
            _check_document(paths, export, entry, checked)
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
    """Every document has its files, of the sizes that it says, and there is no other file."""
    needed = dict[str, Entry]()
    for entry in entries:
        sizes = dict.fromkeys(entry.sizes, 0)
        for path in document_files(paths, entry):
            name = file_name(paths, path)
            needed[name] = entry
            kind = {".seg": "segments", ".fit": "fit"}.get(path.suffix, path.suffix[1:])
            sizes[kind] += export.place(name)[1]
        if sizes != entry.sizes:
            raise LibraryError(f"the files of document {entry.id} have other sizes than it says")
    for name in export.members:
        if name not in needed and not name.endswith(".doc"):
            raise LibraryError(f"{name} belongs to none of its documents")


def _check_document(
    paths: LibraryPaths, export: ExportedFile, entry: Entry, checked: set[str]
) -> None:
    """Its own files, and those of its segments and projections that are not `checked` yet."""
    from esa_cli.storage.library.formats.segment import Segment

    own = {
        kind: export.read(file_name(paths, paths.document(entry.key, kind))) for kind in entry.kinds
    }
    check_contents(paths, entry, own["text"], own["tokens"])
    if "states" in own:
        decode_states(own["states"], paths.document(entry.key, "states"), entry)
    if entry.fit not in {"none", *checked}:
        check_projections(paths, entry, export.read(file_name(paths, paths.fit(entry.fit))))
        checked.add(entry.fit)
    for index, name in enumerate(entry.segments):
        if name in checked:
            continue
        place = export.place(file_name(paths, paths.segment(name)))
        tokens = entry.segment_tokens(index)
        Segment(export.path, entry.layout, tokens, entry.key, name, place).check()
        checked.add(name)

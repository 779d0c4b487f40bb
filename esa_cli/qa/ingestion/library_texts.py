"""Lists the texts in a library, and records from which files these texts were extracted.

Changed files are parsed again before a question, so that no answer uses an outdated text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from esa_cli.documents.document import Document, read_document
from esa_cli.documents.readers.text_builder import Mark
from esa_cli.documents.sources import FoundFiles, LeftOutFiles, find_readable_files
from esa_cli.errors import DiskError, DocumentError, LibraryError, UsageError
from esa_cli.storage.library import Catalogue, FileRecord, Library, LibraryEntry
from esa_cli.system.files import compute_file_stamp, resolve_folder_links, resolve_links
from esa_cli.system.progress import Progress
from esa_cli.system.text import digest_text

INDEX = "index"
"""The value of `rows` in the provenance of a token index."""


def rebuild_document(
    text: str, page_marks: Sequence[Any], provenance: Mapping[str, Any]
) -> Document:
    """Rebuilds a document from its stored text, page marks, and provenance (name, path, size)."""
    keys = ("name", "source", "bytes", "missing")
    name, source, size, missing = (provenance[key] for key in keys)
    places = tuple(Mark(*mark) for mark in page_marks)
    return Document(name, text, source, "utf-8", size, places, tuple(missing))


def rebuild_stored_document(library: Library, entry: LibraryEntry) -> Document:
    """Rebuilds a document from its library entry. Raises LibraryError: the document is damaged."""
    known = entry.provenance
    source = known.get("path") or known["source"]
    return rebuild_document(library.text(entry), entry.marks, {**known, "source": source})


@dataclass
class FileChanges:
    """The changes that one call of `index_files` has made to records of files."""

    records: list[FileRecord] = field(default_factory=list)  # of all files, in order
    added: list[FileRecord] = field(default_factory=list)  # of files that could not be read before
    changed: list[FileRecord] = field(default_factory=list)  # of files that had another text
    read: int = 0  # the number of files that were opened
    former: list[str] = field(default_factory=list)  # digests of the former texts of changed files

    @property
    def readable_records(self) -> list[FileRecord]:
        """The records of the files from which a text could be extracted."""
        return [one for one in self.records if one.digest]

    @property
    def refused_records(self) -> list[FileRecord]:
        """The records of the files that cannot be parsed."""
        return [one for one in self.records if not one.digest]


def index_files(
    catalogue: Catalogue, paths: Sequence[str], progress: Progress | None = None, folder: str = ""
) -> FileChanges:
    """Parses new and changed files, and adds their records and words to the catalogue."""
    changes = FileChanges()

    def iterate_record_writers() -> Iterator[Callable[[], None] | None]:
        for path in paths:
            write = _parse_file_if_changed(catalogue, os.path.abspath(path), folder, changes)
            if progress:
                progress(len(changes.records), len(paths))
            yield write

    catalogue.write_changes_in_batches(iterate_record_writers())
    if changes.former:
        catalogue.remove_unused_texts()
    return changes


def _parse_file_if_changed(
    catalogue: Catalogue, path: str, folder: str, changes: FileChanges
) -> Callable[[], None] | None:
    """Parses a file if it has changed, and returns a function that writes the new record."""
    known = catalogue.find_record(path) or FileRecord(path, "", "", 0)
    folder, text = folder or known.folder, ""
    # A record alone is of a catalogue that was lost: its words are missing.
    has_words = not known.digest or catalogue.texts.has_text(known.digest)
    if known.is_file_unchanged and has_words:
        record = known._replace(folder=folder, why="" if known.digest else known.why)
    else:
        stamp = ""
        with suppress(OSError):
            stamp = compute_file_stamp(path)
        try:
            document = read_document(path)
            record, text = _make_file_record(document, path, folder), document.text
        except DocumentError as error:
            record = FileRecord(path, stamp, "", 0, error.message, error.hint, folder)
        if known.digest and not record.digest and not os.path.lexists(path):
            changes.records.append(record)
            return None  # it may be on a disk that is away, so its record stays
        changes.read += 1
        if record.digest != known.digest:
            changes.former += [known.digest] if known.digest else []
            if record.digest:
                (changes.changed if known.digest else changes.added).append(record)
    changes.records.append(record)
    if record == known and not text:
        return None

    def store_parsed_file() -> None:
        if text:
            catalogue.texts.add_text(text, record.digest)
        catalogue.store_record(record)

    return store_parsed_file


def _make_file_record(document: Document, path: str, folder: str) -> FileRecord:
    digest = digest_text(document.text)
    return FileRecord(path, document.stamp or "", digest, document.bytes, folder=folder)


def record_file_of_document(catalogue: Catalogue, document: Document) -> None:
    """Records that the file of a document has the document's text now."""
    path = os.path.abspath(document.source)
    known = catalogue.find_record(path)
    record = _make_file_record(document, path, known.folder if known else "")
    if record != known:
        with catalogue.run_transaction():
            catalogue.store_record(record)


class FolderSyncResult(NamedTuple):
    """The changed, removed and skipped files that `sync_folder` found in a folder."""

    changes: FileChanges
    removed: list[FileRecord]
    left_out: tuple[LeftOutFiles, ...]


def check_indexable_folder(folder: str, library: Library) -> str:
    """Returns a folder's absolute path. Raises DocumentError, UsageError: it cannot be indexed."""
    if not os.path.isdir(folder):
        raise DocumentError(f"{folder or 'FOLDER'} must be a folder", "name a folder")
    path = os.path.abspath(folder)
    root, real = (os.path.join(resolve_links(one), "") for one in (library.root, path))
    if root.startswith(real) or real.startswith(root):
        which = "contain" if root.startswith(real) else "be in"
        wrong = f"the folder must not {which} the library {library.root}, got {folder}"
        raise UsageError(wrong, "set ESA_LIBRARY to another folder, or name another folder")
    return path


def sync_folder(
    catalogue: Catalogue, folder: str, *, prune: bool = False, prune_if_empty: bool = False,
    progress: Progress | None = None,
) -> FolderSyncResult:  # fmt: skip
    """Updates the catalogue's records of the files in a folder, given by its absolute path. With
    `prune` the caller will delete the records of removed files. A removed file's record gets a
    `why`, which is empty in the first result that lists the file.

    Raises DocumentError: the folder cannot be listed, or with `prune` has no document left, unless
    `prune_if_empty`. LibraryError, DiskError."""
    if not os.path.isdir(folder):
        raise DocumentError(f"{folder} must be a folder", "name a folder; nothing was changed")
    found = find_readable_files(folder)
    changes = index_files(catalogue, found.files, progress, folder)
    gone = record_removed_files(catalogue, folder, found, folder, prune and prune_if_empty)
    removed = [one for one in _find_removed_files(catalogue, folder, found) if one.folder]
    if prune and (gone or removed) and not found.files and not prune_if_empty:
        hint = "mount the folder's disk, or use esa ingest --prune --yes if files were removed"
        raise DocumentError(f"no document is left in {folder}, so nothing is pruned", hint)
    if removed and found.files:  # else the folder may be on a disk that is away
        with catalogue.run_transaction():
            for one in removed:
                catalogue.store_record(one._replace(why=f"there is no document {one.path}"))
    catalogue.save_file_records_of_folder(folder)
    return FolderSyncResult(changes, removed, found.summarise_left_out_files(folder))


def delete_removed_file_records(catalogue: Catalogue, folder: str, sync: FolderSyncResult) -> None:
    with catalogue.run_transaction():
        catalogue.remove_records(one.path for one in sync.removed)
    catalogue.remove_unused_texts()
    catalogue.save_file_records_of_folder(folder)


def _find_removed_files(catalogue: Catalogue, folder: str, found: FoundFiles) -> list[FileRecord]:
    left_out = [path for paths in found.left_out.values() for path in paths]
    listed = {os.path.abspath(path) for path in (*found.files, *left_out)}
    closed = tuple(os.path.join(path, "") for path in left_out)
    return [
        one for one in catalogue.list_records()
        if one.path.startswith(os.path.join(folder, "")) and one.path not in listed
        and not one.path.startswith(closed) and not os.path.lexists(one.path)
    ]  # fmt: skip


def record_removed_files(
    catalogue: Catalogue, folder: str, found_files: FoundFiles, synced_folder: str = "",
    even_if_empty: bool = False,
) -> list[FileRecord]:  # fmt: skip
    """Records which individually ingested files of a folder no longer exist, and returns their
    former records. By default none is changed if the folder, perhaps a disk's, has no document."""
    stored = {entry.file_path for part in catalogue.list_present_and_former() for entry in part}
    gone = [one for one in _find_removed_files(catalogue, folder, found_files) if not one.folder]
    gone = [one for one in gone if one.digest and resolve_folder_links(one.path) in stored]
    if gone and (found_files.files or even_if_empty):
        with catalogue.run_transaction():
            for one in gone:
                catalogue.store_record(FileRecord(one.path, "", "", 0, folder=synced_folder))
    return gone


def record_removed_files_of_folders(library: Library, paths: Sequence[str]) -> list[str]:
    """Records which ingested files of folders among `paths` are gone; returns the newly gone."""
    removed = list[str]()
    folders = [os.path.abspath(path) for path in paths if os.path.isdir(path)]
    if folders and library.exists:
        with suppress(LibraryError, DiskError), library.open_catalogue() as catalogue:
            for folder in folders:
                found = find_readable_files(folder)
                gone = record_removed_files(catalogue, folder, found)
                removed += [one.path for one in gone if found.files]
    return removed


def find_outdated_entries(
    catalogue: Catalogue, sync: FolderSyncResult, entries: Iterable[LibraryEntry]
) -> list[LibraryEntry]:
    """Returns the stored documents of a folder whose text is no longer the text of any file."""
    entries = list(entries)
    gone = {one.path for one in sync.removed if not os.path.lexists(one.path)}
    removed, sources = set(map(resolve_folder_links, gone)), {one.file_path for one in entries}
    paths = [one.path for one in sync.changes.readable_records]
    again = [path for path in paths if resolve_folder_links(path) in sources]
    records = index_files(catalogue, again).readable_records
    now = {resolve_folder_links(one.path): one.digest for one in records}
    kept = [one for one in catalogue.list_records() if one.path not in gone]
    current = {one.digest for one in kept if one.folder or os.path.lexists(one.path)}
    return [
        one for one in entries
        if not one.error and one.text_sha256 not in current
        and (one.file_path in removed or now.get(one.file_path, one.text_sha256) != one.text_sha256)
    ]  # fmt: skip


@dataclass(frozen=True)
class LibraryText:
    """A text in the library, with the stored documents and the file that have this text."""

    digest: str
    path: str = ""
    bytes: int = field(default=0, compare=False)
    entries: tuple[LibraryEntry, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        return self.entries[0].name if self.entries else os.path.basename(self.path)


class LibraryTexts(NamedTuple):
    """The texts in a library, and the stored documents and files that cannot be used."""

    texts: tuple[LibraryText, ...] = ()
    damaged: tuple[LibraryEntry, ...] = ()
    refused: tuple[FileRecord, ...] = ()


def load_library_texts(library: Library) -> LibraryTexts:
    """Returns the texts in a library; a library that does not exist has no texts."""
    if not library.exists:
        return LibraryTexts()
    with library.open_search_catalogue() as catalogue:
        return list_current_texts(catalogue)


def rank_texts_for_question(library: Library, question: str) -> list[LibraryText]:
    """Returns the texts in a library, those whose words fit a question best first."""
    if not library.exists:
        return []
    with library.open_search_catalogue() as catalogue:
        texts = {text.digest: text for text in list_current_texts(catalogue).texts}
        catalogue.index_stored_texts()
        ranked = catalogue.texts.rank_texts(question)
    return [texts[digest] for digest in dict.fromkeys([*ranked, *texts]) if digest in texts]


def list_current_texts(catalogue: Catalogue, progress: Progress | None = None) -> LibraryTexts:
    """Parses changed files again, and returns the texts in a library."""
    divided = catalogue.list_present_and_former()
    stored = [one for part in divided for one in part if not one.error]
    changed = _find_changed_files(catalogue, stored)
    index_files(catalogue, changed, progress)
    present = (catalogue.list_present_and_former() if changed else divided).present
    texts = dict[str, LibraryText]()
    for entry in sorted(present, key=lambda one: (one.created, one.key)):
        if not entry.error:
            text = texts.get(entry.text_sha256, LibraryText(entry.text_sha256))
            path = text.path or (entry.file_path if os.path.exists(entry.file_path) else "")
            size = text.bytes or int(entry.provenance.get("bytes", 0))
            texts[text.digest] = LibraryText(text.digest, path, size, (*text.entries, entry))
    known, refused = catalogue.load_file_record_lookup(), list[FileRecord]()
    files = [one for entry in stored for one in known.find_file_records(entry.file_path)]
    for record in dict.fromkeys([*catalogue.list_records_of_synced_files(), *files]):
        if known.is_file_removed(record) or record.digest in texts:
            continue
        exists = os.path.lexists(record.path)
        if record.digest and exists:
            texts[record.digest] = LibraryText(record.digest, record.path, record.bytes)
        elif record.folder or exists:
            refused.append(record)
    damaged = tuple(one for one in present if one.error)
    return LibraryTexts(tuple(texts.values()), damaged, tuple(refused))


def _find_changed_files(catalogue: Catalogue, entries: Sequence[LibraryEntry]) -> list[str]:
    """Returns the paths of files whose text may have changed, or whose words are not indexed."""
    known, texts = catalogue.load_file_record_lookup(), {entry.text_sha256 for entry in entries}
    texts |= {"", *catalogue.texts.list_digests()}
    records, paths = catalogue.list_records_of_synced_files(), list[str]()
    for entry in entries:
        of_file = known.find_file_records(entry.file_path)
        records += of_file
        if not of_file:  # stored by an earlier version of esa, or on another machine
            with suppress(OSError):
                facts = os.stat(entry.file_path)
                later = max(facts.st_mtime, facts.st_ctime) > entry.created
                if later or facts.st_size != entry.provenance.get("bytes"):
                    paths.append(entry.file_path)
    paths += [one.path for one in records if one.digest not in texts or not one.is_file_unchanged]
    return [path for path in dict.fromkeys(paths) if os.path.lexists(path)]

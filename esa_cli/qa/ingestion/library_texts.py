"""The texts that a library can be asked about, and the records of the files that they came from.

Every command and server takes the texts from here: those of present documents, of the files that
documents were read from, and of folders of `esa ingest --words`. Files that have changed are read
again first, so a former text neither answers nor is listed, and an unchanged file is read once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from esa_cli.documents.document import Document, Mark, read_document
from esa_cli.documents.sources import FoundFiles, LeftOut, find_any
from esa_cli.errors import DiskError, DocumentError, LibraryError, UsageError
from esa_cli.storage.library import Catalogue, Entry, FileRecord, Library
from esa_cli.system.files import file_stamp, real_path, resolved_path
from esa_cli.system.progress import Progress
from esa_cli.system.text import text_digest

INDEX = "index"
"""What `ingest.provenance` says of a token index in place of the kind of rows."""


def restored(text: str, marks: Sequence[Any], known: Mapping[str, Any]) -> Document:
    """A document as it was stored; `known` is its provenance."""
    return Document(
        known["name"],
        text,
        known["source"],
        "utf-8",
        known["bytes"],
        tuple(Mark(*mark) for mark in marks),
        tuple(known["missing"]),
    )


@dataclass
class FileChanges:
    """What an update did.

    Args:
        records: of all files, in their order. added, changed: those that could not be read before,
            or had another text. read: how many files were opened. former: digests of texts that
            changed files had before.
    """

    records: list[FileRecord] = field(default_factory=list)
    added: list[FileRecord] = field(default_factory=list)
    changed: list[FileRecord] = field(default_factory=list)
    read: int = 0
    former: list[str] = field(default_factory=list)

    def count(self, former: str, record: FileRecord) -> None:
        """Counts a file that was opened, and had a text of this digest before."""
        self.read += 1
        if former == record.digest:
            return
        if former:
            self.former.append(former)
        if record.digest:
            (self.changed if former else self.added).append(record)

    @property
    def readable(self) -> list[FileRecord]:
        return [one for one in self.records if one.digest]

    @property
    def refused(self) -> list[FileRecord]:
        """Those that cannot be read."""
        return [one for one in self.records if not one.digest]


class FileIndexing:
    """Brings a catalogue up to date with files.

    Args:
        folder: that of `esa ingest --words`; empty: records keep theirs.
        read: `read_document`, or one that remembers.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        folder: str = "",
        read: Callable[[str], Document] = read_document,
    ) -> None:
        self._catalogue, self._folder, self._read = catalogue, folder, read

    def update(self, paths: Sequence[str], progress: Progress | None = None) -> FileChanges:
        """Reads the files that are new or have changed, and adds their words. Stopped in the
        middle, the next update continues. A file that cannot be read gets a record of why; that of
        one that does not exist any more stays.

        Args:
            progress: called with the files done and all files.
        """
        changes = FileChanges()

        def writes() -> Iterator[Callable[[], None] | None]:
            for path in paths:
                write = self._next(os.path.abspath(path), changes)
                if progress:
                    progress(len(changes.records), len(paths))
                yield write

        self._catalogue.carry_out(writes())
        if changes.former:
            self._catalogue.drop_unused_texts()
        return changes

    def _next(self, path: str, changes: FileChanges) -> Callable[[], None] | None:
        """Reads a file if it must be; what then is to be written."""
        files, texts = self._catalogue.files, self._catalogue.texts
        known = files.find(path) or FileRecord(path, "", "", 0)
        known_folder = self._folder or known.folder
        # A record alone is of a catalogue that was lost: its words are missing.
        if known.is_current and (not known.digest or texts.has(known.digest)):
            record, text = known._replace(folder=known_folder), ""
        else:
            record, text = self._opened(path, known_folder)
            if known.digest and not record.digest and not os.path.lexists(path):
                changes.records.append(record)
                return None  # it may be on a disk that is away: what is known of it stays
            changes.count(known.digest, record)
        changes.records.append(record)
        if record == known and not text:
            return None

        def write() -> None:
            if text:
                texts.add(text, record.digest)
            files.put(record)

        return write

    def _opened(self, path: str, folder: str) -> tuple[FileRecord, str]:
        """The record and the text of a file that is read now."""
        stamp = ""
        with suppress(OSError):
            stamp = file_stamp(path)
        try:
            document = self._read(path)
        except DocumentError as error:
            return FileRecord(path, stamp, "", 0, error.message, error.hint, folder), ""
        return _record(document, path, folder), document.text


def _record(document: Document, path: str, folder: str = "") -> FileRecord:
    digest = text_digest(document.text)
    return FileRecord(path, document.stamp or "", digest, document.bytes, folder=folder)


def record_document(catalogue: Catalogue, document: Document) -> None:
    """Records which text the file of a stored document has now; its words are added later."""
    path = os.path.abspath(document.source)
    known = catalogue.files.find(path)
    record = _record(document, path, known.folder if known else "")
    if record != known:
        with catalogue.transaction():
            catalogue.files.put(record)


@dataclass(frozen=True)
class FolderState:
    """A folder after it was synchronised: what changed, records of files that do not exist any
    more, and files that are no documents."""

    changes: FileChanges
    removed: list[FileRecord]
    left_out: tuple[LeftOut, ...]


def check_folder(folder: str, library: Library) -> str:
    """The absolute path of a folder that can be synchronised. Raises DocumentError: it is no
    folder. UsageError: the library is in it, or it is in the library."""
    _check_is_folder(folder, "name a folder")
    path = os.path.abspath(folder)
    root, real = (os.path.join(real_path(one), "") for one in (library.root, path))
    if root.startswith(real) or real.startswith(root):
        which = "contain" if root.startswith(real) else "be in"
        raise UsageError(
            f"the folder must not {which} the library {library.root}, got {folder}",
            "point ESA_LIBRARY to a folder elsewhere, or name another folder",
        )
    return path


def _check_is_folder(folder: str, hint: str) -> None:
    if not os.path.isdir(folder):
        kind = "a file" if os.path.exists(folder) else "nothing of that name"
        raise DocumentError(f"{folder or 'FOLDER'} must be a folder, got {kind}", hint)


def sync_folder(
    catalogue: Catalogue,
    folder: str,
    *,
    prune: bool = False,
    if_empty: bool = False,
    progress: Progress | None = None,
) -> FolderState:
    """Brings the catalogue up to date with a folder; stopped, the next call continues.

    Args:
        folder: absolute. prune: files that were removed will be forgotten; `if_empty`: also where
            no document is left.
        progress: called with the files done and all files.

    Raises:
        DocumentError: the folder is not there, may not be read, has too many files, or has none
            while some are to be forgotten. LibraryError, DiskError.
    """
    _check_is_folder(folder, "nothing was changed; name a folder")
    found = find_any(folder)
    changes = FileIndexing(catalogue, folder).update(found.files, progress)
    record_removed(catalogue, folder, found, folder)
    removed = [one for one in _removed(catalogue, folder, found) if one.folder]
    if prune and removed and not found.files and not if_empty:
        raise DocumentError(
            f"no document is left in {folder}, so nothing is pruned",
            "check that its disk is there; if all were really removed: esa ingest --prune --yes",
        )
    catalogue.keep_synced(folder)
    return FolderState(changes, removed, found.rest(folder))


def forget_removed(catalogue: Catalogue, folder: str, state: FolderState) -> None:
    """Forgets the files of a folder that were removed. What was read of them goes before: without
    their records it would be present again. Raises LibraryError, DiskError."""
    with catalogue.transaction():
        catalogue.files.remove(one.path for one in state.removed)
    catalogue.drop_unused_texts()
    catalogue.keep_synced(folder)


def _removed(catalogue: Catalogue, folder: str, found: FoundFiles) -> list[FileRecord]:
    """Records of files that do not exist any more, and did not when the folder was listed: of one
    that was there then, the disk may have gone away. What is below a folder that was left out is
    not known to be removed."""
    left_out = [path for paths in found.left_out.values() for path in paths]
    listed = {os.path.abspath(path) for path in (*found.files, *left_out)}
    closed = tuple(os.path.join(path, "") for path in left_out)

    def is_removed(one: FileRecord) -> bool:
        is_gone = one.path not in listed and not os.path.lexists(one.path)
        return is_gone and not one.path.startswith(closed)

    return [one for one in catalogue.files.below(folder) if is_removed(one)]


def record_removed(catalogue: Catalogue, folder: str, found: FoundFiles, synced: str = "") -> None:
    """Records that files of a folder which were read one by one, without `esa ingest --words`, do
    not exist any more, so that what was read of them is former.

    Args:
        folder: absolute. found: its files now. synced: the folder, where it is synchronised.
    """
    stored = {entry.file for part in catalogue.entries() for entry in part}
    gone = [one for one in _removed(catalogue, folder, found) if not one.folder and one.digest]
    gone = [one for one in gone if resolved_path(one.path) in stored]
    if found.files and gone:
        with catalogue.transaction():
            for one in gone:
                why = f"there is no document {one.path}"
                catalogue.files.put(FileRecord(one.path, "", "", 0, why, folder=synced))


def record_read_folders(library: Library, names: Sequence[str]) -> None:
    """As `record_removed`, of those of the names that are folders, after their files were read."""
    folders = [os.path.abspath(name) for name in names if os.path.isdir(name)]
    if folders and library.exists:
        with suppress(LibraryError, DiskError), library.catalogue() as catalogue:
            for folder in folders:
                record_removed(catalogue, folder, find_any(folder))


def outdated_entries(
    catalogue: Catalogue, state: FolderState, entries: Iterable[Entry]
) -> list[Entry]:
    """Documents of the library that were read from a file of the folder which was removed, or has
    another text now, unless another file has their text. Files that have changed since are read
    again."""
    entries = list(entries)
    gone = {one.path for one in state.removed if not os.path.lexists(one.path)}
    removed = set(map(resolved_path, gone))
    read_from = {entry.file for entry in entries}
    again = [one.path for one in state.changes.readable if resolved_path(one.path) in read_from]
    records = FileIndexing(catalogue).update(again).readable
    now = {resolved_path(one.path): one.digest for one in records}
    kept = {
        one.digest
        for one in catalogue.files.all()
        if one.path not in gone and (one.folder or os.path.lexists(one.path))
    }

    def is_outdated(entry: Entry) -> bool:
        path = entry.file
        other = path in removed or now.get(path, entry.text_sha256) != entry.text_sha256
        return other and entry.text_sha256 not in kept

    return [entry for entry in entries if not entry.damage and is_outdated(entry)]


@dataclass(frozen=True)
class LibraryText:
    """A text that may be asked: stored documents that have it, a file that has it, or both.

    Args:
        path: of the file; empty: there is none on this machine. entries: in the order in which
            they were stored, under the name of a file that has their text. bytes: of the file.
    """

    digest: str
    path: str = ""
    bytes: int = field(default=0, compare=False)
    entries: tuple[Entry, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """For people."""
        return self.entries[0].name if self.entries else os.path.basename(self.path)


@dataclass(frozen=True)
class LibraryTexts:
    """The texts of a library, stored documents first.

    Args:
        damaged: stored documents that cannot be used. refused: files that cannot be read, or whose
            disk is away.
        former: stored documents whose files have another text now, or were removed.
    """

    texts: tuple[LibraryText, ...] = ()
    damaged: tuple[Entry, ...] = ()
    refused: tuple[FileRecord, ...] = ()
    former: tuple[Entry, ...] = ()


def library_texts(library: Library, progress: Progress | None = None) -> LibraryTexts:
    """As `texts_of`; none where there is no library yet."""
    if not library.exists:
        return LibraryTexts()
    with library.search_catalogue() as catalogue:
        return texts_of(catalogue, progress)


def texts_of(catalogue: Catalogue, progress: Progress | None = None) -> LibraryTexts:
    """The texts of a library, after files that have changed were read again. `progress` is called
    with the files done and all files. Raises LibraryError, DiskError."""
    divided = catalogue.entries()
    stored = [one for part in divided for one in part if not one.damage]
    changed = _to_update(catalogue, stored)
    FileIndexing(catalogue).update(changed, progress)
    present, former = catalogue.entries() if changed else divided
    damaged = tuple(one for one in present if one.damage)
    texts = dict[str, LibraryText]()
    for entry in sorted(present, key=lambda one: (one.created, one.key)):
        if not entry.damage:
            text = texts.get(entry.text_sha256, LibraryText(entry.text_sha256))
            path = text.path or (entry.file if os.path.exists(entry.file) else "")
            size = text.bytes or int(entry.provenance.get("bytes", 0))
            texts[text.digest] = LibraryText(text.digest, path, size, (*text.entries, entry))
    known, refused = catalogue.known_files(), list[FileRecord]()
    files = [one for entry in stored for one in known.of_path(entry.file)]
    for record in dict.fromkeys([*catalogue.files.all_synced(), *files]):
        is_there = os.path.lexists(record.path)
        if known.is_removed(record) or record.digest in texts:
            continue
        if record.digest and is_there:
            texts[record.digest] = LibraryText(record.digest, record.path, record.bytes)
        elif record.folder or is_there:
            refused.append(record)
    return LibraryTexts(tuple(texts.values()), damaged, tuple(refused), tuple(former))


def _to_update(catalogue: Catalogue, stored: Sequence[Entry]) -> list[str]:
    """Files whose text may be another now, or has no words yet."""
    known, texts = catalogue.known_files(), {entry.text_sha256 for entry in stored}
    texts |= {"", *catalogue.texts.digests()}
    records, paths = catalogue.files.all_synced(), list[str]()
    for entry in stored:
        of_file = known.of_path(entry.file)
        records += of_file
        if not of_file and _may_differ(entry):
            paths.append(entry.file)
    paths += [one.path for one in records if one.digest not in texts or not one.is_current]
    return [path for path in dict.fromkeys(paths) if os.path.lexists(path)]


def _may_differ(entry: Entry) -> bool:
    """Whether the file of a document, of which there is no record, has changed since it was stored:
    by an earlier version of esa, or on another machine."""
    try:
        facts = os.stat(entry.file)
    except OSError:
        return False
    later = max(facts.st_mtime, facts.st_ctime) > entry.created
    return later or facts.st_size != entry.provenance.get("bytes")

"""Words and records of files in a library's catalogue, so that an unchanged file is read once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from esa_cli.documents.document import Document, read_document
from esa_cli.errors import DocumentError
from esa_cli.storage.library import Catalogue, FileRecord
from esa_cli.system.files import file_stamp
from esa_cli.system.progress import Progress
from esa_cli.system.text import text_digest


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

    def count(self, known: FileRecord | None, record: FileRecord) -> None:
        """Counts a file that was opened."""
        self.read += 1
        before = known.digest if known else ""
        if before == record.digest:
            return
        if before:
            self.former.append(before)
        if record.digest:
            (self.changed if before else self.added).append(record)

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
        folder: that of `esa sync`; empty: records keep theirs. read: `read_document`, or one that
            remembers.
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

        def next_one() -> Callable[[], None] | None:
            write = self._next(paths[len(changes.records)], changes)
            if progress:
                progress(len(changes.records), len(paths))
            return write

        self._catalogue.in_pieces(next_one, lambda: len(changes.records) < len(paths))
        if changes.former:
            self._catalogue.drop_unused_texts()
        return changes

    def _next(self, path: str, changes: FileChanges) -> Callable[[], None] | None:
        """Reads a file if it must be; what then is to be written."""
        files, path = self._catalogue.files, os.path.abspath(path)
        known = files.find(path)
        folder, away = self._folder or (known.folder if known else ""), False
        if known is not None and known.is_current and self._has_words(known):
            record, text = known._replace(folder=folder), ""
        else:
            record, text = self._opened(path, folder)
            # A file may be on a disk that is away: what is known of it stays.
            lost = bool(known and known.digest) and not record.digest
            away = lost and not os.path.lexists(path)
            if not away:
                changes.count(known, record)
        changes.records.append(record)
        if away or (record == known and not text):
            return None

        def write() -> None:
            if text:
                self._catalogue.texts.add(text, record.digest)
            files.put(record)

        return write

    def _has_words(self, known: FileRecord) -> bool:
        """False of a record that came back alone, after the catalogue was lost."""
        return not known.digest or self._catalogue.texts.has(known.digest)

    def _opened(self, path: str, folder: str) -> tuple[FileRecord, str]:
        """The record and the text of a file that is read now."""
        try:
            stamp = file_stamp(path)
        except OSError:
            stamp = ""
        try:
            document = self._read(path)
        except DocumentError as error:
            return FileRecord(path, stamp, "", 0, error.message, error.hint, folder), ""
        return record_of(document, path, folder), document.text


def record_of(document: Document, path: str, folder: str = "") -> FileRecord:
    """The record of a file that was read."""
    digest = text_digest(document.text)
    return FileRecord(path, document.stamp or "", digest, document.bytes, folder=folder)


def record_document(catalogue: Catalogue, document: Document) -> None:
    """Records which text the file of a stored document has now; its words are added later."""
    path = os.path.abspath(document.source)
    known = catalogue.files.find(path)
    record = record_of(document, path, known.folder if known else "")
    if record != known:
        with catalogue.transaction():
            catalogue.files.put(record)

"""The texts that a library can be asked about now. Every command and server takes them from here.

They are those of its present documents and of its files: files of `esa sync`, and files that
documents were read from. Files that have changed are read again first, so a former text neither
answers nor is listed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from esa_cli.qa.ingestion.file_indexing import FileIndexing
from esa_cli.storage.library import Catalogue, Entry, FileRecord, Library
from esa_cli.system.progress import Progress


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
    """The texts of a library, after files that have changed were read again. Raises LibraryError,
    DiskError.

    Args:
        progress: called with the files done and all files.
    """
    divided = catalogue.entries()
    stored = [one for part in divided for one in part if not one.damage]
    changed = _to_update(catalogue, stored)
    FileIndexing(catalogue).update(changed, progress)
    present, former = catalogue.entries() if changed else divided
    known, texts = catalogue.known_files(), dict[str, LibraryText]()
    for entry in sorted(present, key=lambda one: (one.created, one.key)):
        if not entry.damage:
            text = texts.get(entry.text_sha256, LibraryText(entry.text_sha256))
            path = text.path or (entry.file if os.path.exists(entry.file) else "")
            size = text.bytes or int(entry.provenance.get("bytes", 0))
            texts[text.digest] = LibraryText(text.digest, path, size, (*text.entries, entry))
    refused = []
    files = [one for entry in stored for one in known.of_path(entry.file)]
    for record in dict.fromkeys([*catalogue.files.all_synced(), *files]):
        is_there = os.path.lexists(record.path)
        if known.is_removed(record) or record.digest in texts:
            continue
        if record.digest and is_there:
            texts[record.digest] = LibraryText(record.digest, record.path, record.bytes)
        elif record.folder or is_there:
            refused.append(record)
    damaged = tuple(one for one in present if one.damage)
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
    an earlier version of esa did so, or another machine."""
    try:
        facts = os.stat(entry.file)
    except OSError:
        return False
    changed = max(facts.st_mtime, facts.st_ctime)
    return changed > entry.created or facts.st_size != entry.provenance.get("bytes")

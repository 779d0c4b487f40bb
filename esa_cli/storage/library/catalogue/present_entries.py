"""Which stored documents are present: the one place that decides whose text may answer.

A document is former where its file has another text now or was removed, and no other file has its
text. Its files stay until it is pruned. What files say is what their records say, so whoever
answers brings these up to date first (`qa.ingestion.library_texts`).

A document stays present where nothing is known of its file: it came from standard input or another
machine, or its disk is away.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from esa_cli.storage.library import synced_folders
from esa_cli.storage.library.catalogue.file_records import FileRecord
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.formats.manifest import Entry
from esa_cli.system.files import real_path


class DividedEntries(NamedTuple):
    """Stored documents: those that are present, with the name and path of a file that has their
    text, and former ones. Both in the order in which they were given."""

    present: list[Entry]
    former: list[Entry]


class KnownFiles:
    """Records of files by path and by text.

    Args:
        records: all of a catalogue.
    """

    def __init__(self, paths: LibraryPaths, records: Iterable[FileRecord]) -> None:
        self._is_away = cache(lambda folder: synced_folders.is_away(paths, folder))
        self._folder = cache(real_path)
        self._of_path = defaultdict[str, list[FileRecord]](list)
        self._of_text: dict[str, FileRecord] = {}
        for record in records:
            self._of_path[self._resolved(record.path)].append(record)
            has_text = record.digest and not self.is_removed(record)
            if has_text and (record.folder or os.path.lexists(record.path)):
                self._of_text.setdefault(record.digest, record)

    def is_removed(self, record: FileRecord) -> bool:
        """Whether a file was removed: one of `esa sync` does not exist, though its folder does; of
        another its folder must have been read since."""
        if not record.folder:
            return not record.digest and not os.path.lexists(record.path)
        return not os.path.lexists(record.path) and not self._is_away(record.folder)

    def of_path(self, path: str) -> list[FileRecord]:
        """Records of a file, by whatever path it was read; the current ones, if there are some."""
        known = self._of_path.get(self._resolved(path), []) if path else []
        return [one for one in known if one.is_current] or known

    def divide(self, entries: Sequence[Entry]) -> DividedEntries:
        """Present and former documents; damaged ones are present."""
        divided = DividedEntries([], [])
        for entry in entries:
            present = entry if entry.damage else self._present(entry)
            (divided.former if present is None else divided.present).append(present or entry)
        return divided

    def _present(self, entry: Entry) -> Entry | None:
        """The document, under the name of a file that has its text; None: it is former."""
        known = self.of_path(entry.file)
        if not known:
            return entry
        if any(one.digest == entry.text_sha256 and not self.is_removed(one) for one in known):
            return entry
        other = self._of_text.get(entry.text_sha256)
        if other is None:
            return None
        names = {"name": os.path.basename(other.path), "source": other.path, "path": other.path}
        return replace(entry, provenance={**entry.provenance, **names})

    def _resolved(self, path: str) -> str:
        """As `resolved_path`, with each folder looked up once."""
        folder, name = os.path.split(os.path.abspath(path))
        return os.path.join(self._folder(folder), name)

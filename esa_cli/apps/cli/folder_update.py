"""Updates of the library with a folder: its words, what a model reads, and what is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from esa_cli.apps.cli.output.progress_display import token_progress
from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.errors import DiskError, DocumentError, ResourceError
from esa_cli.qa.ingestion.library_texts import (
    FolderState,
    forget_removed,
    outdated_entries,
    sync_folder,
)
from esa_cli.storage.library import FileRecord, Library
from esa_cli.system.machine import time_text


class FolderUpdate:
    """Updates of the library with one folder; its attributes are of the last one.

    Args:
        folder: absolute. read: reads a file with the model, too, and gives the id of the stored
            document, if any. prune: forget what was removed; `if_empty`: in the first update also
            where no document is left: later the disk may have gone away.
    """

    state: FolderState

    def __init__(
        self,
        folder: str,
        library: Library,
        read: Callable[[str], str | None] | None,
        prune: bool,
        if_empty: bool,
        reporter: Reporter,
    ) -> None:
        self._folder, self._library, self._read = folder, library, read
        self._prune, self._if_empty, self._reporter = prune, if_empty, reporter
        self._is_first = True
        self._gone, self._reported = set[str](), set[FileRecord]()
        self.removed, self.read_ids, self.pruned_ids = list[str](), list[str](), list[str]()
        """Paths of files that existed at the update before; ids of documents."""
        self.failed: list[FileRecord] = []
        """Files that cannot be read."""
        self.seconds = 0.0

    def run(self) -> FolderUpdate:
        """Updates the library, and reports in a line each what cannot be read. Raises
        DocumentError, LibraryError, ResourceError."""
        started, reporter, progress = time.perf_counter(), self._reporter, None
        if self._is_first:
            progress = token_progress(reporter, f"files of {self._folder}", unit="files")
        with self._library.catalogue() as catalogue:
            self.state = sync_folder(
                catalogue, self._folder,
                prune=self._prune, if_empty=self._if_empty, progress=progress,
            )  # fmt: skip
        reporter.settle()
        removed = [record.path for record in self.state.removed]
        self.removed = [path for path in removed if path not in self._gone]
        self.failed, self.read_ids = list(self.state.changes.refused), []
        if self._read is not None:
            self._read_new(self._read)
        for record in self.failed:
            if record not in self._reported:
                reporter.left_out(record.why, record.hint)
        for left_out in self.state.left_out if self._is_first else ():
            reporter.warn(f"esa: {left_out.line}")
        self._gone, self._reported = set(removed), set(self.failed)
        self._is_first = self._if_empty = False
        self.pruned_ids = self._pruned() if self._prune else []
        self.seconds = time.perf_counter() - started
        return self

    def _read_new(self, read: Callable[[str], str | None]) -> None:
        """Reads files whose text is not in the library."""
        known = self._library.text_digests()
        for record in self.state.changes.readable:
            if record.digest in known:
                continue
            known.add(record.digest)
            try:
                if entry_id := read(record.path):
                    self.read_ids.append(entry_id)
            except DiskError:
                raise
            except (DocumentError, ResourceError) as error:
                self.failed.append(record._replace(why=error.message, hint=error.hint))

    def _pruned(self) -> list[str]:
        with self._library.catalogue() as catalogue:
            entries = [entry for part in catalogue.entries() for entry in part]
            outdated = outdated_entries(catalogue, self.state, entries)
        for entry in outdated:
            self._library.remove(entry)
        with self._library.catalogue() as catalogue:
            forget_removed(catalogue, self._folder, self.state)
        return [entry.id for entry in outdated]

    @property
    def is_changed(self) -> bool:
        """Whether there is something new to report."""
        changes = self.state.changes
        news = (changes.added, changes.changed, self.removed, self.read_ids, self.pruned_ids)
        return any(news)

    @property
    def summary(self) -> str:
        """One line."""
        changes = self.state.changes
        counts: dict[str, tuple[Sequence[object], bool]] = {
            "added": (changes.added, True),
            "changed": (changes.changed, True),
            "removed": (self.state.removed, True),
            "cannot be read": (self.failed, False),
            "read by the model": (self.read_ids, self._read is not None),
            "documents pruned": (self.pruned_ids, False),
        }
        parts = [f"{len(n):,} {what}" for what, (n, always) in counts.items() if n or always]
        return f"{len(changes.records):,} files: {', '.join(parts)}; {time_text(self.seconds)}"

    def as_dict(self) -> dict[str, Any]:
        changes = self.state.changes
        return {
            "folder": self._folder,
            "files": len(changes.records),
            "added": [record.path for record in changes.added],
            "changed": [record.path for record in changes.changed],
            "removed": self.removed,
            "failed": [{"source": record.path, "why": record.why} for record in self.failed],
            "left_out": [one.as_dict() for one in self.state.left_out],
            "read": self.read_ids,
            "pruned": self.pruned_ids,
            "seconds": round(self.seconds, 3),
        }

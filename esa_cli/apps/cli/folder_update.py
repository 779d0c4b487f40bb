"""One update of the library with a folder: its words, what a model reads, and what is reported."""

from __future__ import annotations

import time
from collections.abc import Callable
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
        self._state: FolderState | None = None
        self._reported: set[FileRecord] = set()
        self.removed: list[str] = []
        """Paths of files that do not exist any more, and did at the update before."""
        self.failed: list[FileRecord] = []
        """Files that cannot be read."""
        self.read_ids: list[str] = []
        """What the model read."""
        self.pruned_ids: list[str] = []
        """Documents that were removed from the library."""
        self.seconds = 0.0

    @property
    def state(self) -> FolderState:
        assert self._state is not None, "after `run`"
        return self._state

    def run(self) -> FolderUpdate:
        """Updates the library, and reports in a line each what cannot be read. Raises
        DocumentError, LibraryError, ResourceError."""
        started, before, reporter = time.perf_counter(), self._state, self._reporter
        progress = None
        if before is None:
            progress = token_progress(reporter, f"files of {self._folder}", unit="files")
        with self._library.catalogue() as catalogue:
            self._state = sync_folder(
                catalogue, self._folder,
                prune=self._prune, if_empty=self._if_empty, progress=progress,
            )  # fmt: skip
        self._if_empty = False
        reporter.settle()
        known = [record.path for record in before.removed] if before else []
        removed = [record.path for record in self.state.removed]
        self.removed = [path for path in removed if path not in known]
        self.failed, self.read_ids = list(self.state.changes.refused), []
        if self._read is not None:
            self._read_new(self._read)
        for record in self.failed:
            if record not in self._reported:
                reporter.left_out(record.why, record.hint)
        self._reported = set(self.failed)
        for left_out in () if before else self.state.left_out:
            reporter.warn(f"esa: {left_out.line}")
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
        if self._library.catalogue_note:
            self._reporter.warn(f"esa: {self._library.catalogue_note}")
            self._library.catalogue_note = ""
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
        changes, failed = self.state.changes, len(self.failed)
        parts = [
            f"{len(changes.added):,} added",
            f"{len(changes.changed):,} changed",
            f"{len(self.state.removed):,} removed",
            *([f"{failed:,} cannot be read"] if failed else []),
            *([f"{len(self.read_ids):,} read by the model"] if self._read else []),
            *([f"{len(self.pruned_ids):,} documents pruned"] if self.pruned_ids else []),
        ]
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

"""One update of the library with a folder, what the model reads of it, and what is reported."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from esa_cli.apps.cli.options.options import ModelOptions
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

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.presets.preset import Preset


class FolderReading:
    """Reads documents into the library.

    Args:
        stack: ends the model.
    """

    def __init__(
        self,
        chosen: Preset,
        options: ModelOptions,
        library: Library,
        reporter: Reporter,
        stack: ExitStack,
    ) -> None:
        self._chosen, self._options, self._library = chosen, options, library
        self._reporter, self._stack = reporter, stack
        self._esa: Esa | None = None

    def read(self, records: Sequence[FileRecord]) -> tuple[list[str], list[FileRecord]]:
        """Reads files whose text is not in the library. Ids of what was read, and the records of
        those that could not be, with why. Raises DiskError, PresetError, ModelError."""
        known = self._library.text_digests()
        ids, failed = list[str](), list[FileRecord]()
        for record in records:
            if record.digest in known:
                continue
            known.add(record.digest)
            try:
                entry = self._loaded().ingest(record.path).entry
                ids += [entry.id] if entry else []
            except DiskError:
                raise
            except (DocumentError, ResourceError) as error:
                failed.append(record._replace(why=error.message, hint=error.hint))
        return ids, failed

    def _loaded(self) -> Esa:
        if self._esa is None:
            from esa_cli.apps.cli.open_esa import opened

            self._esa = self._stack.enter_context(
                opened(
                    self._chosen, self._options, self._reporter, keep=True, library=self._library
                )
            )
        return self._esa


class FolderUpdate:
    """Updates of the library with one folder; its properties are of the last one.

    Args:
        folder: absolute. reading: reads documents with a model, too. prune: forget what was
            removed; `if_empty`: also where no document is left.
    """

    def __init__(
        self,
        folder: str,
        library: Library,
        reading: FolderReading | None,
        prune: bool,
        if_empty: bool,
        reporter: Reporter,
    ) -> None:
        self._folder, self._library, self._reading = folder, library, reading
        self._prune, self._if_empty, self._reporter = prune, if_empty, reporter
        self._state: FolderState
        self._first = True
        self._said: set[FileRecord] = set()
        self._removed_before: list[str] = []
        self.failed: list[FileRecord] = []
        """Files that cannot be read."""
        self.read_ids: list[str] = []
        """What the model read."""
        self.pruned_ids: list[str] = []
        """Documents that were removed from the library."""
        self.seconds = 0.0

    def run(self) -> FolderUpdate:
        """Updates the library, and says in a line each what cannot be read. Raises DocumentError,
        LibraryError, ResourceError."""
        started, first = time.perf_counter(), self._first
        self._removed_before = [] if first else [one.path for one in self._state.removed]
        label, progress = f"files of {self._folder}", None
        if first:
            progress = token_progress(self._reporter, label, unit="files")
        with self._library.catalogue() as catalogue:
            self._state = sync_folder(
                catalogue, self._folder,
                prune=self._prune, if_empty=self._if_empty, progress=progress,
            )  # fmt: skip
        self._first = False
        self._reporter.settle()
        self.failed, self.read_ids = self._state.changes.refused, []
        if self._reading is not None:
            self.read_ids, failed = self._reading.read(self._state.changes.readable)
            self.failed = [*self.failed, *failed]
        for one in self.failed:
            if one not in self._said:
                self._reporter.warn(f"esa: left out: {one.why}; {one.hint}".rstrip("; "))
        self._said = set(self.failed)
        if first:
            for left_out in self._state.left_out:
                self._reporter.warn(f"esa: {left_out.line}")
        self.pruned_ids = self._pruned() if self._prune else []
        self.seconds = time.perf_counter() - started
        return self

    def keeps_if_empty(self) -> None:
        """From now on nothing is forgotten where no document is left: the disk may go away."""
        self._if_empty = False

    def _pruned(self) -> list[str]:
        with self._library.catalogue() as catalogue:
            every = [one for part in catalogue.entries() for one in part]
            outdated = outdated_entries(catalogue, self._state, every)
        for entry in outdated:
            self._library.remove(entry)
        with self._library.catalogue() as catalogue:
            forget_removed(catalogue, self._folder, self._state)
        return [entry.id for entry in outdated]

    @property
    def removed(self) -> list[str]:
        """Paths of files that are there no more; when it runs again, of those that are new."""
        return [one.path for one in self._state.removed if one.path not in self._removed_before]

    @property
    def is_changed(self) -> bool:
        """Whether there is something new to say."""
        opened = self._state.changes.added or self._state.changes.changed
        return bool(opened or self.removed or self.read_ids or self.pruned_ids)

    @property
    def summary(self) -> str:
        """One line."""
        changes, left = self._state.changes, len(self.failed)
        parts = [
            f"{len(changes.added):,} added",
            f"{len(changes.changed):,} changed",
            f"{len(self._state.removed):,} removed",
            *([f"{left:,} cannot be read"] if left else []),
            *([f"{len(self.read_ids):,} read by the model"] if self._reading else []),
            *([f"{len(self.pruned_ids):,} documents pruned"] if self.pruned_ids else []),
        ]
        return f"{len(changes.records):,} files: {', '.join(parts)}; {time_text(self.seconds)}"

    def as_dict(self) -> dict[str, Any]:
        changes = self._state.changes
        return {
            "folder": self._folder,
            "files": len(changes.records),
            "added": [one.path for one in changes.added],
            "changed": [one.path for one in changes.changed],
            "removed": self.removed,
            "failed": [{"source": one.path, "why": one.why} for one in self.failed],
            "left_out": [one.as_dict() for one in self._state.left_out],
            "read": self.read_ids,
            "pruned": self.pruned_ids,
            "seconds": round(self.seconds, 3),
        }

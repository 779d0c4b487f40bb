"""The tasks of an ingest by several workers: whole documents, and ranges of the long ones."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from torch import Tensor

from esa_cli.apps.cli.model_choice.preflight import Preflight
from esa_cli.apps.engine.ingest_report import IngestReport
from esa_cli.documents.document import Document
from esa_cli.errors import LibraryError
from esa_cli.qa.ingestion.index_ranges import RangedIndex, TokenRange
from esa_cli.qa.ingestion.tokenised_document import TokenisedDocument
from esa_cli.storage.library import Entry, Library

LONG = 131_072
"""Characters of which a document must have more to be divided: some 8 segments of the library."""
SHARE = 16
"""A document is divided whose text is more than this part of a worker's share of all texts: of the
others the last one keeps the workers waiting for little of the time."""


@dataclass(frozen=True)
class IngestTask:
    """What a worker is to ingest, or encode; None: it tells the identity of its token indexes."""

    wanted: Document | TokenRange | None = None


IngestValue = IngestReport | Tensor | str
"""What a worker returns for a document, a range, or None."""


@dataclass
class _DividedDocument:
    """A document whose ranges are read by workers; `lock` is held for that long."""

    index: RangedIndex
    tokens: int
    lock: ExitStack
    began: float
    done: int = 0


class IngestTasks:
    """Gives tasks to an engine, and takes their results.

    The index of a long document is written here, in order; then a worker is given the whole
    document, and finds it stored. Documents that another process is at, or has stored, are given to
    a worker whole, after all others: nothing is waited for while a document is locked here.

    Args:
        workers: their number. ready: the preset, and its finder, where indexes are made.
    """

    def __init__(
        self, documents: Sequence[Document], workers: int, ready: Preflight, library: Library
    ) -> None:
        self._documents, self._ready, self._library = documents, ready, library
        self._sizes = [max(len(one.text), 1) for one in documents]
        most = max(LONG, sum(self._sizes) / (SHARE * workers))
        long = [ready.index is not None and size > most for size in self._sizes]
        self._whole = deque(at for at, one in enumerate(long) if not one)
        self._long = [at for at, one in enumerate(long) if one]
        self._identity: str | None = None
        self._divided: dict[int, _DividedDocument] = {}
        self._given: list[tuple[int, int]] = []
        """Document of each task, and the range's first token."""
        self._read_s: dict[int, float] = {}
        self.reports: dict[int, IngestReport] = {}
        self.tokens = 0
        """Tokens read by now."""

    def __enter__(self) -> IngestTasks:
        return self

    def __exit__(self, *error: object) -> None:
        for one in self._divided.values():
            one.lock.close()

    @property
    def share(self) -> float:
        """How much is done, by the lengths of texts."""
        done = float(sum(self._sizes[at] for at in self.reports.keys() | self._read_s))
        done += sum(self._sizes[at] * one.done / one.tokens for at, one in self._divided.items())
        return done / max(sum(self._sizes), 1)

    def tasks(self) -> Iterator[IngestTask | None]:
        """See `TaskEngine.run`."""
        if self._long:
            self._given.append((-1, 0))
            yield IngestTask()
            while self._identity is None:
                yield self._next_whole()
        later: list[int] = []
        for at in self._long:
            found = self._begin(at)
            if found is None:
                later.append(at)
                continue
            for start, part in found.index.ranges():
                self._given.append((at, start))
                yield IngestTask(part)
        while self._whole or self._divided:
            yield self._next_whole()
        self._whole += later
        while self._whole:
            yield self._next_whole()

    def _next_whole(self) -> IngestTask | None:
        if not self._whole:
            return None
        at = self._whole.popleft()
        self._given.append((at, 0))
        return IngestTask(self._documents[at])

    def take(self, number: int, value: IngestValue) -> None:
        """Takes the result of the task with this number. Raises ResourceError: the disk is full."""
        at, start = self._given[number]
        if isinstance(value, str):
            self._identity = value
        elif isinstance(value, Tensor):
            one = self._divided[at]
            one.index.add(start, value)
            one.done += value.shape[0]
            self.tokens += value.shape[0]
            self._finish(at)
        else:
            self.tokens += value.tokens if value.read_s else 0
            self.reports[at] = replace(value, read_s=self._read_s.get(at, value.read_s))

    def _begin(self, at: int) -> _DividedDocument | None:
        """Locks the document and divides it; None where a worker is to take it whole."""
        document, ready = self._documents[at], self._ready
        assert ready.index is not None
        assert self._identity is not None
        layout = ready.index.layout(ready.planner.costs.shape)
        key = self._library.key(self._identity, document.text)
        text = TokenisedDocument.of(document, ready.model.tokenizer)
        lock = ExitStack()
        try:
            ready.planner.check(len(text.ids))
            writer = lock.enter_context(
                self._library.write(key, self._identity, text.ids, layout, _refuse)
            )
        except (LibraryError, BlockingIOError):
            return None  # damaged, which the worker says; or another process is at it
        if isinstance(writer, Entry):
            lock.close()
            return None
        made = _DividedDocument(
            RangedIndex(writer, text, ready.resolved.preset), len(text.ids), lock,
            time.monotonic(), writer.done,
        )  # fmt: skip
        self._divided[at] = made
        self._finish(at)
        return made

    def _finish(self, at: int) -> None:
        """Ends a document of which all is written."""
        one = self._divided[at]
        if one.index.complete:
            one.index.finish()
            one.lock.close()
            del self._divided[at]
            self._read_s[at] = time.monotonic() - one.began
            self._whole.appendleft(at)


def _refuse() -> None:
    raise BlockingIOError("another process is at the document")

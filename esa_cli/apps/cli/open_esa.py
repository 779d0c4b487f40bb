"""A loaded `Esa` for commands that ask: it says what is read, and refuses what does not fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from esa_cli import models
from esa_cli.apps.cli.preflight import Known, Place, load, look
from esa_cli.apps.cli.progress_display import prefill_bar
from esa_cli.apps.cli.terminal import Reporter
from esa_cli.documents.document import Document
from esa_cli.errors import UsageError
from esa_cli.qa import preset

if TYPE_CHECKING:
    from esa_cli.qa.api import Esa
    from esa_cli.qa.ingest import Book
    from esa_cli.storage.library import Library

WORTH_REMEMBERING = 2048
"""Tokens that a reading must have for its speed to say something about the next."""


class Reading:
    """What a person sees while documents are read; the memory it takes is checked before.

    Args:
        known: the model's small files. chosen: the preset.
    """

    def __init__(self, known: Known, chosen: preset.Preset, reporter: Reporter) -> None:
        self.known, self.chosen, self.reporter = known, chosen, reporter
        self._bar: Any = None
        self._show: Any = None
        self._plan: Any = None
        self._started = 0.0
        self._first = 0
        self.on_disk: Callable[[int], int] = lambda tokens: 0
        """Bytes that so many tokens will take in the library."""

    def room(self, tokens: int) -> None:
        """Raises ResourceError when so many tokens do not fit in memory."""
        self.known.plan(self.chosen, tokens, timed=False).check()

    def begin(self, document: Document, tokens: int, kept: bool) -> None:
        """Says what will be read, and shows a bar until `end`."""
        from esa_cli.system.machine import size_text

        self._plan = self.known.plan(self.chosen, tokens)
        where = f", {size_text(self.on_disk(tokens))} in the library" if kept else ""
        self.reporter.note(f"esa: {document.name}: {tokens:,} tokens{where}")
        self._lacking(document)
        self._bar = prefill_bar(self.reporter, tokens, self._plan.seconds)
        self._show = self._bar.__enter__()
        self._started, self._first = time.perf_counter(), 0

    def found(self, book: Book) -> None:
        """Says that nothing need be read."""
        name, entry = book.document.name, book.entry
        self.reporter.note(f"esa: {name} was read before ({entry.id if entry else ''})")
        self._lacking(book.document)

    def _lacking(self, document: Document) -> None:
        for text in document.missing:
            self.reporter.warn(f"esa: {document.name}: {text}")

    def progress(self, done: int, total: int) -> None:
        self._first = self._first or done
        self._show(done, total)
        if done == total:
            spent = time.perf_counter() - self._started
            self.end()
            if self._plan.tokens >= WORTH_REMEMBERING and self._first < WORTH_REMEMBERING:
                from esa_cli.qa.planning import measured_speed as rates

                rates.remember(self._plan.rate_key, self._plan.operations / spent)

    def waiting(self) -> None:
        self.reporter.note("esa: waiting for another esa that reads the same document", dim=False)

    def end(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None


def _check(chosen: preset.Preset, keep: bool) -> None:
    """Holds the method to its protocols, and to the library if what is read is to be kept there.

    Raises:
        PresetError, PluginError. UsageError: it cannot be kept.
    """
    from esa_cli.qa import build_method as build
    from esa_cli.qa.archive import hindrance

    why = hindrance(build.method(chosen))
    if keep and why:
        raise UsageError(
            f"what is read cannot be kept in the library: {why}",
            "ask without keeping, or with another method",
        )


@contextmanager
def opened(
    name: str,
    overrides: Sequence[str],
    device: str,
    dtype: str,
    reporter: Reporter,
    *,
    keep: bool = False,
    rows: str = "int8",
    library: Library | None = None,
    known: Known | None = None,
) -> Iterator[Esa]:
    """A loaded model that finds documents in the user's library.

    Args:
        name: the preset's. keep: what is not there is put there. rows: how; see `api.Esa`.
        library: another than the user's. known: the model's small files, if they were looked at.

    Raises:
        UsageError: what is read cannot be kept. PresetError, ModelError, ResourceError.
    """
    chosen = preset.load(name, overrides)
    models.parse_reference(chosen.model)
    reporter.stage("import", 0, None)
    from esa_cli.storage.library import Library

    _check(chosen, keep)
    known = known or look(chosen, Place.of(device, dtype), reporter)
    known.plan(chosen, 1, timed=False).check()
    loaded = load(chosen.model, known.folder, device, dtype, reporter)
    from esa_cli.models.quiet_transformers import quiet_transformers
    from esa_cli.qa.api import Esa

    reading = Reading(known, chosen, reporter)
    with (
        quiet_transformers(),
        Esa(
            loaded,
            chosen,
            library=library or Library(),
            keep=keep,
            rows=rows,
            begin=reading.begin,
            found=reading.found,
            progress=reading.progress,
            waiting=reading.waiting,
            room=reading.room,
            ended=reading.end,
        ) as esa,
    ):
        reading.on_disk = esa.books.on_disk
        reporter.settle()
        try:
            yield esa
        finally:
            reading.end()

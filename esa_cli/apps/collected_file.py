"""The places of one question as JSON lines, written as they are found. Shows nothing.

The first row says what was asked. Rows with `text` are places, in order; rows with `read` say how
many of the chosen passages were read until then, so that a stopped run continues there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esa_cli.errors import DocumentError, UsageError
from esa_cli.qa.collecting import CollectedPlace, Coverage, EarlierRun
from esa_cli.system.jsonl import ANOTHER, JsonLines, check_first, read_lines

FIRST = "collect"
"""The first field of the file."""
EVERY = 64
"""Passages after which a row says how far the run is."""


class CollectedFile(JsonLines):
    """A context manager that holds the file open; None keeps nothing.

    Args:
        question: what was asked. key: a digest of it and of all that its places depend on.
        about: further fields of the first row.

    Raises:
        UsageError: the file has other contents, or places of another question or settings, or
            another process is writing it. DocumentError, ResourceError: it cannot be written.
    """

    def __init__(
        self, path: Path | None, question: str, key: str, about: Mapping[str, Any]
    ) -> None:
        super().__init__(path, {FIRST: question, "key": key, **about})
        self.earlier = EarlierRun(0, ())
        """How far earlier runs came."""
        self._read = 0

    @staticmethod
    def check(path: Path | None) -> None:
        """Raises UsageError where the file has other contents, before any work is done."""
        if path is not None:
            check_first(path, FIRST)

    def _load(self, path: Path) -> None:
        self.check(path)
        places = []
        for number, row in enumerate(read_lines(path), 1):
            if number == 1 and any(row.get(name) != self.header[name] for name in (FIRST, "key")):
                raise UsageError(
                    f"{path} has places of another question, or of other documents or settings",
                    ANOTHER,
                )
            try:
                if "text" in row:
                    places.append(CollectedPlace.of_row(row))
                elif number > 1:
                    self._read = int(row["read"])
            except (KeyError, TypeError, ValueError) as error:
                raise DocumentError(f"{path}: row {number} is not whole", ANOTHER) from error
        self.earlier = EarlierRun(self._read, tuple(places))

    def add(self, place: CollectedPlace) -> None:
        """Writes a place. Raises ResourceError, DocumentError."""
        self.append(place.as_row())

    def reached(self, settled: int, coverage: Coverage, stopped: bool = False) -> None:
        """Writes how far the run is, if that is worth a row: the places of the first `settled`
        passages are written. Raises ResourceError, DocumentError."""
        ended = stopped or settled == coverage.chosen
        if settled > self._read and (ended or settled >= self._read + EVERY):
            self.append({"read": settled, "chosen": coverage.chosen, "of": coverage.passages})
            self._read = settled

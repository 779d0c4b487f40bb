"""The places of one question as JSON lines, written as they are found.

The first row says what was asked. Rows with `text` are places, in order; rows with `read` tell how
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
"""Passages after which a row tells how far the run is."""


class CollectedFile(JsonLines):
    """A context manager that holds the file open; without a path it stores nothing. `key` is a
    digest of everything that the places depend on, `about` are further fields of the first row."""

    def __init__(
        self, path: Path | None, question: str, key: str, about: Mapping[str, Any]
    ) -> None:
        super().__init__(path, {FIRST: question, "key": key, **about})
        self.earlier = EarlierRun(0, ())
        self._read = 0

    @staticmethod
    def check(path: Path | None) -> None:
        """Raises UsageError: the file has other contents."""
        if path is not None:
            check_first(path, FIRST)

    def _load(self, path: Path) -> None:
        self.check(path)
        places = []
        for number, row in enumerate(read_lines(path), 1):
            if number == 1 and row.get("key") != self.header["key"]:
                wrong = "places of another question, or of other documents or settings"
                raise UsageError(f"{path} has {wrong}", ANOTHER)
            try:
                if "text" in row:
                    places.append(CollectedPlace.of_row(row))
                elif number > 1:
                    self._read = int(row["read"])
            except (KeyError, TypeError, ValueError) as error:
                raise DocumentError(f"{path}: row {number} is not whole", ANOTHER) from error
        self.earlier = EarlierRun(self._read, tuple(places))

    def add(self, place: CollectedPlace) -> None:
        """Writes a place."""
        self.append(place.as_row())

    def reached(self, settled: int, coverage: Coverage, stopped: bool = False) -> None:
        """Writes now and then, and at the end, that the first `settled` passages are done."""
        step = 1 if stopped or settled == coverage.chosen else EVERY
        if settled >= self._read + step:
            self.append({"read": settled, "chosen": coverage.chosen, "of": coverage.passages})
            self._read = settled

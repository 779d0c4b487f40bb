"""Stores the places that answer one question as JSON lines, each as soon as it is found.

The first row contains the question. Rows with `text` are places. Rows with `read` say how many of
the chosen passages had been read by then, so that a stopped run can continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from esa_cli.errors import DocumentError, UsageError
from esa_cli.qa.collecting import CollectedPlace, Coverage, EarlierRun
from esa_cli.system.jsonl import ANOTHER, JsonLines, check_first, read_lines

FIRST = "collect"
"""The first field of the first row."""
EVERY = 64
"""The number of passages between two rows that store the progress."""


class CollectedPlacesFile(JsonLines):
    """A context manager that keeps the output file of `esa collect` open; without a path nothing is
    stored. `key` is a digest of everything that the places depend on; the first row also has
    `about`."""

    def __init__(
        self, path: Path | None, question: str, key: str, about: Mapping[str, Any]
    ) -> None:
        super().__init__(path, {FIRST: question, "key": key, **about})
        self.earlier = EarlierRun(0, ())
        self._read = 0

    @staticmethod
    def check_first_row(path: Path | None) -> None:
        """Raises UsageError: the file exists and was not written by `esa collect`."""
        if path is not None:
            check_first(path, FIRST)

    def _load(self, path: Path) -> None:
        self.check_first_row(path)
        places = []
        for number, row in enumerate(read_lines(path), 1):
            if number == 1 and row.get("key") != self.header["key"]:
                wrong = "places for another question, or from other documents or settings"
                raise UsageError(f"{path} has {wrong}", ANOTHER)
            try:
                if "text" in row:
                    places.append(CollectedPlace.of_row(row))
                elif number > 1:
                    self._read = int(row["read"])
            except (KeyError, TypeError, ValueError) as error:
                raise DocumentError(f"row {number} of {path} is incomplete", ANOTHER) from error
        self.earlier = EarlierRun(self._read, tuple(places))

    def write_place(self, place: CollectedPlace) -> None:
        """Appends a row with one place."""
        self.append(place.as_row())

    def write_progress(self, passages_read: int, coverage: Coverage, stopped: bool = False) -> None:
        """Appends the number of read passages, after every `EVERY` passages and at the end."""
        step = 1 if stopped or passages_read == coverage.chosen else EVERY
        if passages_read >= self._read + step:
            self.append({"read": passages_read, "chosen": coverage.chosen, "of": coverage.passages})
            self._read = passages_read

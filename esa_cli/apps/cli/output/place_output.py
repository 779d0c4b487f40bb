"""Output of collected places: a table, CSV, JSON lines."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import Literal

from esa_cli.apps.cli.output.terminal import as_json, clean, one_line, print_table
from esa_cli.apps.collect.collected_file import place_row
from esa_cli.qa.collecting.collection import CollectedPlace, distinct_places

FIELDS = (
    "document", "source", "page", "line", "chapter", "start", "end", "text", "sentence",
    "score", "log_odds", "answer",
)  # fmt: skip
"""Columns of CSV."""


class PlaceOutput:
    """Writes places to standard output: CSV and JSON lines one by one, a table at the end.

    Args:
        distinct: places with the same words once.
    """

    def __init__(
        self, form: Literal["table", "csv", "jsonl", "none"], distinct: bool = False
    ) -> None:
        self._form, self._distinct = form, distinct
        self._shown: list[CollectedPlace] = []
        self._words = set[str]()
        self._csv = csv.writer(sys.stdout, lineterminator="\n")

    def add(self, place: CollectedPlace) -> None:
        """Takes a place in its turn."""
        if self._distinct and place.words in self._words:
            return
        self._words.add(place.words)
        if self._form == "jsonl":
            print(as_json(place_row(place)), flush=True)
        elif self._form == "csv":
            if not self._shown:
                self._csv.writerow(FIELDS)
            row = place_row(place)
            self._csv.writerow("" if row[name] is None else _cell(row[name]) for name in FIELDS)
            sys.stdout.flush()
        self._shown.append(place)

    def end(self) -> None:
        """Writes the table of the places so far."""
        if self._form == "table" and self._shown:
            rows = [
                (_place(one), _words(one), one_line(_flat(one.sentence))) for one in self._shown
            ]
            print_table(("place", "words", "sentence"), rows)


def count_text(places: Sequence[CollectedPlace]) -> str:
    """`24 places, 19 distinct`."""
    count = len(places)
    return f"{count:,} place{'' if count == 1 else 's'}, {len(distinct_places(places)):,} distinct"


def _place(one: CollectedPlace) -> str:
    page = "" if one.page is None else f", page {one.page}"
    return one_line(f"{one.document}:{one.line}{page}")


def _words(one: CollectedPlace) -> str:
    return one_line(_flat(one.answer or one.text))


def _flat(text: str) -> str:
    return " ".join(text.split())


def _cell(value: object) -> str:
    return clean(str(value))

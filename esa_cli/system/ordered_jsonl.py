"""JSON lines in the order of given keys, whatever order they come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import replacing
from esa_cli.system.jsonl import (
    ANOTHER,
    JsonLines,
    append_row,
    appending,
    begins_with,
    foreign,
    read_lines,
)

FIRST = "id"
"""The first field of every row."""


class OrderedJsonLines(JsonLines):
    """Rows in the order of `keys`, each with its key under "key".

    A row that comes before its turn waits in PATH.part and in memory. A key may have two parts,
    what is asked and what of, with a point between: a row of the same with another second part is
    out of date, and is removed, so that it is made again.

    Args:
        another: says what a row with another key than that of its place is. retry: remove the
            rows with an "error", so that they are made again.

    Attributes:
        written: number of rows in the file. failed: places of rows with an "error", waiting rows
            included.
    """

    path: Path

    def __init__(
        self,
        path: Path,
        keys: Sequence[str],
        another: Callable[[int, Mapping[str, Any]], str],
        *,
        retry: bool = False,
    ) -> None:
        super().__init__(path)
        self.part = path.with_name(path.name + ".part")
        self.keys, self.retry, self._another = keys, retry, another
        self.written = 0
        self.failed: set[int] = set()
        self._stale: set[int] = set()
        self._waiting: dict[int, dict[str, Any]] = {}
        self._side: FileIO | None = None

    def _load(self, path: Path) -> None:
        self._read()
        if self._stale or (self.retry and self.failed):
            self._remove(self._stale | (self.failed if self.retry else set()))
            self._read()

    def _read(self) -> None:
        self.written = 0
        self.failed.clear()
        self._stale.clear()
        self._waiting.clear()
        for row in self.rows_of(self.path, FIRST):
            self._note(self.written, row, f"{self.path}, row {self.written + 1}")
            self.written += 1
        for row in self.rows_of(self.part, "index"):
            index, waiting = row.get("index"), row.get("row")
            if not isinstance(index, int) or not isinstance(waiting, dict):
                raise foreign(self.part)
            if index >= self.written:
                self._note(index, waiting, str(self.part))
                self._waiting[index] = waiting

    def rows_of(self, path: Path, first: str = FIRST) -> Iterator[dict[str, Any]]:
        """The rows of a file of this kind, none if it is missing. Raises UsageError: it has other
        contents."""
        if not begins_with(path, first):
            raise foreign(path)
        try:
            if path.exists():
                yield from read_lines(path)
        except DocumentError as error:
            raise UsageError(error.message, ANOTHER) from error

    def _note(self, index: int, row: Mapping[str, Any], where: str) -> None:
        """Refuses a row that does not belong to this place."""
        if "key" not in row:
            raise foreign(self.path)
        if index >= len(self.keys):
            raise UsageError(f"{where}: there is no such question any more", ANOTHER)
        failed = "error" in row
        if row["key"] != self.keys[index] and not (self.retry and failed):
            if str(row["key"]).partition(".")[0] != self.keys[index].partition(".")[0]:
                raise UsageError(f"{where} {self._another(index, row)}", ANOTHER)
            self._stale.add(index)
        if failed:
            self.failed.add(index)

    def _remove(self, places: Set[int]) -> None:
        """Moves the rows after the first of these places to the part, without those of the places.

        A kill at any moment leaves two files that together have every other row.
        """
        rows = list(self.rows_of(self.path, FIRST))
        end = min(min(places), len(rows))
        every = {**dict(enumerate(rows)), **self._waiting}
        good = {index: row for index, row in every.items() if index not in places}
        _rewrite(self.part, ({"index": index, "row": row} for index, row in good.items()))
        _rewrite(self.path, rows[:end])

    def _open(self, path: Path, opened: ExitStack) -> None:
        super()._open(path, opened)
        opened.callback(self._remove_part)
        self._side = opened.enter_context(appending(self.part))
        self._drain()

    def _remove_part(self) -> None:
        if not self._waiting:
            with suppress(OSError):
                self.part.unlink(missing_ok=True)

    def has(self, index: int) -> bool:
        """True if there is a row for this place, from 0, in the file or waiting."""
        return index < self.written or index in self._waiting

    def add(self, index: int, row: dict[str, Any]) -> None:
        """Keeps the row of a place that has none. Raises ResourceError, DocumentError."""
        assert self._file is not None
        assert self._side is not None
        with self._errors(self.path):
            if index == self.written:
                append_row(self._file, row)
                self.written += 1
                self._drain()
            else:
                append_row(self._side, {"index": index, "row": row})
                self._waiting[index] = row
        if "error" in row:
            self.failed.add(index)

    def _drain(self) -> None:
        """Moves the waiting rows whose turn has come into the file."""
        assert self._file is not None
        while row := self._waiting.get(self.written):
            append_row(self._file, row)
            del self._waiting[self.written]
            self.written += 1


def _rewrite(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path, durable=True) as part, part.open("wb", buffering=0) as file:
        for row in rows:
            append_row(file, row)

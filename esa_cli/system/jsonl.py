"""Append-only files of JSON objects, one a line, that survive a kill.

Each row is on disk when `add` returns. Opening a file cuts off a last line that a kill left
unfinished, and locks it against other processes. Files of other programs are refused unchanged.
`Journal` finds its rows by key; `OrderedJsonLines` keeps them in the order of given keys.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Self

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import only_writer, replacing, writing_errors

MISSING = object()
SHOWN = 60
"""Characters of a changed setting that a message shows."""
ANOTHER = "choose another --out, or delete the file"


class JsonLines(ABC):
    """A context manager that holds the file open for one writer. Raises UsageError: the file has
    other contents, or another process is writing it. DocumentError, ResourceError: it cannot be
    read or written."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._opened = ExitStack()
        self._file: FileIO | None = None

    @abstractmethod
    def _load(self, path: Path) -> None:
        """Reads what there is; refuses other contents. Changes nothing on disk."""

    def __enter__(self) -> Self:
        if self.path is not None:
            with self._errors(self.path), ExitStack() as opened:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                opened.enter_context(only_writer(self.path))
                self._load(self.path)
                self._open(self.path, opened)
                self._opened = opened.pop_all()
        return self

    def _open(self, path: Path, opened: ExitStack) -> None:
        self._file = opened.enter_context(appending(path))

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @staticmethod
    def _errors(path: Path) -> AbstractContextManager[None]:
        room = "free some space; the same command goes on"
        return writing_errors(path, room, "name a file in a folder you may write to")


class Journal(JsonLines):
    """Rows of one measurement, which are in memory, too.

    Args:
        path: the file, or None for rows in memory only. header: what is measured; its values
            under `same` must not change when a file is continued.
        key: the fields that identify a row; every row has them. wrong: says what is wrong with a
            row of the file, empty when nothing is.
    """

    def __init__(
        self,
        path: Path | None,
        header: Mapping[str, Any],
        *,
        same: Sequence[str],
        key: Sequence[str],
        wrong: Callable[[Mapping[str, Any]], str] | None = None,
    ) -> None:
        super().__init__(path)
        self.header = dict(header)
        self.same, self.key, self._wrong = same, tuple(key), wrong
        self._done: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._joined: dict[tuple[Any, ...], dict[str, Any]] = {}
        if path is not None and path.exists():
            with only_writer(path):
                self._load(path)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each key, in the order in which they first came."""
        return list(self._done.values())

    def join(self, paths: Iterable[Path]) -> int:
        """Takes the rows that it lacks from other files of the same measurement, as those of other
        shards; they are written when it is opened. Returns their number.

        Raises:
            UsageError: a file has other contents. DocumentError: it cannot be read.
        """
        before = len(self._done)
        for path in paths:
            found = {key: row for key, row in self._read(path) if key not in self._done}
            self._done |= found
            self._joined |= found
        return len(self._done) - before

    def _load(self, path: Path) -> None:
        for key, row in self._read(path) if path.exists() else ():
            self._done[key] = row
            self._joined.pop(key, None)

    def _read(self, path: Path) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The file's rows with their keys; every header in it is checked."""
        if not begins_with(path, next(iter(self.header))):
            raise foreign(path)
        for number, row in enumerate(read_lines(path), 1):
            if number == 1 or "command" in row:
                self._check_header(path, row)
            else:
                lacks = [f"it has no {name!r}" for name in self.key if name not in row]
                if wrong := lacks[0] if lacks else self._wrong and self._wrong(row):
                    raise DocumentError(
                        f"{path}: the row in line {number} is not whole: {wrong}",
                        "delete that line, or choose another --out",
                    )
                yield self._key(row), row

    def _check_header(self, path: Path, header: Mapping[str, Any]) -> None:
        if "command" not in header:
            raise foreign(path)
        for name in self.same:
            # Through JSON and back as the file's header: tuples are lists there.
            old, new = header.get(name), json.loads(json.dumps(self.header.get(name)))
            if old != new:
                raise UsageError(
                    f"{path} has results of another {name}: {'; '.join(_changes(old, new))}",
                    ANOTHER,
                )

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(json.dumps(row.get(name)) for name in self.key)

    def _open(self, path: Path, opened: ExitStack) -> None:
        super()._open(path, opened)
        assert self._file is not None
        if not self._file.tell():
            append_row(self._file, self.header)
        for row in self._joined.values():
            append_row(self._file, row)
        self._joined.clear()

    def find(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row with the same key, if there is one."""
        return self._done.get(self._key(row))

    def add(self, row: dict[str, Any]) -> None:
        """Keeps the row. Raises ResourceError, DocumentError."""
        self._done[self._key(row)] = row
        if self._file is not None and self.path is not None:
            with self._errors(self.path):
                append_row(self._file, row)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The file's objects, without an unfinished last line. Raises DocumentError: the file cannot be
    read, or another line is not a JSON object."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror or error}") from error
    with file:
        for number, line in enumerate(file, 1):
            row = _parsed(line) if line.strip() else {}
            if row is None and not line.endswith(b"\n") and line.startswith(b"{"):
                return
            if not isinstance(row, dict):
                what = "not JSON" if row is None else "not an object"
                raise DocumentError(f"{path}, line {number}: {what}", "is it the right file?")
            if row:
                yield row


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):  # a cut inside a character is a ValueError, too
        return None


def foreign(path: Path) -> UsageError:
    return UsageError(f"{path} is not a results file of esa", "choose another --out")


def begins_with(path: Path, field: str) -> bool:
    """True if the first row has this as its first field; a missing file or a cut row may have."""
    begin = f"{{{json.dumps(field)}: ".encode()
    if not path.exists():
        return True
    with path.open("rb") as file:
        head = file.read(len(begin))
    return begin.startswith(head)


def append_row(file: FileIO, row: Mapping[str, Any]) -> None:
    """Writes the row; lone surrogates become JSON escapes. Raises OSError."""
    text = json.dumps(row, ensure_ascii=False) + "\n"
    left = text.encode("utf-8", "backslashreplace")
    while left:
        left = left[file.write(left) :]


@contextmanager
def appending(path: Path) -> Iterator[FileIO]:
    """The file, unbuffered, without an unfinished last line. Raises OSError."""
    if path.exists():
        _repair_end(path)
    with path.open("ab", buffering=0) as file:
        yield file


def _repair_end(path: Path) -> None:
    """Cuts off an unfinished last line; a row that lacks only its line break gets it."""
    size, last = 0, b"\n"
    with path.open("r+b") as file:
        for last in file:
            size += len(last)
        if isinstance(_parsed(last), dict):
            file.write(b"" if last.endswith(b"\n") else b"\n")
        elif not last.endswith(b"\n"):
            file.truncate(size - len(last))


def _changes(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """The settings that differ: `window.selected 256 -> 32`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            below = f"{name}.{key}" if name else key
            yield from _changes(old.get(key, MISSING), new.get(key, MISSING), below)
    elif old != new:
        yield f"{name} {_shown(old)} -> {_shown(new)}".strip()


def _shown(value: Any) -> str:
    text = "not there" if value is MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


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

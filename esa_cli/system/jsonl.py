"""JSON lines that survive an interruption: a header that says what is measured, then one row each.

A row is written whole and flushed; a line half-written when the machine died is dropped on the next
start. A file of other settings is never continued, and none is written by two processes at once.
Knows nothing about what is measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from esa_cli.errors import DocumentError, UsageError

MISSING = object()
SHOWN = 60
"""Characters of a changed setting that a message shows."""


class Journal:
    """Rows of one measurement in a file; use as a context manager.

    Args:
        path: the file, or None to keep rows in memory only. header: what is measured; its values
            under `same` must not change when a file is continued.
        key: the fields that tell rows apart, which every row has. wrong: says what is wrong with a
            row of the file, empty when nothing is.

    Raises:
        UsageError: the file holds another measurement, or another process is writing it.
        DocumentError: it cannot be read or written.
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
        self.path, self.header = path, dict(header)
        self.same, self.key, self._wrong = same, tuple(key), wrong
        self._done: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._opened = ExitStack()
        self._file: Any = None
        if path is not None and path.exists():
            with _alone(path):
                self._load(path)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One for each key, in the order in which they first came."""
        return list(self._done.values())

    def _load(self, path: Path) -> None:
        """Takes the file's rows. Raises as the class does."""
        if not path.stat().st_size:
            return
        lines = list(read_lines(path))
        if not lines and _begins(path.read_bytes(), self.header):
            return
        if not lines or "command" not in lines[0]:
            raise UsageError(f"{path} is not a results file of esa", "choose another --out")
        for name in self.same:
            # Through JSON and back, as the old one went: tuples are lists there.
            old, new = lines[0].get(name), json.loads(json.dumps(self.header.get(name)))
            if old != new:
                raise UsageError(
                    f"{path} holds results of another {name}: {'; '.join(_changes(old, new))}",
                    "choose another --out, or delete the file",
                )
        for number, row in enumerate(lines, 1):
            if "command" in row:
                continue
            lacks = [f"it has no {name!r}" for name in self.key if name not in row]
            if wrong := lacks[0] if lacks else self._wrong and self._wrong(row):
                raise DocumentError(
                    f"{path}: the row in line {number} is not whole: {wrong}",
                    "delete that line, or choose another --out",
                )
            self._done[self._key(row)] = row

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(json.dumps(row.get(name)) for name in self.key)

    def __enter__(self) -> Journal:
        if self.path is None:
            return self
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with ExitStack() as opened:
                opened.enter_context(_alone(self.path))
                if self.path.exists():
                    self._load(self.path)  # again: who had the file before may have written more
                    _mend_end(self.path)
                fresh = not self.path.exists() or not self.path.stat().st_size
                self._file = opened.enter_context(self.path.open("a", encoding="utf-8"))
                if fresh:
                    self._write(self.header)
                self._opened = opened.pop_all()
        except OSError as error:
            raise DocumentError(f"cannot write {self.path}: {error}", "") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    def find(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row with the same key, if it is there already."""
        return self._done.get(self._key(row))

    def done(self, row: Mapping[str, Any]) -> bool:
        """Whether a row with the same key is there already."""
        return self.find(row) is not None

    def add(self, row: dict[str, Any]) -> None:
        """Keeps the row, on disk at once."""
        self._done[self._key(row)] = row
        if self._file is not None:
            self._write(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()


def is_share(value: Any) -> bool:
    """Whether a row's value is a number from 0 to 1, as scores are; NaN and True are none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 1


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The file's objects; a last line that was not finished is left out.

    Raises:
        DocumentError: the file cannot be read, or another line is not JSON.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error}", "") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode("utf-8"))
        except ValueError as error:  # a cut inside a character is one, too
            if number == len(lines):
                return
            raise DocumentError(f"{path}, line {number}: not JSON", "is it the right file?") from (
                error
            )
        if not isinstance(row, dict):
            raise DocumentError(f"{path}, line {number}: not an object", "is it the right file?")
        yield row


def _begins(data: bytes, header: Mapping[str, Any]) -> bool:
    """Whether a line that was not finished was to become a header like this one."""
    first = f"{{{json.dumps(next(iter(header)))}: ".encode()
    return data.startswith(first) or first.startswith(data)


def _changes(old: Any, new: Any, name: str = "") -> Iterator[str]:
    """What differs, setting by setting: `window.selected 256 -> 32`."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            below = f"{name}.{key}" if name else key
            yield from _changes(old.get(key, MISSING), new.get(key, MISSING), below)
    elif old != new:
        yield f"{name} {_shown(old)} -> {_shown(new)}".strip()


def _shown(value: Any) -> str:
    text = "not there" if value is MISSING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _mend_end(path: Path) -> None:
    """Takes away a half-written last line; gives a whole one its line break."""
    data = path.read_bytes()
    if not data or data.endswith(b"\n"):
        return
    kept, end, last = data.rpartition(b"\n")
    try:
        json.loads(last)
    except ValueError:
        with path.open("r+b") as file:
            file.truncate(len(kept + end))
    else:
        with path.open("ab") as file:
            file.write(b"\n")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Holds PATH.lock, so that two processes never write the same rows. Raises UsageError."""
    lock = FileLock(f"{path.resolve()}.lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"another esa is writing {path}", "wait for it, or choose another --out"
        ) from error
    except OSError:
        pass  # a disk without locks, or a folder to write nothing new in: rows can still be kept
    try:
        yield
    finally:
        if lock.is_locked:
            if sys.platform != "win32":  # there an open file cannot be removed
                with suppress(OSError):
                    Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()

"""JSON lines that survive an interruption: a header that says what is measured, then one row each.

A row is written whole and flushed; a line half-written when the machine died is dropped on the next
start. A file of other settings is never continued. Knows nothing about what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from .errors import DocumentError, UsageError


class Journal:
    """Rows of one measurement in a file; use as a context manager.

    Args:
        path: the file, or None to keep rows in memory only. header: what is measured; its values
            under `same` must not change when a file is continued.
        key: the fields that tell rows apart.

    Raises:
        UsageError: the file holds another measurement. DocumentError: it cannot be read or written.
    """

    def __init__(
        self,
        path: Path | None,
        header: Mapping[str, Any],
        *,
        same: Sequence[str],
        key: Sequence[str],
    ) -> None:
        self.path, self.header, self.key = path, dict(header), tuple(key)
        self.rows: list[dict[str, Any]] = []
        self._file: Any = None
        if path is not None and path.exists() and path.stat().st_size:
            lines = list(read_lines(path))
            if not lines or "command" not in lines[0]:
                raise UsageError(f"{path} is not a results file of esa", "choose another --out")
            for name in same:
                # Through JSON and back, as the old one went: tuples are lists there.
                if lines[0].get(name) != json.loads(json.dumps(self.header.get(name))):
                    raise UsageError(
                        f"{path} holds results of another {name}: {lines[0].get(name)!r}",
                        "choose another --out, or delete the file",
                    )
            self.rows = [line for line in lines if "command" not in line]
        self._done = {self._key(row): row for row in self.rows}

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(json.dumps(row.get(name)) for name in self.key)

    def __enter__(self) -> Journal:
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                fresh = not self.path.exists() or not self.path.stat().st_size
                if not fresh:
                    _mend_end(self.path)
                self._file = self.path.open("a", encoding="utf-8")
                if fresh:
                    self._write(self.header)
            except OSError as error:
                raise DocumentError(f"cannot write {self.path}: {error}", "") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()

    def find(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row with the same key, if it is there already."""
        return self._done.get(self._key(row))

    def done(self, row: Mapping[str, Any]) -> bool:
        """Whether a row with the same key is there already."""
        return self.find(row) is not None

    def add(self, row: dict[str, Any]) -> None:
        """Keeps the row, on disk at once."""
        self.rows.append(row)
        self._done[self._key(row)] = row
        if self._file is not None:
            self._write(row)

    def _write(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The file's objects; a last line that was not finished is left out.

    Raises:
        DocumentError: the file cannot be read, or another line is not JSON.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"cannot read {path}: {error}", "") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return
            raise DocumentError(f"{path}, line {number}: not JSON", "is it the right file?") from (
                error
            )
        if not isinstance(row, dict):
            raise DocumentError(f"{path}, line {number}: not an object", "is it the right file?")
        yield row


def _mend_end(path: Path) -> None:
    """Takes away a half-written last line; gives a whole one its line break."""
    data = path.read_bytes()
    if data.endswith(b"\n"):
        return
    kept, _, last = data.rpartition(b"\n")
    try:
        json.loads(last)
        path.write_bytes(data + b"\n")
    except ValueError:
        path.write_bytes(kept + b"\n" if kept else b"")

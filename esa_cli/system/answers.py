"""The answers file: one row a question, in the order of the questions, that survives a kill.

Rows may come in any order. One that comes before its turn waits in a file beside, OUT.part, of
which only the places are held in memory. Every row is flushed when it comes; what a kill left half
written is dropped, and answered again. Each row's key is compared with its question's, so that a
file of other questions is never continued; and what does not begin like a row of ours is never cut
off.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import IO, Any

from esa_cli.apps.batch.batch_questions import Question
from esa_cli.errors import UsageError
from esa_cli.system.files import writing_errors

OTHER = "choose another --out, or delete the file"
BEGIN, BEGIN_EARLY = b'{"id": ', b'{"index": '
"""How every row begins, of the file and of the one beside."""


class Answers:
    """Rows for `questions` in `path`; use as a context manager.

    Args:
        retry: forget the rows with an error, so that they are asked again.

    Attributes:
        written: rows that stand in the file. failed: places of those with an error, waiting ones
            included.

    Raises:
        UsageError: the file holds answers to other questions, or is none of ours.
        DocumentError, ResourceError: it cannot be written.
    """

    def __init__(self, path: Path, questions: Sequence[Question], retry: bool = False) -> None:
        self.path, self.part = path, path.with_name(path.name + ".part")
        self.questions, self.retry = questions, retry
        self.written = 0
        self.failed: set[int] = set()
        self._early: dict[int, int] = {}
        self._out: IO[bytes] | None = None
        self._side: IO[bytes] | None = None

    def __enter__(self) -> Answers:
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._load()
            if self.retry and self.failed:
                _forget_failed(self.path, self.part)
                self._load()
            for path in (self.path, self.part):
                _drop_half_a_row(path)
            self._out = self.path.open("ab")
            try:
                self._drain()
            except BaseException:
                self._abandon()
                raise
        return self

    def _load(self) -> None:
        """What is there; changes nothing on disk."""
        self.written = 0
        self.failed.clear()
        self._early.clear()
        for _, row in _rows(self.path, BEGIN):
            self._check(self.written, row, f"{self.path}, row {self.written + 1}")
            self._note(self.written, row)
            self.written += 1
        for at, row in _rows(self.part, BEGIN_EARLY):
            index = row.get("index")
            if not isinstance(index, int) or not isinstance(row.get("row"), dict):
                raise UsageError(f"{self.part} is not a file of `esa batch`", OTHER)
            if index >= self.written:
                self._check(index, row["row"], str(self.part))
                self._note(index, row["row"])
                self._early[index] = at

    def _note(self, index: int, row: dict[str, Any]) -> None:
        if "error" in row:
            self.failed.add(index)

    def _check(self, index: int, row: dict[str, Any], where: str) -> None:
        if "key" not in row:
            raise UsageError(f"{where}: not an answer of `esa batch`", OTHER)
        if index >= len(self.questions):
            raise UsageError(f"{where}: there is no such question any more", OTHER)
        wanted = self.questions[index]
        if self.retry and "error" in row:  # the question may have been mended, too
            return
        if row["key"] != wanted.key:
            same = (row.get("question"), row.get("documents")) == (
                wanted.question, list(wanted.documents),
            )  # fmt: skip
            what = "the same question under other settings" if same else "another question"
            raise UsageError(f"{where} answers {what} than line {wanted.line} asks", OTHER)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._abandon()
            return
        with _writing(self.path):
            for file in (self._out, self._side):
                if file is not None:
                    file.close()
            self._forget_part()

    def _abandon(self) -> None:
        """Closes the files while an error passes, which is worth more than what closing says: a
        file that could not be written says it again."""
        for file in (self._out, self._side):
            if file is not None:
                with suppress(OSError):
                    file.close()
        with suppress(OSError):
            self._forget_part()

    def _forget_part(self) -> None:
        if not self._early:
            self.part.unlink(missing_ok=True)

    def has(self, index: int) -> bool:
        """Whether there is a row for question `index`, from 0, in the file or waiting."""
        return index < self.written or index in self._early

    def put(self, index: int, row: dict[str, Any]) -> None:
        """Keeps the row, on disk at once. Raises DocumentError, ResourceError."""
        assert self._out is not None
        assert not self.has(index)
        self._note(index, row)
        with _writing(self.path):
            if index != self.written:
                if self._side is None:
                    self._side = self.part.open("ab")
                at = self._side.seek(0, os.SEEK_END)
                _write(self._side, {"index": index, "row": row})
                self._early[index] = at
                return
            _write(self._out, row)
            self.written += 1
            self._drain()

    def _drain(self) -> None:
        """Moves the waiting rows whose turn it is into the file."""
        if self.written not in self._early:
            return
        assert self._out is not None
        with self.part.open("rb") as side:
            while (at := self._early.get(self.written)) is not None:
                side.seek(at)
                _write(self._out, json.loads(side.readline())["row"])
                del self._early[self.written]
                self.written += 1


def _writing(path: Path) -> AbstractContextManager[None]:
    room = "free some space; the same command goes on"
    return writing_errors(path, room, "name a file in a folder you may write to")


def _forget_failed(path: Path, part: Path) -> None:
    """Takes the rows with an error out.

    What stands behind the first of them waits in the file beside. A kill at any moment leaves two
    files that together hold every answer.
    """
    numbered = [(index, row) for index, (_, row) in enumerate(_rows(path, BEGIN))]
    waiting = [(row["index"], row["row"]) for _, row in _rows(part, BEGIN_EARLY)]
    good = [(index, row) for index, row in (*numbered, *waiting) if "error" not in row]
    first = next((index for index, row in numbered if "error" in row), len(numbered))
    _replace(part, ({"index": index, "row": row} for index, row in good))
    _replace(path, (row for _, row in numbered[:first]))


def _replace(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with new.open("wb") as file:
            for row in rows:
                _write(file, row)
            os.fsync(file.fileno())
        os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)


def _write(file: IO[bytes], row: dict[str, Any]) -> None:
    text = json.dumps(row, ensure_ascii=False) + "\n"
    file.write(text.encode("utf-8", "backslashreplace"))  # names that are not UTF-8 are escaped
    file.flush()


def _rows(path: Path, begin: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Place and content of every whole row.

    Raises:
        UsageError: one is not JSON, or the half one at the end is none of ours.
    """
    if not path.exists():
        return
    at = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            row = _parsed(line)
            whole = line.endswith(b"\n")
            if not (isinstance(row, dict) if whole else _is_half(line, row, begin)):
                raise UsageError(f"{path}, line {number}: not an answer of `esa batch`", OTHER)
            if whole:
                yield at, row
            at += len(line)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_half(line: bytes, row: Any, begin: bytes) -> bool:
    """Whether a line without its end may be what a kill left of a row of ours."""
    ours = line.startswith(begin) or begin.startswith(line)
    return ours and (row is None or "key" in row or "row" in row)


def _drop_half_a_row(path: Path) -> None:
    """Cuts off what stands behind the last line break."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        whole = 0
        for line in file:
            if line.endswith(b"\n"):
                whole += len(line)
        file.truncate(whole)

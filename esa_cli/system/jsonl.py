"""Reads and writes files of JSON objects, one object per line, that survive a killed process.

Each appended JSON object ("row") is on disk when `append` returns. Opening a file removes an
unfinished last line, which a killed process may have left, and locks the file against other
processes. Files that another program wrote are refused and stay unchanged."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from io import FileIO
from pathlib import Path
from typing import Any, Self

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import convert_writing_errors, lock_file_for_writing, replace_atomically

OUT_HINT = "choose another --out, or delete the file"
Row = Mapping[str, Any]


class JsonLinesFile(ABC):
    """A context manager that opens a file of JSON lines for one writer; without a path, no file is
    written. A `header` becomes the first line of a new file. Raises UsageError: the file has other
    contents or another writer. DocumentError, ResourceError: the file cannot be read or written."""

    def __init__(self, path: Path | None, header: Row | None = None) -> None:
        self.path, self.header = path, dict(header or {})
        self._opened = ExitStack()
        self._file: FileIO | None = None

    @abstractmethod
    def _load_rows(self, path: Path) -> None:
        """Loads the JSON objects of the file. Raises UsageError: another program wrote the file."""

    def _rewrite_file_before_unlocking(self, path: Path) -> None:  # noqa: B027
        """Runs before a closed file is unlocked, so that subclasses may rewrite the file."""

    def __enter__(self) -> Self:
        if self.path is not None:
            with self._convert_row_writing_errors(self.path), ExitStack() as opened:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                opened.enter_context(lock_file_for_writing(self.path))
                self._load_rows(self.path)
                opened.callback(self._rewrite_file_before_unlocking, self.path)
                _complete_or_remove_last_line(self.path)
                self._file = opened.enter_context(self.path.open("ab", buffering=0))
                if self.header and not self._file.tell():
                    _write_row(self._file, self.header)
                self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def append(self, row: Row) -> None:
        if self._file is not None and self.path is not None:
            with self._convert_row_writing_errors(self.path):
                _write_row(self._file, row)

    @staticmethod
    def _convert_row_writing_errors(path: Path) -> AbstractContextManager[None]:
        room = "free some disk space, then run the same command again to continue"
        return convert_writing_errors(path, room, "choose a file in a folder that you may write to")


class ResultsFile(JsonLinesFile):
    """Keeps the result rows (JSON objects) of one measurement in memory and, if it has a path, in a
    file. The header describes the measurement; its `fixed_fields` must not change when a file is
    continued. Every row has all `key_fields`, which identify the row. `describe_invalid_row` says
    what is wrong with a row, or returns "". The rows of other shards' files are added to this."""

    def __init__(
        self, path: Path | None, header: Row, *, fixed_fields: Sequence[str],
        key_fields: Sequence[str], describe_invalid_row: Callable[[Row], str] = lambda row: "",
        other_shards: Iterable[Path] = (),
    ) -> None:  # fmt: skip
        super().__init__(path, header)
        self.fixed_fields, self.key_fields = fixed_fields, tuple(key_fields)
        self._describe_invalid_row = describe_invalid_row
        self._done: dict[tuple[str, ...], dict[str, Any]] = {}
        self._joined: dict[tuple[str, ...], dict[str, Any]] = {}
        if path is not None and path.exists():
            with lock_file_for_writing(path):
                self._load_rows(path)
        for other in other_shards:
            rows = self._read_rows(other)
            self._joined |= {key: row for key, row in rows if key not in self._done}
            self._done |= self._joined

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Returns the last result row of each key, ordered by where the key first occurs."""
        return list(self._done.values())

    def __enter__(self) -> Self:
        super().__enter__()
        for row in self._joined.values():
            self.append(row)
        self._joined.clear()
        return self

    def _load_rows(self, path: Path) -> None:
        for key, row in self._read_rows(path):
            self._done[key] = row
            self._joined.pop(key, None)

    def _read_rows(self, path: Path) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
        """Yields the key and contents of each row of a results file, and checks its headers."""
        refuse_other_first_field(path, next(iter(self.header)))
        for number, row in enumerate(read_json_lines(path), 1):
            if "command" in row:
                self._refuse_changed_settings(path, row)
                continue
            if number == 1:
                raise _make_foreign_file_error(path)
            lacks = [f"it has no {name!r}" for name in self.key_fields if name not in row]
            if wrong := lacks[0] if lacks else self._describe_invalid_row(row):
                message = f"{path}: the row in line {number} is incomplete: {wrong}"
                hint = f"delete line {number} of {path}, or choose another file with --out"
                raise DocumentError(message, hint)
            yield self._make_row_key(row), row

    def _refuse_changed_settings(self, path: Path, header: Row) -> None:
        for name in self.fixed_fields:
            # Through JSON and back as the file's header: tuples are lists there.
            old, new = header.get(name), json.loads(json.dumps(self.header.get(name)))
            if changes := "; ".join(_list_changed_settings(old, new, name)):
                raise UsageError(f"{path} has results of other settings: {changes}", OUT_HINT)

    def _make_row_key(self, row: Row) -> tuple[str, ...]:
        return tuple(json.dumps(row.get(name)) for name in self.key_fields)

    def find_row_with_same_key(self, row: Row) -> dict[str, Any] | None:
        return self._done.get(self._make_row_key(row))

    def add_row(self, row: dict[str, Any]) -> None:
        self._done[self._make_row_key(row)] = row
        self.append(row)


class AnswersFile(JsonLinesFile):
    """An answers file, in which the fields "id" and "key" of a row (a JSON object) say which
    question the row answers. Rows are written as answers arrive, and sorted in the order of the
    questions when the file is closed or opened again. A "key" may be `Q.D`, where Q stands for a
    question and D for its documents; a row whose question now has other documents is removed.
    `row_keys` are "key" and "id" for each question; `retry_failed` removes rows with an "error"."""

    path: Path

    def __init__(
        self, path: Path, row_keys: Sequence[tuple[str, Any]], *, retry_failed: bool = False
    ) -> None:
        super().__init__(path)
        self.retry_failed = retry_failed
        keys = enumerate(row_keys)
        self._questions = {_make_question_key(key, id): (at, key) for at, (key, id) in keys}
        self._rows: dict[int, dict[str, Any]] = {}
        """The rows by the index of their question, ordered as in the file."""

    @property
    def failed_question_indices(self) -> set[int]:
        """Returns the indices of the questions whose row has the field "error"."""
        return {at for at, row in self._rows.items() if "error" in row}

    def _load_rows(self, path: Path) -> None:
        rows, good = list(self.read_result_rows(path)), dict[int, dict[str, Any]]()
        for number, row in enumerate(rows, 1):
            if "key" not in row:
                raise _make_foreign_file_error(path)
            if self.retry_failed and "error" in row:
                continue
            wanted = _make_question_key(str(row["key"]), row.get("id"))
            at, key = self._questions.get(wanted, (-1, ""))
            if at < 0:
                raise UsageError(
                    f"{path}: row {number} answers none of the present questions: the questions or "
                    "the settings have changed",
                    OUT_HINT,
                )
            if row["key"] == key:
                good.setdefault(at, row)
        self._rows = dict(sorted(good.items()))
        if list(self._rows.values()) != rows:
            _rewrite_file(path, self._rows.values())

    def _rewrite_file_before_unlocking(self, path: Path) -> None:
        """Sorts answers in the order of the questions, if the disk has space for a sorted copy."""
        if list(self._rows) != sorted(self._rows):
            with suppress(OSError):
                _rewrite_file(path, [row for _, row in sorted(self._rows.items())])

    def read_result_rows(self, path: Path) -> Iterator[dict[str, Any]]:
        """Yields the rows of an answers file. Raises UsageError: another program wrote the file."""
        refuse_other_first_field(path, "id")
        try:
            yield from read_json_lines(path)
        except DocumentError as error:
            raise UsageError(error.message, OUT_HINT) from error

    def has_row(self, question_index: int) -> bool:
        return question_index in self._rows

    def add_row(self, question_index: int, row: dict[str, Any]) -> None:
        """Appends the answer to a question without a row. Raises ResourceError, DocumentError."""
        self.append(row)
        self._rows[question_index] = row


def _make_question_key(row_key: str, row_id: Any) -> tuple[str, str]:
    return row_key.partition(".")[0], json.dumps(row_id, sort_keys=True)


def _rewrite_file(path: Path, rows: Iterable[Row]) -> None:
    with replace_atomically(path, durable=True) as part, part.open("wb", buffering=0) as file:
        for row in rows:
            _write_row(file, row)


def _write_row(file: FileIO, row: Row) -> None:
    left = f"{json.dumps(row, ensure_ascii=False)}\n".encode("utf-8", "backslashreplace")
    while left:
        left = left[file.write(left) :]


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects of a file, without an unfinished last line; a missing file yields
    none. Raises DocumentError: the file cannot be read, or another line is not a JSON object."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise DocumentError(f"{path} cannot be read: {error.strerror or error}") from error
    with file:
        for number, line in enumerate(file, 1):
            row = _parse_json_line(line) if line.strip() else {}
            if row is None and not line.endswith(b"\n") and line.startswith(b"{"):
                return
            if not isinstance(row, dict):
                hint = f"correct or delete line {number} of {path}"
                raise DocumentError(f"{path}, line {number} is not a JSON object", hint)
            if row:
                yield row


def _parse_json_line(json_line: bytes) -> Any:
    try:
        return json.loads(json_line.decode("utf-8"))
    except (ValueError, RecursionError):  # a cut inside a character is a ValueError, too
        return None


def refuse_other_first_field(path: Path, field_name: str) -> None:
    """Raises UsageError if the first field of a file's first row is not called `field_name`. A
    missing file and an unfinished first row are allowed."""
    begin = f"{{{json.dumps(field_name)}: ".encode()
    if path.exists():
        with path.open("rb") as file:
            if not begin.startswith(file.read(len(begin))):
                raise _make_foreign_file_error(path)


def _make_foreign_file_error(path: Path) -> UsageError:
    return UsageError(f"{path} is not a results file that esa wrote", "choose another --out")


def _complete_or_remove_last_line(path: Path) -> None:
    """Adds a missing line break after a file's last JSON object, or removes a cut last line."""
    if not path.exists():
        return
    size, last = 0, b"\n"
    with path.open("r+b") as file:
        for last in file:
            size += len(last)
        if isinstance(_parse_json_line(last), dict):
            file.write(b"" if last.endswith(b"\n") else b"\n")
        elif not last.endswith(b"\n"):
            file.truncate(size - len(last))


def _list_changed_settings(old_value: Any, new_value: Any, name: str) -> Iterator[str]:
    """Yields a text such as `window.selected 256 -> 32` for each setting whose value changed."""
    if isinstance(old_value, dict) and isinstance(new_value, dict):
        for key in dict.fromkeys([*old_value, *new_value]):
            values = old_value.get(key), new_value.get(key)
            yield from _list_changed_settings(*values, f"{name}.{key}")
    elif old_value != new_value:
        texts = [json.dumps(value, ensure_ascii=False)[:60] for value in (old_value, new_value)]
        yield f"{name} {texts[0]} -> {texts[1]}"

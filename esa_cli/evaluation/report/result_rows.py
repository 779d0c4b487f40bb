"""Reads the rows of `esa selftest`: a JSON-lines file with one header and one row a question.

A run that was stopped may leave a last line that was only half written. It is left out, and `cut`
says so; anything else that does not hold is refused by file and line. It does not know what the
figures mean, only which of them must be there and in which range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from esa_cli.errors import DocumentError
from esa_cli.evaluation.metrics import is_share

Row = Mapping[str, Any]
"""One question: `test`, `method`, `length`, `question`, `score` and what else the run wrote."""

REQUIRED: dict[str, type] = {"test": str, "method": str, "length": int, "question": str}
SAME = ("model", "preset", "context", "settings")
"""What two headers in one file have to agree in, for their rows to be compared."""


@dataclass(frozen=True)
class RunResults:
    """What one file holds.

    `header` is empty when the file has none. `cut` is True when a half-written last line was left
    out.
    """

    header: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    cut: bool = False


def read(path: str | Path) -> RunResults:
    """The header and the rows of a file of `esa selftest`.

    Raises:
        DocumentError: the file cannot be read, or a line is not what it should be.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}", "check the path") from error
    *lines, last = data.split(b"\n")
    cut = bool(last.strip()) and not _parses(last)
    header: Mapping[str, Any] = {}
    rows: list[Row] = []
    for number, line in enumerate(lines if cut else [*lines, last], 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        found = _object(line, where)
        if "command" in found and "test" not in found:
            header = _header(header, found, where)
        else:
            _check(found, where)
            rows.append(found)
    return RunResults(header, tuple(rows), cut)


def _parses(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DocumentError(
            f"{where} is not JSON: {error}",
            "a row may have been written behind a half-written one; delete that line",
        ) from error
    if not isinstance(found, dict):
        raise DocumentError(f"{where} is not a JSON object", "is this a file of `esa selftest`?")
    return found


def _header(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The first header; a later one may only repeat it, as a run that was taken up again does."""
    for key in SAME if old else ():
        if old.get(key) != new.get(key):
            raise DocumentError(
                f"{where} begins another run: its {key} is not that of the first header",
                "keep each run in a file of its own",
            )
    return old or new


def _check(row: Row, where: str) -> None:
    if what := wrong(row):
        raise DocumentError(f"{where}: {what}", "is this a file of `esa selftest`?")


def wrong(row: Row) -> str:
    """What is wrong with a row of `esa selftest`, in words; empty when nothing is."""
    for key, kind in REQUIRED.items():
        if key not in row:
            return f"it has no {key!r}"
        if not isinstance(row[key], kind) or isinstance(row[key], bool):
            return f"{key!r} is {row[key]!r}, not {_KINDS[kind]}"
    if not is_share(row.get("score")):
        return f"'score' is {row.get('score')!r}, not a number from 0 to 1"
    if row.get("depth") is not None and not is_share(row["depth"]):
        return f"'depth' is {row['depth']!r}, not null or a number from 0 to 1"
    for key in ("tokens", "time", "recall"):
        if not isinstance(row.get(key) or {}, dict):
            return f"{key!r} is {row[key]!r}, not null or an object"
    if not isinstance(row.get("why") or "", str):
        return f"'why' is {row['why']!r}, not null or a text"
    if not all(value is None or _number(value) for value in (row.get("time") or {}).values()):
        return "'time' holds something that is not a number"
    recall = row.get("recall") or {}
    layers = recall.get("layers") or []
    if not isinstance(layers, list):
        return "the layers of 'recall' are not a list"
    if not all(value is None or is_share(value) for value in [recall.get("mean"), *layers]):
        return "'recall' holds something that is not a number from 0 to 1"
    return ""


_KINDS: dict[type, str] = {str: "a text", int: "a whole number"}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

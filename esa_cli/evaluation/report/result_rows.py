"""Reads the rows of `esa selftest`: a JSON-lines file with one header and one row a question.

A stopped run may leave a half-written last line. It is left out, and `cut` is set; any other
invalid line is an error that names file and line.
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
"""Fields in which all headers of a file must agree, since their rows are compared."""


@dataclass(frozen=True)
class RunResults:
    """The contents of a file; without a header in it, `header` is empty.

    `cut` is True when a half-written last line was left out.
    """

    header: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    cut: bool = False


def read(path: str | Path) -> RunResults:
    """The header and the rows of a file of `esa selftest`.

    Raises:
        DocumentError: the file cannot be read, or a line is invalid.
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
    """The first header; a later one, of a resumed run, must agree with it."""
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
    """Says what is wrong with a row of `esa selftest`; empty for a valid one."""
    for key, kind in REQUIRED.items():
        if key not in row:
            return f"{key!r} is missing"
        if not isinstance(row[key], kind) or isinstance(row[key], bool):
            return f"{key!r} must be {_KINDS[kind]}, got {row[key]!r}"
    if not is_share(row.get("score")):
        return f"'score' must be a number from 0 to 1, got {row.get('score')!r}"
    if row.get("depth") is not None and not is_share(row["depth"]):
        return f"'depth' must be null or a number from 0 to 1, got {row['depth']!r}"
    for key in ("tokens", "time", "recall"):
        if not isinstance(row.get(key) or {}, dict):
            return f"{key!r} must be null or an object, got {row[key]!r}"
    if not isinstance(row.get("why") or "", str):
        return f"'why' must be null or a text, got {row['why']!r}"
    if not all(value is None or _number(value) for value in (row.get("time") or {}).values()):
        return "'time' must hold numbers"
    recall = row.get("recall") or {}
    layers = recall.get("layers") or []
    if not isinstance(layers, list):
        return "the layers of 'recall' must be a list"
    if not all(value is None or is_share(value) for value in [recall.get("mean"), *layers]):
        return "'recall' must hold numbers from 0 to 1"
    return ""


_KINDS: dict[type, str] = {str: "a text", int: "a whole number"}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Rows of `esa selftest`: one question each, and the check of a row that an earlier run wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]
"""One question: `test`, `method`, `length`, `question`, `score` and what else the run wrote."""

REQUIRED: dict[str, type] = {"test": str, "method": str, "length": int, "question": str}


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


def is_share(value: Any) -> bool:
    """True if a row's value is a number from 0 to 1, as scores are; NaN and True are none."""
    return _number(value) and 0 <= value <= 1

"""JSON of other programs: no duplicate keys, and only numbers that JSON has."""

from __future__ import annotations

import json
import math
from typing import Any


def load_json(text: str) -> Any:
    """The JSON's value. Raises ValueError: it is malformed, a key is given twice, or a number is
    not finite. RecursionError: it is nested too deep."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refused, parse_float=_finite)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{json.dumps(key)} is given twice")
        found[key] = value
    return found


def _refused(word: str) -> Any:
    raise ValueError(f"a number must be finite, got {word}")


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refused(digits)

"""Digests of texts, texts that are no Unicode, and strict JSON."""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def text_bytes(text: str) -> bytes:
    """UTF-8, with lone surrogates encoded as three bytes each."""
    return text.encode("utf-8", "surrogatepass")


def text_digest(text: str) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(text_bytes(text)).hexdigest()


def has_lone_surrogate(text: str) -> bool:
    """True if it has U+D800-U+DFFF, which no tokenizer accepts: they enter through command-line
    arguments that are not UTF-8 or through JSON escapes."""
    return _SURROGATE.search(text) is not None


def without_lone_surrogates(value: Any) -> Any:
    """The same text, or object of JSON, with U+FFFD in place of each: UTF-8 has none."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {name: without_lone_surrogates(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_lone_surrogates(one) for one in value]
    return value


def load_json(text: str) -> Any:
    """The JSON's value. Raises ValueError: it is malformed, a key is given twice, or a number is
    not finite. RecursionError: it is nested too deep."""
    return json.loads(text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{json.dumps(key)} is given twice")
        values[key] = value
    return values


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"a number must be finite, got {digits}")
    return value

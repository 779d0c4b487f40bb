"""SHA-256 of a text."""

from __future__ import annotations

import hashlib


def text_bytes(text: str) -> bytes:
    """UTF-8, with lone surrogates encoded as three bytes each."""
    return text.encode("utf-8", "surrogatepass")


def text_digest(text: str) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(text_bytes(text)).hexdigest()

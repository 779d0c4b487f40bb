"""Digests of texts, and texts that are no Unicode."""

from __future__ import annotations

import hashlib


def text_bytes(text: str) -> bytes:
    """UTF-8, with lone surrogates encoded as three bytes each."""
    return text.encode("utf-8", "surrogatepass")


def text_digest(text: str) -> str:
    """64 hexadecimal digits."""
    return hashlib.sha256(text_bytes(text)).hexdigest()


def has_lone_surrogate(text: str) -> bool:
    """True if it has U+D800-U+DFFF, which no tokenizer accepts: they enter through command-line
    arguments that are not UTF-8 or through JSON escapes."""
    return any("\ud800" <= character <= "\udfff" for character in text)

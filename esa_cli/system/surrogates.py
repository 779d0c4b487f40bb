"""Detects lone surrogates (U+D800-U+DFFF).

They enter through command-line arguments that are not UTF-8 or through JSON escapes, and no
tokenizer accepts them.
"""

from __future__ import annotations


def has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)

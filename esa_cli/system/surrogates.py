"""Texts that are none: what is not UTF-8 comes from a terminal or a JSON file as half a letter."""

from __future__ import annotations


def has_halves(text: str) -> bool:
    """Whether a text has half of a surrogate pair in it, which no tokenizer takes."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)

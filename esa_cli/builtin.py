"""Registers the built-in methods, through the same door as any plugin."""

from esa_cli import (
    compressors,
    consensus,
    encodings,
    learned,
    methods,
    positions,
    scores,
    selectors,
)

__all__ = [
    "compressors",
    "consensus",
    "encodings",
    "learned",
    "methods",
    "positions",
    "scores",
    "selectors",
]

"""Registers the built-in methods, through the same door as any plugin."""

from . import compressors, consensus, encodings, learned, methods, positions, scores, selectors

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

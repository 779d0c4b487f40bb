"""Registers the built-in methods, through the same door as any plugin."""

from . import compressors, positions, scores, selectors

__all__ = ["compressors", "positions", "scores", "selectors"]

"""Registers the built-in methods, through the same door as any plugin."""

from . import compressors, consensus, positions, scores, selectors

__all__ = ["compressors", "consensus", "positions", "scores", "selectors"]

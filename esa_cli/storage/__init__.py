"""Stores keys and values of documents: in memory, concatenated, and on disk (`library`).

`CACHES` are the places for them that --cache, and `cache` in Python, choose from.
"""

from __future__ import annotations

from esa_cli.errors import UsageError

CACHES = ("auto", "device", "host", "disk")


def check_cache(cache: str) -> None:
    """Raises UsageError for a name that is none of `CACHES`."""
    if cache not in CACHES:
        raise UsageError(f"cache must be one of {', '.join(CACHES)}, got '{cache}'")


def check_in_memory(cache: str) -> None:
    """Raises UsageError for the disk, where nothing stores rows."""
    if cache == "disk":
        message = "cache disk is for documents that are stored in the library"
        raise UsageError(message, "use cache auto or host here")

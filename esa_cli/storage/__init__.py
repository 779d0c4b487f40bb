"""Stores keys and values of documents: in memory, concatenated, and on disk (`library`).

Keys are unrotated, so rows have no position and documents can be cropped, kept and concatenated.
`CACHES` are the places for them that --cache, and `cache` in Python, choose from.
"""

from __future__ import annotations

from esa_cli.errors import UsageError

CACHES = ("auto", "device", "host", "disk")


def check_cache(cache: str) -> None:
    """Raises UsageError for a name that is not one of `CACHES`."""
    if cache not in CACHES:
        raise UsageError(f"cache must be one of {', '.join(CACHES)}, got '{cache}'")


def check_in_memory(cache: str) -> None:
    """Raises UsageError where rows are to be on disk, and nothing stores them."""
    if cache == "disk":
        raise UsageError(
            "cache disk is for documents that are stored in the library",
            "use cache auto or host here",
        )

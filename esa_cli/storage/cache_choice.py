"""The choice of where keys and values are kept: --cache, and `cache` in Python."""

from __future__ import annotations

from esa_cli.errors import UsageError

CACHES = ("auto", "device", "host", "disk")


def check_cache(cache: str) -> None:
    """Raises UsageError for what is none of `CACHES`."""
    if cache not in CACHES:
        raise UsageError(f"cache must be one of {', '.join(CACHES)}, got '{cache}'")


def check_in_memory(cache: str) -> None:
    """Raises UsageError where rows are to be on disk, and nothing stores them."""
    if cache == "disk":
        raise UsageError(
            "cache disk is for documents that are stored in the library",
            "use cache auto or host here",
        )

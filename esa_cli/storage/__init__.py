"""Keeps the KV caches of documents in memory, and stores documents on disk in a library."""

from __future__ import annotations

from esa_cli.errors import UsageError

CACHES = ("auto", "device", "host", "disk")
"""The places for a KV cache from which the option --cache chooses."""


def refuse_unknown_cache_name(cache: str) -> None:
    """Raises UsageError if `cache` is no value of the option --cache."""
    if cache not in CACHES:
        raise UsageError(f"cache must be one of {', '.join(CACHES)}, got '{cache}'")


def refuse_disk_cache_outside_library(cache: str) -> None:
    """Raises UsageError if `cache` is "disk" for a document that is not stored in the library."""
    if cache == "disk":
        message = "only documents that are stored in the library can have their KV cache on disk"
        raise UsageError(message, "use --cache auto or --cache host for unstored documents")

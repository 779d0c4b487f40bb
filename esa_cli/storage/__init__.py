"""Keeps the KV caches of documents in memory, and stores documents on disk in a library."""

from __future__ import annotations

from esa_cli.errors import UsageError

CACHES = ("auto", "device", "host", "disk")
"""The places for a KV cache from which the option --cache chooses."""


def refuse_unknown_cache_name(cache_name: str) -> None:
    if cache_name not in CACHES:
        raise UsageError(f"cache must be one of {', '.join(CACHES)}, got '{cache_name}'")


def refuse_disk_cache_outside_library(cache_name: str) -> None:
    if cache_name == "disk":
        message = "only documents that are stored in the library can have their KV cache on disk"
        raise UsageError(message, "use --cache auto or --cache host for unstored documents")

"""Waiting for changes below a folder: notices of the system by watchfiles, else looking again."""

from __future__ import annotations

import time
from collections.abc import Iterator

POLL_S = 5.0
"""Seconds between looks where watchfiles is not installed."""
RESCAN_S = 60.0
"""Seconds after which one looks again without a notice: network disks send none."""


def folder_changes(folder: str) -> Iterator[None]:
    """Yields whenever something below the folder may have changed, without an end."""
    try:
        from watchfiles import watch
    except ImportError:
        while True:
            time.sleep(POLL_S)
            yield
    for _ in watch(
        folder, watch_filter=None, yield_on_timeout=True, rust_timeout=int(RESCAN_S * 1000)
    ):
        yield

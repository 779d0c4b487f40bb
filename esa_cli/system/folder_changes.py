"""Waiting for changes below a folder: notices of the system by watchfiles; where there are none,
looking again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

POLL_S = 5.0
"""Seconds between looks where watchfiles is not installed, or the system gives no more notices."""
RESCAN_S = 60.0
"""Seconds after which one looks again without a notice: network disks send none."""


def folder_changes(*folders: str, poll: bool = False) -> Iterator[None]:
    """Yields whenever something below the folders may have changed, without an end.

    Args:
        poll: looks every `POLL_S`, whatever the system's notices say.
    """
    try:
        from watchfiles import watch
    except ImportError:
        folders = ()
    wait_ms = int((POLL_S if poll else RESCAN_S) * 1000)
    if folders:
        # RuntimeError is the library's. The system gives notices of so many folders, and no more.
        with suppress(OSError, RuntimeError):
            for _ in watch(
                *folders, watch_filter=None, yield_on_timeout=True, rust_timeout=wait_ms
            ):
                yield
    while True:
        time.sleep(POLL_S)
        yield

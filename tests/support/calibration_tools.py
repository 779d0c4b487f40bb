"""What tests of calibration share: a selecting method, an interruption, and a full disk."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from esa_cli.attention.method import Method
from esa_cli.attention.positions import FixedDistancePositions
from esa_cli.attention.selection import LogitSum
from esa_cli.attention.window import Window


def selective(rotate: bool = False) -> Method:
    """A method that selects from early on, with chunks that do not divide a feed."""
    return Method(
        window=Window(initial=2, selected=6, local=8, chunk=10),
        score=LogitSum(rotate=rotate),
        position=FixedDistancePositions(64),
    )


@contextmanager
def small_files(most: int) -> Iterator[None]:
    """No file may have more bytes: as a disk that is full, of which nothing else notices."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

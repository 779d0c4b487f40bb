"""Files that a calibration leaves: whole or not there; what hinders that is said in words.

It does not know what is in the files.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from esa_cli.system import files as disk


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Turns what is said about writing at `path` into what a person can act on.

    Args:
        option: of the command line, that names another place.

    Raises:
        ResourceError: no room. DocumentError: anything else.
    """
    room = f"free some space, or name a place on another disk with {option}"
    other = f"name a place that you may write to with {option}"
    with disk.writing(path, room, other, also=SafetensorError):
        yield


@contextmanager
def whole(path: Path, unfinished: Path, option: str) -> Iterator[Path]:
    """Yields `unfinished` to be written, which then becomes `path`; of a failure nothing is left.

    Raises:
        ResourceError, DocumentError: as `writing`.
    """
    try:
        with writing(path, option):
            yield unfinished
            os.replace(unfinished, path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)

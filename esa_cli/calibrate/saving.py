"""Files that a calibration leaves: whole or not there; what hinders that is said in words.

Safetensors tells what the system said only as a text with its number, so that is where it is from.
It does not know what is in the files.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ..errors import DocumentError, ResourceError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NUMBER = re.compile(r"\(os error (\d+)\)")


@contextmanager
def writing(path: Path, option: str) -> Iterator[None]:
    """Turns what is said about writing at `path` into what a person can act on.

    Args:
        option: of the command line, that names another place.

    Raises:
        ResourceError: no room. DocumentError: anything else.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _number(error)
        message = f"{path} cannot be written: {os.strerror(number) if number else error}"
        if number in NO_ROOM:
            hint = f"free some space, or name a place on another disk with {option}"
            raise ResourceError(message, hint) from error
        hint = f"name a place that you may write to with {option}"
        raise DocumentError(message, hint) from error


def _number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found[1]) if found else None


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

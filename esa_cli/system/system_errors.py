"""Errors of the operating system that a person can act on, as errors of `esa`."""

from __future__ import annotations

import errno

from esa_cli.errors import DocumentError, EsaError, ResourceError
from esa_cli.system.files import NO_ROOM
from esa_cli.system.machine import memory_ran_out

UNWRITABLE = (*NO_ROOM, errno.EIO, errno.EBADF)
"""errno of an output that takes no more: besides a full disk, a stream opened for reading."""


def as_esa_error(error: Exception) -> EsaError | None:
    """The error that a person can act on; None for any other."""
    if isinstance(error, EsaError):
        return error
    return _out_of_memory(error) or _no_room(error) or _no_folder(error) or _not_allowed(error)


def _no_folder(error: Exception) -> ResourceError | None:
    """Python finds no folder for temporary files: every disk is full, or may not be written."""
    if not isinstance(error, FileNotFoundError) or "temporary directory" not in str(error):
        return None
    return ResourceError(
        "no folder for temporary files can be written",
        "free some space, or set TMPDIR to a folder with some",
    )


def _not_allowed(error: Exception) -> DocumentError | None:
    """A path that was only looked for, and that the system does not let this user see."""
    if not isinstance(error, PermissionError) or not error.filename:
        return None
    return DocumentError(
        f"{error.filename} may not be used: {error.strerror}",
        "check who may read there, and the folders above",
    )


def _out_of_memory(error: Exception) -> ResourceError | None:
    if not memory_ran_out(error):
        return None
    return ResourceError(
        "the memory ran out",
        "`esa plan` shows what takes it; try --dtype bfloat16, a smaller model or fewer documents",
    )


def _no_room(error: Exception) -> ResourceError | None:
    """Answers and tables that cannot be written; files that can be named say so themselves."""
    if not isinstance(error, OSError) or error.errno not in UNWRITABLE:
        return None
    what = error.filename or "the output"
    return ResourceError(
        f"{what} cannot be written: {error.strerror}",
        "send it to another place, or free some space",
    )

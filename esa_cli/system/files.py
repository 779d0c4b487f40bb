"""Atomic file writing, a lock for one writer, and the system's errors with a hint."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from esa_cli.errors import DocumentError, EsaError, ResourceError, UsageError
from esa_cli.system.machine import memory_ran_out

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""errno of a full disk, of an exceeded quota, and of a limit on a file's length."""
SETTLED_NS = 2_000_000_000
"""A file that changed within so many nanoseconds before it was read may change again with the same
time stamp."""
POLL_S = 5.0


def real_path(path: Path | str) -> str:
    """Returns the absolute path with its links resolved, where the system gives them out."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.path.abspath(path)


def resolved_path(path: Path | str) -> str:
    """Returns the absolute path; links of its folders are resolved, not one that it is itself."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(real_path(folder), name)


def file_stamp(path: Path | str) -> str:
    """Returns a text that differs where a file has changed; empty if the file changed a moment ago.
    Raises OSError."""
    facts = os.stat(path)
    changed = max(facts.st_mtime_ns, facts.st_ctime_ns)
    if changed > time.time_ns() - SETTLED_NS:
        return ""
    return f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"


def _errno(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))  # as safetensors gives it
    return int(match[1]) if match else None


def lacks_room(error: Exception) -> bool:
    """Whether writing failed for lack of disk space."""
    return _errno(error) in NO_ROOM


@contextmanager
def writing_errors(
    target: Path | str,
    room: str,
    other: str,
    *,
    also: type[Exception] = OSError,
    no_room: type[EsaError] = ResourceError,
    failed: type[EsaError] = DocumentError,
) -> Iterator[None]:
    """Turns an OSError, or `also`, of writing `target` into `no_room` with the hint `room`, or
    `failed` with the hint `other`. `target` is a file; or words for many files, and then the
    message names the one that failed."""
    try:
        yield
    except BrokenPipeError:  # a callback wrote to a closed pipe
        raise
    except (OSError, also) as error:
        number = _errno(error)
        reason = getattr(error, "strerror", None) or (os.strerror(number) if number else error)
        message = f"{target} cannot be written: {reason}"
        if isinstance(target, str):
            file = getattr(error, "filename", None)
            message = f"{target} cannot be changed: {reason}" + (f" ({file})" if file else "")
        if lacks_room(error):
            raise no_room(message, room) from error
        raise failed(message, other) from error


@contextmanager
def replacing(path: Path, part: Path | None = None, *, durable: bool = False) -> Iterator[Path]:
    """Yields a temporary path; what the block makes there becomes `path` when the block ends well.
    If it fails, `path` is as before and nothing is left. Raises OSError.

    Args:
        path: a file, or a folder that does not exist.
        part: the temporary path; by default beside `path`, with its suffix.
        durable: flush the file to disk first, so that a power cut leaves one or the other.
    """
    part = part or path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield part
        if durable:
            with part.open("r+b") as file:
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        with suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)


def write_atomically(path: Path, content: str) -> None:
    """Writes a text file atomically and durably. Raises OSError."""
    with replacing(path, durable=True) as part:
        part.write_text(content, "utf-8")


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Locks a file against other processes (PATH.lock). Raises UsageError: another writes it."""
    from filelock import FileLock, Timeout

    lock = FileLock(f"{path.resolve()}.lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        message = f"another esa is writing {path}"
        raise UsageError(message, "wait for it, or choose another --out") from error
    except OSError:
        pass  # a disk without locks, or a folder to write nothing new in: rows can still be kept
    try:
        yield
    finally:
        if lock.is_locked:
            if sys.platform != "win32":  # there an open file cannot be removed
                with suppress(OSError):
                    Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def poll_changes() -> Iterator[None]:
    """Yields every `POLL_S` seconds, without an end: something in a folder may have changed."""
    while True:
        time.sleep(POLL_S)
        yield


def as_esa_error(error: Exception) -> EsaError | None:
    """Returns the error that a person can act on; None for any other."""
    if isinstance(error, EsaError):
        return error
    if memory_ran_out(error):
        smaller = "try --dtype bfloat16, a smaller model or fewer documents"
        return ResourceError("the memory ran out", f"`esa plan` shows what takes it; {smaller}")
    if not isinstance(error, OSError):
        return None
    # EBADF: a stream opened for reading.
    takes_no_more = error.errno in (*NO_ROOM, errno.EIO, errno.EBADF)
    if takes_no_more or "temporary directory" in str(error):
        message = f"{error.filename or 'the output'} cannot be written: {error.strerror or error}"
        return ResourceError(message, "free some space, or set another place: --out, or TMPDIR")
    if isinstance(error, PermissionError) and error.filename:  # a path that was only looked for
        message = f"{error.filename} may not be used: {error.strerror}"
        return DocumentError(message, "check who may read there, and the folders above")
    return None

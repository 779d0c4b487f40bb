"""Writes files atomically, locks files for one writer, and explains operating system errors."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from esa_cli.errors import DocumentError, EsaError, ResourceError, UsageError
from esa_cli.system.machine import is_out_of_memory_error

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a full disk, of an exceeded quota, and of an exceeded file size limit."""
SETTLED_NS = 2_000_000_000
"""Nanoseconds within which a changed file may change again with the same time stamp."""

TEXT_VERSION = 2
"""Is raised when readers of documents extract another text from the same files, so that files in a
library are read again; 1 is of version 0.2.0, whose stamps do not have it."""

LIBRARY_MARKER = "esa-library"
"""The name of a file by which a folder is known as a library."""


def resolve_links(path: Path | str) -> str:
    """Returns the absolute path without symbolic links, as far as the system can resolve links."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.path.abspath(path)


def resolve_folder_links(
    path: Path | str, resolve_folder: Callable[[str], str] = resolve_links
) -> str:
    """Returns the absolute path, with symbolic links of its folders resolved, not of the file."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(resolve_folder(folder), name)


def compute_file_stamp(path: Path | str) -> str:
    """Returns a text that changes whenever the file or `TEXT_VERSION` changes, or an empty text if
    the file changed less than two seconds ago, as it may change again unnoticed. Raises OSError."""
    status = os.stat(path)
    changed = max(status.st_mtime_ns, status.st_ctime_ns)
    if changed > time.time_ns() - SETTLED_NS:
        return ""
    times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
    return f"{TEXT_VERSION} {status.st_size} {times} {status.st_ino}"


def _get_os_error_number(error: Exception) -> int | None:
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))  # as safetensors gives it
    return int(match[1]) if match else None


def is_disk_full(error: Exception) -> bool:
    """Returns True if `error` says that the disk is full, or a quota or size limit exceeded."""
    return _get_os_error_number(error) in NO_ROOM


@contextmanager
def convert_writing_errors(
    target: Path | str, full_disk_hint: str, other_hint: str, *,
    also_caught: type[Exception] = OSError, full_disk_error: type[EsaError] = ResourceError,
    other_error: type[EsaError] = DocumentError,
) -> Iterator[None]:  # fmt: skip
    """A context that converts an OSError or `also_caught`, raised while `target` is written, to an
    EsaError, with one error class and hint for a full disk and another for all other reasons. If
    `target` is a `str`, which describes many files, the message names the file that failed."""
    try:
        yield
    except BrokenPipeError:  # a callback wrote to a closed pipe
        raise
    except (OSError, also_caught) as error:
        number = _get_os_error_number(error)
        reason = getattr(error, "strerror", None) or (os.strerror(number) if number else error)
        message = f"{target} cannot be written: {reason}"
        if isinstance(target, str):
            file = getattr(error, "filename", None)
            message = f"{target} cannot be changed: {reason}" + (f" ({file})" if file else "")
        if is_disk_full(error):
            raise full_disk_error(message, full_disk_hint) from error
        raise other_error(message, other_hint) from error


@contextmanager
def replace_atomically(
    path: Path, temp_path: Path | None = None, *, durable: bool = False
) -> Iterator[Path]:
    """Yields a temporary path, and renames the temporary file to `path`, a file or a new folder,
    when the block ends without an error; else `path` is unchanged and the temporary file is
    removed. By default `temp_path` is next to `path` and has the same suffix. A `durable` file is
    the old or the new one even after a power failure. Raises OSError."""
    temp_path = temp_path or path.with_name(f".{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield temp_path
        if durable:
            with temp_path.open("r+b") as file:
                os.fsync(file.fileno())
        os.replace(temp_path, path)
    finally:
        with suppress(OSError):
            shutil.rmtree(temp_path) if temp_path.is_dir() else temp_path.unlink(missing_ok=True)


def write_text_atomically(path: Path, content: str) -> None:
    """Writes a text file atomically and durably. Raises OSError."""
    with replace_atomically(path, durable=True) as part:
        part.write_text(content, "utf-8")


@contextmanager
def lock_file_for_writing(path: Path) -> Iterator[None]:
    """A context that locks `path` by the file `path`.lock. Raises UsageError: another has it."""
    from filelock import FileLock, Timeout

    lock = FileLock(f"{path.resolve()}.lock", timeout=0, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout as error:
        message = f"another esa process is writing {path}"
        hint = "wait until that process ends, or choose another --out"
        raise UsageError(message, hint) from error
    except OSError:
        pass  # a disk without locks, or a folder without write permission: rows can still be read
    try:
        yield
    finally:
        if lock.is_locked:
            if sys.platform != "win32":  # there an open file cannot be removed
                with suppress(OSError):
                    Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def convert_to_esa_error(error: Exception) -> EsaError | None:
    """Converts an error that a user can act on to an `EsaError`; returns None for other errors."""
    if isinstance(error, EsaError):
        return error
    if is_out_of_memory_error(error):
        smaller = "or try --dtype bfloat16, a smaller model or fewer documents"
        hint = f"run `esa plan` to see what needs memory, {smaller}"
        return ResourceError("the memory ran out", hint)
    if not isinstance(error, OSError):
        return None
    # EBADF means that the stream was opened for reading.
    takes_no_more = error.errno in (*NO_ROOM, errno.EIO, errno.EBADF)
    if takes_no_more or "temporary directory" in str(error):
        message = f"{error.filename or 'the output'} cannot be written: {error.strerror or error}"
        hint = "free some disk space, or choose another folder with --out or TMPDIR"
        return ResourceError(message, hint)
    if isinstance(error, PermissionError) and error.filename:  # a path that was only looked for
        message = f"{error.filename} cannot be accessed: {error.strerror}"
        hint = f"check the permissions of {error.filename} and its parent folders"
        return DocumentError(message, hint)
    return None

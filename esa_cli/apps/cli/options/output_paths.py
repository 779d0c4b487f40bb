"""Output paths are checked before a long run: the folder exists and is writable, and the file is
neither an input nor another output. Also what commands write about themselves."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import combinations
from pathlib import Path

from esa_cli.errors import DocumentError, UsageError
from esa_cli.system.files import write_atomically, writing_errors
from esa_cli.version import __version__

OTHER = "name a file in a folder you may write to"


def check(option: str, path: Path | None, *, makes_folders: bool = False) -> None:
    """Refuses a path that cannot be written to; None is no path.

    Args:
        makes_folders: folders above the path are made later: it lies in one that the option names.

    Raises:
        UsageError: it is a folder, or there is no folder for it. DocumentError: it is not allowed.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} must be a file, got the folder {path}", "name a file in it")
    folder = path.absolute().parent
    while makes_folders and not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", "make it first")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise DocumentError(f"{option} {path} cannot be written", OTHER)


def spare(
    option: str, path: Path | None, sources: Iterable[str], what: str = "one of the documents"
) -> None:
    """Refuses a path that is one of the sources, which would be lost. Raises UsageError."""
    if path is None or not path.exists():
        return
    if any(os.path.exists(source) and os.path.samefile(path, source) for source in sources):
        raise UsageError(f"{option} must not be {what}, got {path}", "name another file")


def apart(options: Mapping[str, Path | None]) -> None:
    """Refuses two options that name one file: what is written first would be lost. What is no
    file, such as /dev/null, loses nothing. Raises UsageError."""
    paths = [
        (option, path)
        for option, path in options.items()
        if path is not None and (path.is_file() or not path.exists())
    ]
    for (first, one), (second, other) in combinations(paths, 2):
        both_exist = one.exists() and other.exists()
        if one.resolve() == other.resolve() or (both_exist and one.samefile(other)):
            raise UsageError(
                f"{first} and {second} must be two files, got {other} twice", "name another file"
            )


def write(path: Path, text: str) -> None:
    """Puts `text` at `path`, whole or not at all where that can be done.

    Raises:
        ResourceError, DocumentError: as `writing`.
    """
    with writing(path):
        place = path.resolve()  # a link stays one
        if (place.is_file() or not place.exists()) and os.access(place.parent, os.W_OK):
            write_atomically(place, text)
        else:
            place.write_text(text, "utf-8")


def writing(path: Path) -> AbstractContextManager[None]:
    """As `writing_errors`, with the hints of a command's output files."""
    return writing_errors(path, "free some space, or name another place", OTHER)


def run_facts() -> dict[str, str]:
    """The version, command, date and machine that made a file of results."""
    return {
        "esa": __version__,
        "command": shlex.join(["esa", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }


def goes_on(out: Path | None) -> str:
    """How a command that was stopped is continued, for the end of a note."""
    return f"; the same command with --out {out} goes on" if out else ""

"""Paths, file names, marker and locks of a library. docs/library.md lists the files.

A file is written as `.NAME.OWNER.part` beside its place. Lock files are never removed: that would
let two processes in where one waits. Only files whose names have the forms below are listed,
counted and removed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import platformdirs

from esa_cli.errors import DiskError, LibraryError
from esa_cli.storage.library.checksummed_file import read_errors, write_errors
from esa_cli.system.machine import in_home, size_text

ROOT = "ESA_LIBRARY"
WAIT_S = 0.5
"""Seconds between calls of `waiting` while another process holds a lock."""
MARKER = "esa-library"
_MARKER_TEXT = (
    "This folder is a library of esa: documents that were read once.\n"
    "`esa library --help` says how to look after it. Do not put files of your own here.\n"
)
KINDS = ("doc", "text", "tokens", "states", "words", "used")
"""Files that a document may have for itself, the manifest first."""
_KEY, _FIT = "[0-9a-f]{40}", "[0-9a-f]{24}"
_NAMES = {
    "documents": rf"{_KEY}\.(?:{'|'.join(KINDS)})",
    "segments": rf"{_KEY}-(?:{_FIT}|none)\.seg",
    "fits": rf"{_FIT}\.fit",
    "claims": rf"{_KEY}\.claim",
    "folders": rf"{_KEY}\.folder",
}
FOLDERS = (*_NAMES, "locks")
_WHOLE = {folder: re.compile(name) for folder, name in _NAMES.items()}
_ANY = {folder: re.compile(rf"{name}|\.{name}\.{_KEY}\.part") for folder, name in _NAMES.items()}


def default_root() -> Path:
    """$ESA_LIBRARY if it is set and not empty, else `library` in the user's data folder for esa.
    Raises LibraryError: $ESA_LIBRARY is below the home folder of a user who does not exist."""
    chosen = os.environ.get(ROOT)
    if chosen:
        return in_home(chosen, ROOT, LibraryError)
    return Path(platformdirs.user_data_dir("esa")) / "library"


def is_manifest(name: str) -> bool:
    """Whether a file name in `documents` is that of a manifest."""
    return name.endswith(".doc") and _WHOLE["documents"].fullmatch(name) is not None


class LibraryPaths:
    """The paths below one library's root, and its locks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.documents, self.segments, self.fits, self.reservations, self.folders, self.locks = (
            root / name for name in FOLDERS
        )

    def check(self) -> None:
        """Refuses the user's own folders, so that a wrong ESA_LIBRARY loses nothing. Raises
        LibraryError: it is neither a library nor empty nor missing, or may not be read."""
        root, marker = self.root, self.root / MARKER
        with read_errors(root):
            # The marker is looked for again: another process may have made the library meanwhile.
            if marker.exists() or not root.exists() or not os.listdir(root) or marker.exists():
                return
        raise LibraryError(
            f"{root} is not a library of esa, and not empty",
            f"point {ROOT} to a folder of its own, as {root / 'library'}; it need not exist",
        )

    def make(self) -> None:
        """Makes the folders, for their owner alone: documents may be private. Raises LibraryError:
        they cannot be made, or as `check`."""
        self.check()
        with write_errors(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError), open(self.root / MARKER, "x", encoding="utf-8") as file:
                file.write(_MARKER_TEXT)
            for name in FOLDERS:
                (self.root / name).mkdir(mode=0o700, exist_ok=True)

    def document(self, key: str, kind: str = "doc") -> Path:
        return self.documents / f"{key}.{kind}"

    def of_document(self, key: str) -> list[Path]:
        """All files that belong to one document alone, the manifest first."""
        return [self.document(key, kind) for kind in KINDS]

    def segment(self, name: str) -> Path:
        return self.segments / f"{name}.seg"

    def fit(self, name: str) -> Path:
        return self.fits / f"{name}.fit"

    def reservation(self, key: str) -> Path:
        return self.reservations / f"{key}.claim"

    def is_whole(self, path: Path) -> bool:
        """Whether a finished file of this path is one that esa makes."""
        form = _WHOLE.get(path.parent.name)
        in_root = path.parent.parent == self.root
        return in_root and form is not None and form.fullmatch(path.name) is not None

    def files(self) -> Iterator[Path]:
        """Every file that esa made, unfinished ones included, locks and marker excluded."""
        for folder in _NAMES:
            yield from self._files(folder, _ANY[folder])

    def whole(self, folder: str) -> Iterator[Path]:
        """Every finished file that esa made in the folder."""
        return self._files(folder, _WHOLE[folder])

    def _files(self, folder: str, form: re.Pattern[str]) -> Iterator[Path]:
        if (self.root / folder).is_dir():
            with os.scandir(self.root / folder) as files:
                names = [one.name for one in files if form.fullmatch(one.name) and one.is_file()]
            for name in sorted(names):
                yield self.root / folder / name

    @contextmanager
    def locked(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lock of a document's key, or `library`.

        Args:
            waiting: called at once and then every half second while another process holds the
                lock. An exception it raises ends the waiting and propagates.

        Raises:
            LibraryError, ResourceError: the lock's file cannot be made, or the disk has no locks.
        """
        import filelock  # takes as long as the rest of the room's imports

        # Marker files in place of locks would stay after a kill.
        lock, wait_s = filelock.FileLock(self.locks / f"{name}.lock", fallback_to_soft=False), 0.0
        while not lock.is_locked:
            with write_errors(self.root), suppress(filelock.Timeout):
                lock.acquire(timeout=wait_s)
            if not lock.is_locked and waiting:
                waiting()
            wait_s = WAIT_S
        try:
            yield
        finally:
            lock.release()

    def is_locked(self, name: str) -> bool:
        """Whether some process, this one included, holds the lock now."""
        try:
            with self.locked(name, do_not_wait):
                return False
        except BlockingIOError:
            return True


def do_not_wait() -> None:
    """For `LibraryPaths.locked`, of a lock that is only wanted if it is free."""
    raise BlockingIOError("another process has the lock")


def size_of(path: Path) -> int:
    """A file's length; 0 if it does not exist any more."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def nearest_folder(root: Path) -> Path:
    """The folder, or the nearest above that exists."""
    folder = root.absolute()
    return next(one for one in (folder, *folder.parents) if one.exists())


def check_room(root: Path, nbytes: int) -> None:
    """Raises DiskError if the disk has less free space."""
    free = shutil.disk_usage(nearest_folder(root)).free
    if free < nbytes:
        raise DiskError(
            f"the document would take {size_text(nbytes)} in the library {root}, and the "
            f"disk has {size_text(free)} left",
            "free some space, `esa library prune`, or point ESA_LIBRARY to another disk",
        )

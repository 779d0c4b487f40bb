"""Paths, file names, marker and locks of a library.

    esa-library           the marker file: only a folder that has it, or an empty one, is a library
    catalogue-1.sqlite    records of files, and words; made again from the other files
    documents/KEY.doc     a document's manifest: written last, removed first; the document exists
                          while it does. Beside it KEY.text, KEY.tokens, KEY.used (a time stamp),
                          of a model whose layers keep states KEY.states and, of a token index,
                          KEY.words, which is made again where it is missing
    segments/NAME-FIT.seg rows of up to 4,096 tokens; documents with the same beginning share them
    fits/FIT.fit          the projections that the reduced keys of these segments were made with
    folders/NAME.folder   the records of a folder that `esa ingest --words` keeps in the library
    claims/KEY.claim      a reservation: the segments that an unfinished ingest needs
    locks/                one for ingesting each document, and `library.lock` for short changes

A file is written as `.NAME.OWNER.part` beside its place. Lock files are never removed: that would
let two processes in where one waits. Only files with names of these forms are listed, counted and
removed. KEY, the first part of a segment's NAME and a folder's NAME are 40 hexadecimal digits, FIT
is 24.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from esa_cli.errors import DiskError, LibraryError
from esa_cli.storage.library.checksummed_file import read_errors, write_errors
from esa_cli.system.machine import in_home, size_text

if TYPE_CHECKING:
    import filelock


ROOT = "ESA_LIBRARY"
WAIT_S = 0.5
"""Seconds between calls of `waiting` while another process holds a lock."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""errno values of file systems without locks."""
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
    """True if a file name in `documents` is that of a manifest."""
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
            if marker.exists():
                return
            place = next((one for one in (root, *root.parents) if one.exists()), root)
            if place.exists() and not place.is_dir():
                raise LibraryError(
                    f"the library must be in a folder, got {root}: {place} is a file",
                    f"point {ROOT} to a folder, as {place.with_name('library')}; it need not exist",
                )
            # The marker is looked for again: another process may have made the library meanwhile.
            if root.exists() and os.listdir(root) and not marker.exists():
                raise LibraryError(
                    f"{root} is not a library of esa, and not empty",
                    f"point ESA_LIBRARY to a folder of its own, as {root / 'library'}; "
                    "it need not exist",
                )

    def make(self) -> None:
        """Makes the folders, for their owner alone: documents may be private. Raises OSError: they
        cannot be made. LibraryError: as `check`."""
        self.check()
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

    def synced_folder(self, name: str) -> Path:
        return self.folders / f"{name}.folder"

    def reservation(self, key: str) -> Path:
        return self.reservations / f"{key}.claim"

    def is_whole(self, path: Path) -> bool:
        """True if a finished file of this path is one that esa makes."""
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
            LibraryError, ResourceError: the lock's file cannot be made.
        """
        lock, wait_s = self._lock(name), 0.0
        while not self._acquire(lock, wait_s):
            if waiting:
                waiting()
            wait_s = WAIT_S
        try:
            yield
        finally:
            lock.release()

    def is_locked(self, name: str) -> bool:
        """True if some process, this one included, holds the lock now."""
        lock = self._lock(name)
        if self._acquire(lock, 0.0):
            lock.release()
            return False
        return True

    def _lock(self, name: str) -> filelock.BaseFileLock:
        import filelock  # takes as long as the rest of the room's imports

        # Marker files in place of locks would stay after a kill.
        return filelock.FileLock(self.locks / f"{name}.lock", fallback_to_soft=False)

    def _acquire(self, lock: filelock.BaseFileLock, wait_s: float) -> bool:
        """Takes the lock if it is free, or becomes free within `wait_s`; whether it did."""
        import filelock

        with write_errors(self.root):
            try:
                lock.acquire(timeout=wait_s)
            except filelock.Timeout:  # a subclass of OSError
                return False
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
                raise LibraryError(
                    f"the disk of the library in {self.root} has no locks: {error.strerror}",
                    "point ESA_LIBRARY to another disk; what is here can be asked, not changed",
                ) from error
        return True


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

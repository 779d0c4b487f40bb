"""Where everything in a library is, and the locks on it.

    esa-library           the mark: this folder is a library; see `mark`
    documents/KEY.doc     a document's manifest: written last, removed first; where it is, there is
                          a document. Beside it KEY.text, KEY.tokens and KEY.used (a stamp)
    segments/NAME-FIT.seg rows of up to 4,096 tokens; documents with the same beginning share them
    fits/FIT.fit          the projections that the reduced keys of these segments were made with
    claims/KEY.claim      what an unfinished ingest needs, so that nobody sweeps it
    locks/                one a document for ingesting it, and `library.lock` for short changes

Files being written are `.NAME.OWNER.part` beside their place. Lock files stay: to remove one that
somebody waits for would let two in.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import platformdirs

from esa_cli.storage.library import mark
from esa_cli.storage.library.checksummed_file import LibraryError, on_disk
from esa_cli.storage.library.names import FOLDERS, KEPT, is_ours
from esa_cli.system.machine import in_home

ROOT = "ESA_LIBRARY"
WAIT_S = 0.5
"""Seconds after which who waits for a lock is asked whether to go on."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""How a disk answers that knows no locks."""


def default_root() -> Path:
    """$ESA_LIBRARY if it is set and not empty, else `library` in the user's data folder for esa.

    Raises:
        LibraryError: $ESA_LIBRARY is below the home folder of a user who does not exist.
    """
    chosen = os.environ.get(ROOT)
    if chosen:
        return in_home(chosen, ROOT, LibraryError)
    return Path(platformdirs.user_data_dir("esa")) / "library"


class LibraryPaths:
    """The paths below one library's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.documents, self.segments, self.fits, self.claims, self.locks = (
            root / name for name in FOLDERS
        )

    def make(self) -> None:
        """Makes the folders, for their owner alone: documents may be private.

        Raises:
            OSError: they cannot be made. LibraryError: the folder is somebody's own.
        """
        mark.check(self.root)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        mark.put(self.root)
        for name in FOLDERS:
            (self.root / name).mkdir(mode=0o700, exist_ok=True)

    def document(self, key: str, kind: str = "doc") -> Path:
        return self.documents / f"{key}.{kind}"

    def of_document(self, key: str) -> list[Path]:
        """All files that belong to one document alone, the manifest first."""
        return [self.document(key, kind) for kind in ("doc", "text", "tokens", "used")]

    def segment(self, name: str) -> Path:
        return self.segments / f"{name}.seg"

    def fit(self, name: str) -> Path:
        return self.fits / f"{name}.fit"

    def claim(self, key: str) -> Path:
        return self.claims / f"{key}.claim"

    def files(self, *folders: str) -> Iterator[Path]:
        """Every file of ours in these folders, parts of files included; without folders, in all
        but that of the locks. What others put there is not ours to count or to remove."""
        for name in folders or KEPT:
            folder = self.root / name
            if folder.is_dir():
                ours = (path for path in sorted(folder.iterdir()) if is_ours(path))
                yield from (path for path in ours if path.is_file())

    def whole(self, folder: str) -> Iterator[Path]:
        """Every finished file of ours in the folder."""
        return (path for path in self.files(folder) if path.suffix != ".part")

    @contextmanager
    def locked(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lock of a document's key, or `library`.

        Args:
            waiting: called every half second while somebody else has it, first at once. What it
                raises ends the waiting and passes through.

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

    def is_held(self, name: str) -> bool:
        """Whether somebody, this process included, holds the lock now."""
        lock = self._lock(name)
        if not self._acquire(lock):
            return True
        lock.release()
        return False

    def _lock(self, name: str) -> filelock.BaseFileLock:
        # Never marker files in place of locks: who is killed would leave one for good.
        return filelock.FileLock(self.locks / f"{name}.lock", fallback_to_soft=False)

    def _acquire(self, lock: filelock.BaseFileLock, wait_s: float = 0.0) -> bool:
        """Takes the lock if nobody has it, or lets go of it in time; whether it did."""
        with on_disk(self.root):
            try:
                lock.acquire(timeout=wait_s)
            except filelock.Timeout:  # which is an OSError, too
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
    """A file's length; 0 if it has gone."""
    try:
        return path.stat().st_size
    except OSError:
        return 0

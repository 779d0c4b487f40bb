"""The folder of a library: its files, their format, atomic writing, locks, and errors of its disk.

    esa-library                       the marker
    catalogue-1.sqlite                records of files and words of texts; made again if missing
    documents/KEY.doc                 the manifest; a document exists while its manifest does
    documents/KEY.text, .tokens, .states, .words, .used
    segments/NAME-FIT.seg             KV cache of up to 4,096 tokens
    fits/FIT.fit                      projections of the reduced keys
    claims/KEY.claim                  names of the segments that an unfinished ingest needs
    folders/NAME.folder               records of a folder of `esa ingest --words`
    locks/                            locks by name; removing one would let two processes in

A small file is one line `esa-library KIND FORMAT LENGTH DIGEST` and a payload; the digest covers
kind, format, length and payload. While a file is written, its name is `.NAME.OWNER.part`. Only
files whose names have these forms are listed, counted and removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import platformdirs

from esa_cli.errors import DiskError, ForeignVersionError, LibraryError, UnreadableError
from esa_cli.system.files import replacing, writing_errors
from esa_cli.system.machine import in_home, size_text

ROOT = "ESA_LIBRARY"
MARKER = "esa-library"
_MARKER_TEXT = (
    "This folder is a library of esa: documents that were read once.\n"
    "`esa library --help` says how to look after it. Do not put files of your own here.\n"
)
WAIT_S = 0.5
"""Seconds between calls of `waiting` while another process holds a lock."""
KINDS = ("doc", "text", "tokens", "states", "words", "used")
"""Suffixes of the files that belong to one document, the manifest's first."""
_KEY, _FIT = "[0-9a-f]{40}", "[0-9a-f]{24}"
_NAMES = {
    "documents": rf"{_KEY}\.(?:{'|'.join(KINDS)})",
    "segments": rf"{_KEY}-(?:{_FIT}|none)\.seg",
    "fits": rf"{_FIT}\.fit",
    "claims": rf"{_KEY}\.claim",
    "folders": rf"{_KEY}\.folder",
}
_WHOLE = {folder: re.compile(name) for folder, name in _NAMES.items()}
_ANY = {folder: re.compile(rf"{name}|\.{name}\.{_KEY}\.part") for folder, name in _NAMES.items()}
FORMAT, WITH_STATES, WITH_SHAPES = 1, 2, 3
"""Formats; the others are of manifests of documents with states, and with rows of several sizes."""
_LINE = re.compile(rb"esa-library ([a-z]+) ([0-9]+) ([0-9]+) ([0-9a-f]{64})\n")
_ANOTHER_FOLDER = "check who may read and write there, or point ESA_LIBRARY to another folder"
_FREE_SPACE = "free some space, `esa library prune`, or point ESA_LIBRARY to another disk"


def default_root() -> Path:
    """Returns $ESA_LIBRARY if it is set, else `library` in the user's data folder for esa. Raises
    LibraryError."""
    chosen = os.environ.get(ROOT)
    if chosen:
        return in_home(chosen, ROOT, LibraryError)
    return Path(platformdirs.user_data_dir("esa")) / "library"


def is_manifest(name: str) -> bool:
    """Whether a file name in `documents` is that of a manifest."""
    return name.endswith(".doc") and _WHOLE["documents"].fullmatch(name) is not None


class LibraryPaths:
    """Paths of the files in one library's folder, and its locks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.documents, self.segments = root / "documents", root / "segments"
        self.folders, self.locks = root / "folders", root / "locks"

    def check(self) -> None:
        """Raises LibraryError if the folder is neither a library nor empty nor missing: a wrong
        ESA_LIBRARY must not harm the user's own files."""
        root, marker = self.root, self.root / MARKER
        with read_errors(root):
            # The marker is looked for again: another process may have made the library meanwhile.
            if marker.exists() or not root.exists() or not os.listdir(root) or marker.exists():
                return
        raise LibraryError(
            f"{root} is not a library of esa, and not empty",
            f"point {ROOT} to a folder of its own, or copy to one, as {root / 'library'}; it need "
            "not exist",
        )

    def make(self) -> None:
        """Makes the folders, for their owner alone: documents may be private."""
        self.check()
        with write_errors(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError), open(self.root / MARKER, "x", encoding="utf-8") as file:
                file.write(_MARKER_TEXT)
            for name in (*_NAMES, "locks"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)

    def document(self, key: str, kind: str = "doc") -> Path:
        return self.documents / f"{key}.{kind}"

    def segment(self, name: str) -> Path:
        return self.segments / f"{name}.seg"

    def fit(self, name: str) -> Path:
        return self.root / "fits" / f"{name}.fit"

    def claim(self, key: str) -> Path:
        return self.root / "claims" / f"{key}.claim"

    def is_whole(self, path: Path) -> bool:
        """Whether a path is that of a finished file that esa makes in this library."""
        form = _WHOLE.get(path.parent.name)
        in_root = path.parent.parent == self.root
        return in_root and form is not None and form.fullmatch(path.name) is not None

    def files(self) -> list[Path]:
        """Returns every file that esa made, unfinished ones included, without locks and marker."""
        return [path for folder in _NAMES for path in self._list_files(folder, _ANY[folder])]

    def whole_files(self, folder: str) -> list[Path]:
        """Returns every finished file that esa made in one of the folders."""
        return self._list_files(folder, _WHOLE[folder])

    def _list_files(self, folder: str, form: re.Pattern[str]) -> list[Path]:
        if not (self.root / folder).is_dir():
            return []
        with os.scandir(self.root / folder) as files:
            names = [file.name for file in files if form.fullmatch(file.name) and file.is_file()]
        return [self.root / folder / name for name in sorted(names)]

    @contextmanager
    def locked(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lock of a document's key, or of the whole library (`library`). Raises
        LibraryError, DiskError: the lock's file cannot be made, or the disk has no locks.

        Args:
            waiting: called at once and then every half second while another process holds the
                lock. An exception that the callback raises ends the waiting and propagates.
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
            with self.locked(name, refuse_to_wait):
                return False
        except BlockingIOError:
            return True


def refuse_to_wait() -> None:
    """Raises BlockingIOError; as `waiting` of a lock that is only taken if it is free."""
    raise BlockingIOError("another process has the lock")


def file_size(path: Path) -> int:
    """Returns a file's length in bytes; 0 if it does not exist any more."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def nearest_folder(root: Path) -> Path:
    """Returns the folder, or the nearest one above that exists."""
    folder = root.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def check_room(root: Path, nbytes: int) -> None:
    free = shutil.disk_usage(nearest_folder(root)).free
    if free < nbytes:
        message = f"the document would take {size_text(nbytes)} in the library {root}, and the "
        raise DiskError(f"{message}disk has {size_text(free)} left", _FREE_SPACE)


def pack_file(kind: str, payload: bytes, form: int = FORMAT) -> tuple[bytes, str]:
    """Returns the bytes of a file with this payload and format, and its digest."""
    state = hashlib.blake2b(f"{kind} {form} {len(payload)}\n".encode(), digest_size=32)
    state.update(payload)
    digest = state.hexdigest()
    return f"esa-library {kind} {form} {len(payload)} {digest}\n".encode() + payload, digest


def unpack_file(data: bytes, kind: str, path: Path, key: str, digest: str | None = None) -> bytes:
    """Returns the payload of a file. Raises ForeignVersionError: another format. LibraryError:
    damage.

    Args:
        data: the file's bytes, or its checksummed beginning. path, key: for messages.
        digest: the expected digest, if the manifest has it.
    """
    line = _LINE.match(data[:200])
    if line is None or line[1] != kind.encode():
        raise damage_error(path, f"it does not begin as a {kind} file does", key)
    form, newest = int(line[2]), WITH_SHAPES if kind == "document" else FORMAT
    if not FORMAT <= form <= newest:
        raise ForeignVersionError(
            f"{path} is of format {form}; this esa reads format {FORMAT} to {newest}",
            f"use the esa that wrote it, or {_remove_hint(key)}",
        )
    payload = data[line.end() :]
    expected, actual = pack_file(kind, payload, form)
    if data != expected or digest not in (None, actual):
        raise damage_error(path, "its length or checksum is wrong", key)
    return payload


def read_bytes(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise reading_error(path, error, key) from error


def read_file(path: Path, kind: str, key: str, digest: str | None = None) -> bytes:
    """Returns the payload of a file on disk. Raises: as `read_bytes` and `unpack_file`."""
    return unpack_file(read_bytes(path, key), kind, path, key, digest)


def write_file(path: Path, kind: str, payload: bytes, owner: str, form: int = FORMAT) -> str:
    """Writes a file atomically and returns its digest. Raises OSError."""
    data, digest = pack_file(kind, payload, form)
    with new_file(path, owner) as file:
        file.write(data)
    return digest


def part_path(path: Path, owner: str) -> Path:
    """Returns the path of a `new_file` until its block ends."""
    return path.with_name(f".{path.name}.{owner}.part")


@contextmanager
def new_file(path: Path, owner: str) -> Iterator[BinaryIO]:
    """Yields a file that gets its name, flushed to disk, when the block ends without an error;
    `owner` is the key of the document whose lock the caller holds, so that nobody else writes it.
    """
    part = part_path(path, owner)
    with replacing(path, part, durable=True), open(part, "wb") as file:
        yield file
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flushes renames and removals in the folder to disk; Windows needs no such call."""
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_hint(key: str) -> str:
    return f"remove it with `esa library rm {key[:12]}` and ingest the document again"


def damage_error(path: Path, what: str, key: str) -> LibraryError:
    return LibraryError(f"{path} is damaged: {what}", _remove_hint(key))


def reading_error(path: Path, error: OSError, key: str) -> LibraryError:
    if isinstance(error, FileNotFoundError):
        return LibraryError(f"{path} is missing", _remove_hint(key))
    reason = f"{path} cannot be read: {error.strerror or error}"
    return UnreadableError(reason, "check who may read it, and the disk; then try again")


@contextmanager
def read_errors(root: Path) -> Iterator[None]:
    """Turns errors of reading the library's folders into a LibraryError."""
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        reason = f"the library in {root} cannot be read: {error.strerror or error}{file}"
        raise LibraryError(reason, _ANOTHER_FOLDER) from error


def write_errors(root: Path) -> AbstractContextManager[None]:
    """Turns errors of writing the library into a DiskError (no space) or LibraryError."""
    other = f"{_ANOTHER_FOLDER}; on Windows, end other esa processes that use it"
    target = f"the library in {root}"
    return writing_errors(target, _FREE_SPACE, other, no_room=DiskError, failed=LibraryError)

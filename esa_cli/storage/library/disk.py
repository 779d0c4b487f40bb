"""The folder of a library: names and format of its files, atomic writing, locks, and disk errors.

    esa-library                       the marker, which shows that the folder is a library
    catalogue-1.sqlite                records of files and words of texts; created again if missing
    documents/KEY.doc                 the manifest; a document exists while its manifest does
    documents/KEY.text, .tokens, .states, .words, .used
    segments/NAME-FIT.seg             KV cache of up to 4,096 tokens
    fits/FIT.fit                      projections of the reduced keys
    claims/KEY.claim                  names of the segments that an unfinished ingest needs
    folders/NAME.folder               records of a folder of `esa ingest --words`
    locks/                            locks by name, which nobody may remove

A small file consists of one line `esa-library KIND FORMAT LENGTH DIGEST` and a payload. The digest
covers kind, format, length and payload. While a file is written, its name is `.NAME.OWNER.part`.
The library only lists, counts and removes files whose names have these forms.
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
from esa_cli.system.files import convert_writing_errors, replacing
from esa_cli.system.machine import expand_home_folder, format_size
from esa_cli.system.text import text_digest

ROOT = "ESA_LIBRARY"
MARKER = "esa-library"
_MARKER_TEXT = (
    "This folder is a library of esa: documents that were read once.\n"
    "`esa library --help` says how to look after it. Do not put files of your own here.\n"
)
WAIT_S = 0.5
"""Seconds between two calls of `waiting` while another process holds a lock."""
KINDS = ("doc", "text", "tokens", "states", "words", "used")
"""Suffixes of the files that belong to one document, beginning with the manifest's suffix."""
_KEY, _FIT = "[0-9a-f]{40}", "[0-9a-f]{24}"
_NAMES = {
    "documents": rf"{_KEY}\.(?:{'|'.join(KINDS)})",
    "segments": rf"{_KEY}-(?:{_FIT}|none)\.seg",
    "fits": rf"{_FIT}\.fit",
    "claims": rf"{_KEY}\.claim",
    "folders": rf"{_KEY}\.folder",
}
_FINISHED = {folder: re.compile(name) for folder, name in _NAMES.items()}
_ANY = {folder: re.compile(rf"{name}|\.{name}\.{_KEY}\.part") for folder, name in _NAMES.items()}
FORMAT, WITH_STATES, WITH_SHAPES = 1, 2, 3
"""Format numbers: usual files; manifests with recurrent states; manifests with several shapes."""
_LINE = re.compile(rb"esa-library ([a-z]+) ([0-9]+) ([0-9]+) ([0-9a-f]{64})\n")
_ANOTHER_FOLDER = "check the folder's permissions, or point ESA_LIBRARY to another folder"
_FREE_SPACE = "free some space with `esa library prune`, or point ESA_LIBRARY to another disk"


def default_library_folder() -> Path:
    """Returns the folder of the library: $ESA_LIBRARY if it is set, else `library` in the user's
    data folder for esa. Raises LibraryError."""
    chosen = os.environ.get(ROOT)
    if chosen:
        return expand_home_folder(chosen, ROOT, LibraryError)
    return Path(platformdirs.user_data_dir("esa")) / "library"


def hash_parts(*parts: bytes) -> bytes:
    """Returns a hash of several byte strings, which also depends on the length of each string."""
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def document_key(identity: str, text: str) -> str:
    """Returns the key of a text. `identity` names the model and settings of its prefill."""
    digest = text_digest(text).encode()
    return hash_parts(b"document", bytes([FORMAT]), identity.encode(), digest).hex()


def is_manifest(name: str) -> bool:
    """Whether a file name in the folder `documents` is the name of a manifest."""
    return name.endswith(".doc") and _FINISHED["documents"].fullmatch(name) is not None


class LibraryPaths:
    """The paths of the files in a library's folder, and the locks of the library."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.documents, self.segments = root / "documents", root / "segments"
        self.folders, self.locks = root / "folders", root / "locks"

    def check_folder(self) -> None:
        """Raises LibraryError if the folder has files and is not a library, since a wrong
        ESA_LIBRARY must not harm the user's own files."""
        root, marker = self.root, self.root / MARKER
        with convert_read_errors(root):
            # The marker is looked for again: another process may have made the library meanwhile.
            if marker.exists() or not root.exists() or not os.listdir(root) or marker.exists():
                return
        raise LibraryError(
            f"{root} is not a library of esa, and not empty",
            f"point {ROOT} to a folder of its own, such as {root / 'library'}, or copy to it",
        )

    def make_folders(self) -> None:
        """Creates the library's folders, which only their owner may read."""
        self.check_folder()
        with converting_write_errors(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError), open(self.root / MARKER, "x", encoding="utf-8") as file:
                file.write(_MARKER_TEXT)
            for name in (*_NAMES, "locks"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)

    def document_path(self, key: str, kind: str = "doc") -> Path:
        return self.documents / f"{key}.{kind}"

    def segment_path(self, name: str) -> Path:
        return self.segments / f"{name}.seg"

    def projections_path(self, name: str) -> Path:
        return self.root / "fits" / f"{name}.fit"

    def claim_path(self, key: str) -> Path:
        return self.root / "claims" / f"{key}.claim"

    def list_document_keys(self) -> set[str]:
        """Returns the keys of all documents in the library. Raises LibraryError."""
        with convert_read_errors(self.root):
            # Not `glob`, which returns nothing for a folder that may not be read.
            names = os.listdir(self.documents) if self.documents.is_dir() else []
        return {name.partition(".")[0] for name in filter(is_manifest, names)}

    def has_document(self, key: str) -> bool:
        """Whether the library has a document with this key. Raises LibraryError."""
        with convert_read_errors(self.root):
            return self.document_path(key).exists()

    def mark_document_used(self, key: str) -> None:
        """Sets a document's time of last use to now, unless the library is read-only."""
        with suppress(OSError):
            self.document_path(key, "used").touch()

    def read_last_use(self, key: str, default: float) -> float:
        """Returns the time of a document's last use, in seconds since 1970, or the default if the
        document has never been used."""
        try:
            return self.document_path(key, "used").stat().st_mtime
        except OSError:
            return default

    def has_finished_name(self, path: Path) -> bool:
        """Whether a path in this library has the name of a finished file of esa."""
        form = _FINISHED.get(path.parent.name)
        in_root = path.parent.parent == self.root
        return in_root and form is not None and form.fullmatch(path.name) is not None

    def list_all_files(self) -> list[Path]:
        """Returns all files of the library, even unfinished ones, except locks and marker."""
        return [path for folder in _NAMES for path in self._list_files(folder, _ANY[folder])]

    def list_finished_files(self, folder: str) -> list[Path]:
        """Returns all finished files in one folder of the library, such as `segments`."""
        return self._list_files(folder, _FINISHED[folder])

    def _list_files(self, folder: str, pattern: re.Pattern[str]) -> list[Path]:
        if not (self.root / folder).is_dir():
            return []
        with os.scandir(self.root / folder) as files:
            names = [file.name for file in files if pattern.fullmatch(file.name) and file.is_file()]
        return [self.root / folder / name for name in sorted(names)]

    @contextmanager
    def hold_lock(self, name: str, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lock of a document, whose key is `name`, or of the whole library (`library`).
        Raises LibraryError, DiskError: the lock's file cannot be created, or locks do not work.

        Args:
            waiting: called at once and then every half second while another process holds the
                lock. An exception that the callback raises ends the wait and propagates."""
        import filelock  # takes as long as the rest of the room's imports

        # Marker files in place of locks would stay after a kill.
        lock, wait_s = filelock.FileLock(self.locks / f"{name}.lock", fallback_to_soft=False), 0.0
        while not lock.is_locked:
            with converting_write_errors(self.root), suppress(filelock.Timeout):
                lock.acquire(timeout=wait_s)
            if not lock.is_locked and waiting:
                waiting()
            wait_s = WAIT_S
        try:
            yield
        finally:
            lock.release()

    def is_locked(self, name: str) -> bool:
        """Whether any process, including this one, holds the lock with this name now."""
        try:
            with self.hold_lock(name, refuse_to_wait):
                return False
        except BlockingIOError:
            return True


def refuse_to_wait() -> None:
    """Raises BlockingIOError. Passed as `waiting`, the function makes `hold_lock` fail at once."""
    raise BlockingIOError("another process has the lock")


def file_size(path: Path) -> int:
    """Returns a file's size in bytes, or 0 if the file does not exist any more."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def find_nearest_folder(root: Path) -> Path:
    """Returns the folder if it exists, else the nearest parent folder that exists."""
    folder = root.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def check_free_space(root: Path, nbytes: int) -> None:
    """Raises DiskError if a document of this size does not fit on the library's disk."""
    free = shutil.disk_usage(find_nearest_folder(root)).free
    if free < nbytes:
        message = f"the document would take {format_size(nbytes)} in the library {root}, and the "
        raise DiskError(f"{message}disk has {format_size(free)} left", _FREE_SPACE)


def pack_small_file(kind: str, payload: bytes, format_no: int = FORMAT) -> tuple[bytes, str]:
    """Returns the bytes of a small file with this payload, and the file's digest."""
    state = hashlib.blake2b(f"{kind} {format_no} {len(payload)}\n".encode(), digest_size=32)
    state.update(payload)
    digest = state.hexdigest()
    line = f"esa-library {kind} {format_no} {len(payload)} {digest}\n"
    return line.encode() + payload, digest


def unpack_small_file(
    data: bytes, kind: str, path: Path, key: str, digest: str | None = None
) -> bytes:
    """Returns the payload of a small file. Raises ForeignVersionError: the file has another format.
    LibraryError: the file is damaged.

    Args:
        data: the file's bytes, or the checksummed header of a segment.
        path, key: the file and its document, for error messages.
        digest: the digest that the manifest says, or None if the manifest has no digest."""
    line = _LINE.match(data[:200])
    if line is None or line[1] != kind.encode():
        raise make_damage_error(path, f"it does not begin like a {kind} file of esa", key)
    form, newest = int(line[2]), WITH_SHAPES if kind == "document" else FORMAT
    if not FORMAT <= form <= newest:
        raise ForeignVersionError(
            f"{path} has format {form}, but this version of esa reads formats {FORMAT} to {newest}",
            f"use the version of esa that wrote the file, or {_remove_hint(key)}",
        )
    payload = data[line.end() :]
    expected, actual = pack_small_file(kind, payload, form)
    if data != expected or digest not in (None, actual):
        raise make_damage_error(path, "its length or checksum is wrong", key)
    return payload


def read_file_bytes(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise make_reading_error(path, error, key) from error


def read_small_file(path: Path, kind: str, key: str, digest: str | None = None) -> bytes:
    """Reads a small file and returns its payload. Raises LibraryError: the file is missing,
    damaged, unreadable or of another format."""
    return unpack_small_file(read_file_bytes(path, key), kind, path, key, digest)


def write_small_file(
    path: Path, kind: str, payload: bytes, owner: str, format_no: int = FORMAT
) -> str:
    """Writes a small file atomically, and returns the file's digest. Raises OSError."""
    data, digest = pack_small_file(kind, payload, format_no)
    with create_file(path, owner) as file:
        file.write(data)
    return digest


def temporary_path(path: Path, owner: str) -> Path:
    """Returns the temporary path of a file that `create_file` is writing."""
    return path.with_name(f".{path.name}.{owner}.part")


@contextmanager
def create_file(path: Path, owner: str) -> Iterator[BinaryIO]:
    """Yields a new file, which is flushed to disk and gets its name when the block ends without an
    error. `owner` is the key of the document whose lock the caller holds."""
    part = temporary_path(path, owner)
    with replacing(path, part, durable=True), open(part, "wb") as file:
        yield file
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flushes renames and removals in a folder to disk, except on Windows."""
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_hint(key: str) -> str:
    return f"remove it with `esa library rm {key[:12]}` and ingest the document again"


def make_damage_error(path: Path, reason: str, key: str) -> LibraryError:
    return LibraryError(f"{path} is damaged: {reason}", _remove_hint(key))


def make_reading_error(path: Path, error: OSError, key: str) -> LibraryError:
    if isinstance(error, FileNotFoundError):
        return LibraryError(f"{path} is missing", _remove_hint(key))
    reason = f"{path} cannot be read: {error.strerror or error}"
    return UnreadableError(reason, "check the file's permissions and the disk, then try again")


@contextmanager
def convert_read_errors(root: Path) -> Iterator[None]:
    """Converts an OSError during reading of the library's folders into a LibraryError."""
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        reason = f"the library in {root} cannot be read: {error.strerror or error}{file}"
        raise LibraryError(reason, _ANOTHER_FOLDER) from error


def converting_write_errors(root: Path) -> AbstractContextManager[None]:
    """Converts an OSError during writing into a DiskError (the disk is full) or a LibraryError."""
    other = f"{_ANOTHER_FOLDER}; on Windows, end other esa processes that use the library"
    target = f"the library in {root}"
    return convert_writing_errors(
        target, _FREE_SPACE, other, full_disk_error=DiskError, other_error=LibraryError
    )

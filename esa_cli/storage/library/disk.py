"""The folder of a library: names and format of its files, atomic writing, locks, and disk errors.

    esa-library                       the marker, which shows that the folder is a library
    catalogue-1.sqlite                records of files and words of texts; created again if missing
    documents/KEY.doc                 the manifest; a document exists while its manifest does
    documents/KEY.text, .tokens, .states, .words, .used
    segments/NAME-FIT.seg             KV cache of up to 4,096 tokens
    fits/FIT.fit                      projections of the reduced keys
    claims/KEY.claim                  names of the segments that an unfinished ingest needs
    folders/NAME.folder               records of a folder of `esa ingest --words`
    locks/                            locks by name; a lock's file may never be removed

A small file consists of one line `esa-library KIND FORMAT LENGTH DIGEST` and a payload. The digest
covers kind, format, length and payload. While a file is written, its name is `.NAME.OWNER.part`.
The library only lists, counts and removes files whose names have the forms above.
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
from esa_cli.system.files import convert_writing_errors, replace_atomically
from esa_cli.system.machine import expand_home_folder, format_size
from esa_cli.system.text import digest_text

ROOT = "ESA_LIBRARY"
MARKER = "esa-library"
_MARKER_TEXT = (
    "This folder is a library of esa: documents that were read once.\n"
    "`esa library --help` says how to look after it. Do not put files of your own here.\n"
)
WAIT_S = 0.5
"""Seconds between two calls of `on_wait` while another process holds a lock."""
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


def get_library_folder() -> Path:
    """Returns the folder of the library: $ESA_LIBRARY if it is set, else `library` in the user's
    data folder for esa. Raises LibraryError."""
    chosen = os.environ.get(ROOT)
    if chosen:
        return expand_home_folder(chosen, ROOT, LibraryError)
    return Path(platformdirs.user_data_dir("esa")) / "library"


def hash_byte_strings(*parts: bytes) -> bytes:
    """Returns a hash of several byte strings, which also depends on the length of each string."""
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def compute_document_key(identity: str, text: str) -> str:
    """Returns the key of a text: a hash with `identity`, the model and settings of a prefill."""
    digest = digest_text(text).encode()
    return hash_byte_strings(b"document", bytes([FORMAT]), identity.encode(), digest).hex()


def is_manifest_file_name(name: str) -> bool:
    """Whether a name of a file in the folder `documents` is that of a document's manifest."""
    return name.endswith(".doc") and _FINISHED["documents"].fullmatch(name) is not None


class LibraryPaths:
    """The paths of the files in a library's folder, and the locks of the library."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.documents, self.segments = root / "documents", root / "segments"
        self.folders, self.locks = root / "folders", root / "locks"

    def check_is_library(self) -> None:
        """Raises LibraryError if the library's folder has files but no marker of a library, since a
        wrong ESA_LIBRARY must not harm the user's own files."""
        root, marker = self.root, self.root / MARKER
        with convert_read_errors(root):
            # The marker is looked for again: another process may have made the library meanwhile.
            if marker.exists() or not root.exists() or not os.listdir(root) or marker.exists():
                return
        raise LibraryError(
            f"{root} is not a library of esa, and not empty",
            f"point {ROOT} to a folder of its own, such as {root / 'library'}, or copy to it",
        )

    def create_library_folders(self) -> None:
        """Creates the library's folder and its subfolders, readable only by this user."""
        self.check_is_library()
        with converting_write_errors(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with suppress(FileExistsError), open(self.root / MARKER, "x", encoding="utf-8") as file:
                file.write(_MARKER_TEXT)
            for name in (*_NAMES, "locks"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)

    def get_document_path(self, key: str, kind: str = "doc") -> Path:
        return self.documents / f"{key}.{kind}"

    def get_segment_path(self, name: str) -> Path:
        return self.segments / f"{name}.seg"

    def get_projections_path(self, name: str) -> Path:
        return self.root / "fits" / f"{name}.fit"

    def get_claim_path(self, key: str) -> Path:
        return self.root / "claims" / f"{key}.claim"

    def list_document_keys(self) -> set[str]:
        """Returns the keys of all documents in the library. Raises LibraryError."""
        with convert_read_errors(self.root):
            # Not `glob`, which returns nothing for a folder that may not be read.
            names = os.listdir(self.documents) if self.documents.is_dir() else []
        return {name.partition(".")[0] for name in filter(is_manifest_file_name, names)}

    def has_document(self, key: str) -> bool:
        """Whether the library has a document with this key. Raises LibraryError."""
        with convert_read_errors(self.root):
            return self.get_document_path(key).exists()

    def mark_document_used(self, key: str) -> None:
        """Sets the time of a document's last use to now, unless the library is read-only."""
        with suppress(OSError):
            self.get_document_path(key, "used").touch()

    def read_time_of_last_use(self, key: str, default: float) -> float:
        """Returns the time of a document's last use, in seconds since 1970, or the default if the
        document has never been used."""
        try:
            return self.get_document_path(key, "used").stat().st_mtime
        except OSError:
            return default

    def has_finished_name(self, path: Path) -> bool:
        """Whether a path in this library has a name that esa gives to completely written files."""
        form = _FINISHED.get(path.parent.name)
        in_root = path.parent.parent == self.root
        return in_root and form is not None and form.fullmatch(path.name) is not None

    def list_all_files(self) -> list[Path]:
        """Returns all files of the library, even partly written ones, except locks and marker."""
        return [path for folder in _NAMES for path in self._list_files(folder, _ANY[folder])]

    def list_finished_files(self, folder: str) -> list[Path]:
        """Returns the completely written files in a folder of the library, such as `segments`."""
        return self._list_files(folder, _FINISHED[folder])

    def _list_files(self, folder: str, pattern: re.Pattern[str]) -> list[Path]:
        if not (self.root / folder).is_dir():
            return []
        with os.scandir(self.root / folder) as files:
            names = [file.name for file in files if pattern.fullmatch(file.name) and file.is_file()]
        return [self.root / folder / name for name in sorted(names)]

    @contextmanager
    def hold_lock(self, name: str, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lock of a document, whose key is `name`, or of the whole library (`library`).
        Raises LibraryError, DiskError: the lock's file cannot be created, or locks do not work.

        Args:
            on_wait: called at once and then every half second while another process holds the
                lock. An exception that the callback raises ends the wait and propagates."""
        import filelock  # takes as long as the rest of the room's imports

        # Marker files in place of locks would stay after a kill.
        lock, wait_s = filelock.FileLock(self.locks / f"{name}.lock", fallback_to_soft=False), 0.0
        while not lock.is_locked:
            with converting_write_errors(self.root), suppress(filelock.Timeout):
                lock.acquire(timeout=wait_s)
            if not lock.is_locked and on_wait:
                on_wait()
            wait_s = WAIT_S
        try:
            yield
        finally:
            lock.release()

    def is_lock_held(self, name: str) -> bool:
        """Whether a process, even the current one, holds the lock `name`."""
        try:
            with self.hold_lock(name, refuse_to_wait_for_lock):
                return False
        except BlockingIOError:
            return True


def refuse_to_wait_for_lock() -> None:
    """Raises BlockingIOError, so that `hold_lock` with this `on_wait` fails rather than waits."""
    raise BlockingIOError("another process has the lock")


def get_file_size(path: Path) -> int:
    """Returns a file's size in bytes, or 0 if the file does not exist any more."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def find_nearest_existing_folder(root: Path) -> Path:
    """Returns the folder `root` if the folder exists, else the nearest parent that exists."""
    folder = root.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def check_free_disk_space(root: Path, nbytes: int) -> None:
    """Raises DiskError if a document of `nbytes` bytes does not fit on the library's disk."""
    free = shutil.disk_usage(find_nearest_existing_folder(root)).free
    if free < nbytes:
        message = f"the document would take {format_size(nbytes)} in the library {root}, and the "
        raise DiskError(f"{message}disk has {format_size(free)} left", _FREE_SPACE)


def pack_checksummed_file(kind: str, payload: bytes, version: int = FORMAT) -> tuple[bytes, str]:
    """Returns the bytes of a file that begins with a digest of the payload, and the digest."""
    state = hashlib.blake2b(f"{kind} {version} {len(payload)}\n".encode(), digest_size=32)
    state.update(payload)
    digest = state.hexdigest()
    line = f"esa-library {kind} {version} {len(payload)} {digest}\n"
    return line.encode() + payload, digest


def unpack_checksummed_file(
    data: bytes, kind: str, path: Path, key: str, digest: str | None = None
) -> bytes:
    """Checks the digest of a file's payload, and returns the payload. Raises ForeignVersionError:
    the file has another format. LibraryError: the file is damaged.

    Args:
        data: the file's bytes, or the checksummed header of a segment.
        path, key: the file and the document's key, for error messages.
        digest: the file's digest in the document's manifest, or None if there is none."""
    line = _LINE.match(data[:200])
    if line is None or line[1] != kind.encode():
        raise make_damage_error(path, f"it does not begin like a {kind} file of esa", key)
    form, newest = int(line[2]), WITH_SHAPES if kind == "document" else FORMAT
    if not FORMAT <= form <= newest:
        raise ForeignVersionError(
            f"{path} has format {form}, but this version of esa reads formats {FORMAT} to {newest}",
            f"use the version of esa that wrote the file, or {_make_removal_hint(key)}",
        )
    payload = data[line.end() :]
    expected, actual = pack_checksummed_file(kind, payload, form)
    if data != expected or digest not in (None, actual):
        raise make_damage_error(path, "its length or checksum is wrong", key)
    return payload


def read_file_bytes(path: Path, key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise make_file_reading_error(path, error, key) from error


def read_checksummed_file(path: Path, kind: str, key: str, digest: str | None = None) -> bytes:
    """Reads a file, checks its digest, and returns its payload. Raises LibraryError: the file is
    missing, damaged, unreadable or of another format."""
    return unpack_checksummed_file(read_file_bytes(path, key), kind, path, key, digest)


def write_checksummed_file(
    path: Path, kind: str, payload: bytes, owner_key: str, version: int = FORMAT
) -> str:
    """Writes a file with a digest of its payload, and returns the digest. Raises OSError."""
    data, digest = pack_checksummed_file(kind, payload, version)
    with create_file_atomically(path, owner_key) as file:
        file.write(data)
    return digest


def make_temporary_path(path: Path, owner_key: str) -> Path:
    """Returns the path at which `create_file_atomically` writes a file before renaming it."""
    return path.with_name(f".{path.name}.{owner_key}.part")


@contextmanager
def create_file_atomically(path: Path, owner_key: str) -> Iterator[BinaryIO]:
    """Yields a new file, which is flushed to disk and renamed to `path` when the block ends without
    an error. `owner_key` is the key of the document whose lock the caller holds."""
    part = make_temporary_path(path, owner_key)
    with replace_atomically(path, part, durable=True), open(part, "wb") as file:
        yield file
    flush_folder_to_disk(path.parent)


def flush_folder_to_disk(folder: Path) -> None:
    """Flushes renames and removals in a folder to disk, except on Windows."""
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _make_removal_hint(key: str) -> str:
    return f"remove it with `esa library rm {key[:12]}` and ingest the document again"


def make_damage_error(path: Path, reason: str, key: str) -> LibraryError:
    return LibraryError(f"{path} is damaged: {reason}", _make_removal_hint(key))


def make_file_reading_error(path: Path, error: OSError, key: str) -> LibraryError:
    if isinstance(error, FileNotFoundError):
        return LibraryError(f"{path} is missing", _make_removal_hint(key))
    reason = f"{path} cannot be read: {error.strerror or error}"
    return UnreadableError(reason, "check the file's permissions and the disk, then try again")


@contextmanager
def convert_read_errors(root: Path) -> Iterator[None]:
    """A context that converts an OSError in reading the library's folders into a LibraryError."""
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        reason = f"the library in {root} cannot be read: {error.strerror or error}{file}"
        raise LibraryError(reason, _ANOTHER_FOLDER) from error


def converting_write_errors(root: Path) -> AbstractContextManager[None]:
    """Converts an OSError in writing into a DiskError (the disk is full) or a LibraryError."""
    other = f"{_ANOTHER_FOLDER}; on Windows, end other esa processes that use the library"
    target = f"the library in {root}"
    return convert_writing_errors(
        target, _FREE_SPACE, other, full_disk_error=DiskError, other_error=LibraryError
    )

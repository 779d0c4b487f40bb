"""Names, writes, reads and locks the files in a library's folder, which docs/library.md lists.

Most files of a library begin with the line `esa-library KIND FORMAT LENGTH DIGEST`, whose digest
covers the kind, format, length and contents of the file. While a file is written, the file has the
name `.NAME.LOCK.part`, with the name of the lock that the writing process holds. Files that have
other names than the files of a library are never listed, counted or removed."""

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

from esa_cli.errors import DiskError, LibraryError, LibraryFileVersionError, UnreadableError
from esa_cli.system.files import LIBRARY_MARKER, convert_writing_errors, replace_atomically
from esa_cli.system.machine import expand_home_folder, format_size
from esa_cli.system.text import digest_text

ROOT = "ESA_LIBRARY"
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
"""Format numbers: of most files; of manifests with recurrent states; with layers of two shapes."""
_LINE = re.compile(rb"esa-library ([a-z]+) ([0-9]+) ([0-9]+) ([0-9a-f]{64})\n")
_ANOTHER_FOLDER = "check the folder's permissions, or point ESA_LIBRARY to another folder"
_FREE_SPACE = "free some space with `esa library prune`, or point ESA_LIBRARY to another disk"


def get_library_folder() -> Path:
    """Returns $ESA_LIBRARY, or else `library` in the user's data folder. Raises LibraryError."""
    if chosen := os.environ.get(ROOT):
        return expand_home_folder(chosen, ROOT, LibraryError)
    return Path(platformdirs.user_data_dir("esa")) / "library"


def hash_byte_strings(*byte_strings: bytes) -> bytes:
    """Returns one hash of several byte strings, which also depends on each string's length."""
    state = hashlib.blake2b(digest_size=20)
    for byte_string in byte_strings:
        state.update(len(byte_string).to_bytes(8, "little"))
        state.update(byte_string)
    return state.digest()


def compute_document_key(prefill_identity: str, text: str) -> str:
    """Returns a hash of a document's text and of the model and settings of its prefill."""
    digest, identity = digest_text(text).encode(), prefill_identity.encode()
    return hash_byte_strings(b"document", bytes([FORMAT]), identity, digest).hex()


def is_manifest_file_name(file_name: str) -> bool:
    return file_name.endswith(".doc") and _FINISHED["documents"].fullmatch(file_name) is not None


class LibraryPaths:
    """The paths of the files in a library's folder, and the library's locks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.documents, self.segments = root / "documents", root / "segments"
        self.folders, self.locks = root / "folders", root / "locks"
        self.catalogue = root / "catalogue-1.sqlite"  # with the version of its tables

    def refuse_folder_without_marker(self) -> None:
        """Raises LibraryError if the library's folder has files but no marker of a library, so that
        a wrong ESA_LIBRARY does not harm the user's own files."""
        root, marker = self.root, self.root / LIBRARY_MARKER
        with convert_read_errors(root):
            # The marker is looked for again: another process may have made the library meanwhile.
            if marker.exists() or not root.exists() or not os.listdir(root) or marker.exists():
                return
        raise LibraryError(
            f"{root} is not a library of esa, and not empty",
            f"point {ROOT} to a folder of its own, such as {root / 'library'}, or copy the "
            "library to such a folder",
        )

    def create_library_folders(self) -> None:
        """Creates the library's folder and subfolders, which only this user may read."""
        self.refuse_folder_without_marker()
        with convert_write_errors(self.root):
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            marker = self.root / LIBRARY_MARKER
            with suppress(FileExistsError), marker.open("x", encoding="utf-8") as file:
                file.write(_MARKER_TEXT)
            for name in (*_NAMES, "locks"):
                (self.root / name).mkdir(mode=0o700, exist_ok=True)

    def get_document_path(self, document_key: str, suffix: str = "doc") -> Path:
        return self.documents / f"{document_key}.{suffix}"

    def get_segment_path(self, segment_name: str) -> Path:
        return self.segments / f"{segment_name}.seg"

    def get_projections_path(self, projections_hash: str) -> Path:
        return self.root / "fits" / f"{projections_hash}.fit"

    def get_segment_claim_path(self, document_key: str) -> Path:
        return self.root / "claims" / f"{document_key}.claim"

    def list_document_keys(self) -> set[str]:
        with convert_read_errors(self.root):
            # Not `glob`, which returns nothing for a folder that may not be read.
            names = os.listdir(self.documents) if self.documents.is_dir() else []
        return {name.partition(".")[0] for name in filter(is_manifest_file_name, names)}

    def has_document(self, document_key: str) -> bool:
        with convert_read_errors(self.root):
            return self.get_document_path(document_key).exists()

    def mark_document_used(self, document_key: str) -> None:
        """Sets the time of a document's last use to now, unless the library is read-only."""
        with suppress(OSError):
            self.get_document_path(document_key, "used").touch()

    def read_time_of_last_use(self, document_key: str, default_time: float) -> float:
        """Returns a document's last time of use in seconds since 1970, or `default_time`."""
        try:
            return self.get_document_path(document_key, "used").stat().st_mtime
        except OSError:
            return default_time

    def is_complete_file_name(self, path: Path) -> bool:
        """Whether a path has the form of a completely written file of the library."""
        form = _FINISHED.get(path.parent.name)
        in_root = path.parent.parent == self.root
        return in_root and form is not None and form.fullmatch(path.name) is not None

    def list_all_files(self) -> list[Path]:
        """Returns all files of the library, even partly written ones, but not locks and marker."""
        return [path for folder in _NAMES for path in self._list_files(folder, _ANY[folder])]

    def list_complete_files(self, subfolder: str) -> list[Path]:
        return self._list_files(subfolder, _FINISHED[subfolder])

    def _list_files(self, subfolder: str, pattern: re.Pattern[str]) -> list[Path]:
        if not (self.root / subfolder).is_dir():
            return []
        with os.scandir(self.root / subfolder) as files:
            names = [file.name for file in files if pattern.fullmatch(file.name) and file.is_file()]
        return [self.root / subfolder / name for name in sorted(names)]

    @contextmanager
    def hold_lock(
        self, lock_name: str, on_wait: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Holds the lock of a document, or of the whole library, until the `with` block ends.
        `lock_name` is a key or "library"; `on_wait`, which may raise, is called every half second
        of waiting. Raises LibraryError, DiskError: the lock's file cannot be made or locked."""
        import filelock  # takes as long as the rest of the room's imports

        # Marker files in place of locks would stay after a kill.
        lock = filelock.FileLock(self.locks / f"{lock_name}.lock", fallback_to_soft=False)
        wait_s = 0.0
        while not lock.is_locked:
            with convert_write_errors(self.root), suppress(filelock.Timeout):
                lock.acquire(timeout=wait_s)
            if not lock.is_locked and on_wait:
                on_wait()
            wait_s = WAIT_S
        try:
            yield
        finally:
            lock.release()

    def is_lock_held(self, lock_name: str) -> bool:
        """Whether any process, including this one, holds the lock of a document or the library."""
        try:
            with self.hold_lock(lock_name, refuse_to_wait_for_lock):
                return False
        except BlockingIOError:
            return True


def refuse_to_wait_for_lock() -> None:
    """Raises BlockingIOError, so that `hold_lock` fails at once if a process holds the lock."""
    raise BlockingIOError("another process holds the lock of the document or the library")


def get_file_size(path: Path) -> int:
    """Returns a file's size in bytes, or 0 if the file no longer exists."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def find_nearest_existing_folder(folder: Path) -> Path:
    folder = folder.absolute()
    return next(parent for parent in (folder, *folder.parents) if parent.exists())


def require_free_disk_space(library_folder: Path, needed_bytes: int) -> None:
    """Raises DiskError if a document of `needed_bytes` bytes does not fit on the library's disk."""
    free = shutil.disk_usage(find_nearest_existing_folder(library_folder)).free
    if free < needed_bytes:
        message = f"the document takes {format_size(needed_bytes)} in {library_folder}, and the "
        raise DiskError(f"{message}disk has {format_size(free)} left", _FREE_SPACE)


def pack_checksummed_file(kind: str, payload: bytes, version: int = FORMAT) -> tuple[bytes, str]:
    """Returns the bytes of a file that begins with a digest of the payload, and the digest."""
    state = hashlib.blake2b(f"{kind} {version} {len(payload)}\n".encode(), digest_size=32)
    state.update(payload)
    digest = state.hexdigest()
    line = f"esa-library {kind} {version} {len(payload)} {digest}\n"
    return line.encode() + payload, digest


def split_file_name(path: Path) -> tuple[str, str]:
    """Returns a file's stem, and its kind as the first line says it, also for temporary names."""
    stem, suffix, *_ = path.name.lstrip(".").split(".")
    return stem, {"doc": "document", "seg": "segment"}.get(suffix, suffix)


def unpack_checksummed_file(
    data: bytes, path: Path, document_key: str, expected_digest: str | None = None
) -> bytes:
    """Checks the digest at the beginning of a file, or of a segment file's header, and returns the
    payload after it. `expected_digest` is that in the document's manifest, if any. Raises
    LibraryFileVersionError: the file has another format. LibraryError: the file is damaged."""
    line, (_, file_kind) = _LINE.match(data[:200]), split_file_name(path)
    if line is None or line[1] != file_kind.encode():
        reason = f"it does not begin like a {file_kind} file of esa"
        raise make_damage_error(path, reason, document_key)
    form, newest = int(line[2]), WITH_SHAPES if file_kind == "document" else FORMAT
    if not FORMAT <= form <= newest:
        raise LibraryFileVersionError(
            f"{path} has format {form}, but this version of esa reads formats {FORMAT} to {newest}",
            f"use the version of esa that wrote the file, or {_make_removal_hint(document_key)}",
        )
    payload = data[line.end() :]
    expected, actual = pack_checksummed_file(file_kind, payload, form)
    if data != expected or expected_digest not in (None, actual):
        raise make_damage_error(path, "its length or checksum is wrong", document_key)
    return payload


def read_file_bytes(path: Path, document_key: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise make_file_reading_error(path, error, document_key) from error


def read_checksummed_file(path: Path, document_key: str, digest: str | None = None) -> bytes:
    """Reads a file, and returns the payload after the digest, once checked. Raises LibraryError."""
    data = read_file_bytes(path, document_key)
    return unpack_checksummed_file(data, path, document_key, digest)


def write_checksummed_file(path: Path, payload: bytes, lock_name: str, form: int = FORMAT) -> str:
    """Writes a file that begins with a digest of the payload, and returns the digest."""
    data, digest = pack_checksummed_file(split_file_name(path)[1], payload, form)
    with create_file_atomically(path, lock_name) as file:
        file.write(data)
    return digest


def make_temporary_path(path: Path, lock_name: str) -> Path:
    """Returns the path at which `create_file_atomically` writes a file before it is renamed."""
    return path.with_name(f".{path.name}.{lock_name}.part")


@contextmanager
def create_file_atomically(path: Path, lock_name: str) -> Iterator[BinaryIO]:
    """Yields a new file, which is flushed to disk and renamed to `path` when the block ends without
    an error. `lock_name` is the lock that the caller holds, usually a document's key."""
    part = make_temporary_path(path, lock_name)
    with replace_atomically(path, part, durable=True), open(part, "wb") as file:
        yield file
    flush_folder_to_disk(path.parent)


def flush_folder_to_disk(folder: Path) -> None:
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _make_removal_hint(document_key: str) -> str:
    return f"remove the document with `esa library rm {document_key[:12]}` and ingest it again"


def make_damage_error(path: Path, reason: str, document_key: str) -> LibraryError:
    return LibraryError(f"{path} is damaged: {reason}", _make_removal_hint(document_key))


def make_file_reading_error(path: Path, error: OSError, document_key: str) -> LibraryError:
    if isinstance(error, FileNotFoundError):
        return LibraryError(f"{path} is missing", _make_removal_hint(document_key))
    reason = f"{path} cannot be read: {error.strerror or error}"
    return UnreadableError(reason, "check the file's permissions and the disk, then try again")


@contextmanager
def convert_read_errors(library_folder: Path) -> Iterator[None]:
    """In a `with` block, converts an OSError in reading the library into a LibraryError."""
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        reason = f"the library in {library_folder} cannot be read: {error.strerror or error}{file}"
        raise LibraryError(reason, _ANOTHER_FOLDER) from error


def convert_write_errors(library_folder: Path) -> AbstractContextManager[None]:
    """In a `with` block, converts an OSError in writing into a LibraryError or a DiskError."""
    other = f"{_ANOTHER_FOLDER}; on Windows, end other esa processes that use the library"
    target = f"the library in {library_folder}"
    errors = {"full_disk_error": DiskError, "other_error": LibraryError}
    return convert_writing_errors(target, _FREE_SPACE, other, **errors)

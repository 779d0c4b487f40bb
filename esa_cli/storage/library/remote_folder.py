"""A folder at a URL, through fsspec: a disk, an object store, or another machine."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from esa_cli.errors import DiskError, RemoteError, first_line
from esa_cli.system.files import lacks_room

CHUNK = 1 << 22
_WHOLE = {"abfs", "abfss", "adl", "az", "gcs", "gs", "memory", "oci", "oss", "s3", "s3a"}
"""Protocols by which a file appears when it is complete. By others it is written under another name
and renamed."""

_PART = re.compile(r"\.[^/]+\.[0-9a-f]{40}\.part")


class MissingCopyError(RemoteError):
    """A file is not in the folder."""


def without_password(url: str) -> str:
    """A URL as people may see it."""
    return re.sub(r"//[^/@]*@", "//", url)


class RemoteFolder:
    """Files by their names relative to a URL. Every method raises RemoteError.

    Args:
        url: as fsspec takes it; a path is one, too.
    """

    is_archive = False

    def __init__(self, url: str) -> None:
        self.shown = without_password(url)
        with self._errors():
            import fsspec

            self._fs: Any
            self._fs, root = fsspec.url_to_fs(url)
            self._root = str(root).rstrip("/")
            names = self._fs.protocol
            self._renames = not _WHOLE & {names, *(() if isinstance(names, str) else names)}

    def exists(self, name: str) -> bool:
        with self._errors():
            self._fs.invalidate_cache()
            return bool(self._fs.exists(self._path(name)))

    def is_empty(self) -> bool:
        """Whether it does not exist, or has nothing but what a stopped `put` has left."""
        with self._errors():
            found = self._fs.exists(self._root) and self._fs.ls(self._root, detail=False)
            return all(_PART.fullmatch(path.rpartition("/")[2]) for path in found or ())

    def sizes(self) -> dict[str, int]:
        """Bytes of all files below it, by name."""
        with self._errors():
            self._fs.invalidate_cache()
            found = self._fs.find(self._root, detail=True)
            start = len(self._root) + 1
            return {path[start:]: int(facts["size"]) for path, facts in found.items()}

    def read(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """A file's bytes, piece by piece."""
        with self._errors():
            try:
                file = self._fs.open(self._path(name), "rb")
            except FileNotFoundError as error:
                raise MissingCopyError(f"{self.shown} has no {name}") from error
        try:
            while True:
                with self._errors():
                    data = bytes(file.read(CHUNK))
                if not data:
                    return
                yield data
        finally:
            file.close()

    def make(self) -> None:
        """Makes the folder, on a disk for its owner alone: documents may be private."""
        with self._errors():
            from fsspec.implementations.local import LocalFileSystem

            if isinstance(self._fs, LocalFileSystem):
                Path(self._root).mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, path: Path, name: str) -> None:
        """Uploads a file atomically: it gets its name when it is complete."""
        target = self._path(name)
        folder, _, last = target.rpartition("/")
        with self._errors():
            self._fs.makedirs(folder, exist_ok=True)
            if self._renames:
                self._put_part(path, f"{folder}/.{last}.{secrets.token_hex(20)}.part", target)
            else:
                self._fs.put_file(str(path), target)

    def _put_part(self, path: Path, part: str, target: str) -> None:
        try:
            self._fs.put_file(str(path), part)
            self._fs.mv(part, target)
        except BaseException:
            with suppress(Exception):
                self._fs.rm_file(part)
            raise

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Every protocol's library raises errors of its own."""
        try:
            yield
        except (RemoteError, DiskError):
            raise
        except ImportError as error:
            raise RemoteError(
                f"{self.shown} cannot be used: {first_line(error)}",
                "pip install 'esa-cli[url]', and what the protocol needs, as s3fs for s3://",
            ) from error
        except Exception as error:
            if lacks_room(error):
                hint = "free some space there; the same command goes on where it was"
                raise DiskError(f"there is no space left in {self.shown}", hint) from error
            raise RemoteError(
                f"{self.shown} cannot be used: {first_line(error) or type(error).__name__}",
                "check the URL, the network and your rights; the same command goes on where it was",
            ) from error

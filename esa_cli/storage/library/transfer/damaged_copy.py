"""Errors of a document elsewhere that is copied into the library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from esa_cli.errors import ExportFileError, ForeignVersionError, LibraryError, RemoteError
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.library_paths import LibraryPaths
from esa_cli.storage.library.transfer.remote_folder import MissingCopyError

_AGAIN = "push the document again from a library that has it"


class DamagedCopyError(LibraryError):
    """A document in a folder at a URL is damaged, not whole, or of another format."""


@contextmanager
def copy_errors(paths: LibraryPaths, shown: str, key: str, path: Path) -> Iterator[None]:
    """Turns errors of a file that is copied into those of the file there; `shown` is its place."""
    name = file_name(paths, path)
    try:
        yield
    except MissingCopyError as error:
        raise _copy_error(shown, key, f"{name} is missing", _AGAIN) from error
    except (RemoteError, ExportFileError):
        raise
    except LibraryError as error:
        # The manifest may agree with wrong contents; `push` copies what is not there.
        files = dict.fromkeys((name, file_name(paths, paths.document(key))))
        reason, hint = error.message, f"delete {' and '.join(files)} there, and {_AGAIN}"
        for local in (checksummed_file.part_path(path, key), path):
            reason = reason.replace(str(local), name)
        if isinstance(error, ForeignVersionError):
            hint = "use the esa that wrote it"
        raise _copy_error(shown, key, reason, hint) from error


def _copy_error(shown: str, key: str, reason: str, hint: str) -> DamagedCopyError:
    return DamagedCopyError(f"document {key[:12]} in {shown} cannot be used: {reason}", hint)


def file_name(paths: LibraryPaths, path: Path) -> str:
    """A file's name relative to the library, which is that in a folder at a URL."""
    return path.relative_to(paths.root).as_posix()

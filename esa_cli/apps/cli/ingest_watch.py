"""`esa ingest --watch`: reads files that are new or have changed, whenever there are some."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

from esa_cli.apps.cli.output.terminal import Reporter
from esa_cli.documents.sources import find_any, is_several
from esa_cli.errors import DiskError, DocumentError, ResourceError
from esa_cli.system import files

SETTLE_S = 1.0
"""A file is read when its size and time are the same after so many seconds: it may be growing."""
Stamp = tuple[int, int, int]


class WatchedFiles:
    """The files that names mean, and which of them are new or have changed.

    Attributes:
        first: paths of the files that are there when this is made, which count as known.

    Raises:
        DocumentError: a file that is named is not there.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        for name in names:
            if not is_several(name) and not os.path.lexists(name):
                raise DocumentError(f"there is no file {name}", "name one that exists, or a folder")
        self._known = self._stamps()
        self.first = [*self._known]

    def changes(self) -> Iterator[list[str]]:
        """Paths of new and changed files that are complete, whenever there are some; none where
        files may have been removed alone. No end."""
        folders = [name for name in self._names if os.path.isdir(name)]
        few = len(folders) < len(self._names)  # files and patterns send no notices
        for _ in files.folder_changes(*folders, poll=few):
            while paths := self._changed():
                yield paths
            yield []

    def _changed(self) -> list[str]:
        """Those that stay as they are for `SETTLE_S`; the others are found later."""
        before = self._stamps()
        if all(self._known.get(path) == stamp for path, stamp in before.items()):
            return []
        time.sleep(SETTLE_S)
        now = {path: stamp for path, stamp in self._stamps().items() if before.get(path) == stamp}
        changed = [path for path, stamp in now.items() if self._known.get(path) != stamp]
        self._known = {path: one for path, one in self._known.items() if path in before} | now
        return changed

    def _stamps(self) -> dict[str, Stamp]:
        found = dict[str, Stamp]()
        for name in self._names:
            try:
                paths = find_any(name).files if is_several(name) else [name]
                for path in paths:
                    facts = os.stat(path)
                    found[path] = (facts.st_size, facts.st_mtime_ns, facts.st_ino)
            except (OSError, DocumentError):
                continue  # away for now, as while an editor replaces it
        return found


def read_changed(paths: Sequence[str], read: Callable[[str], None], reporter: Reporter) -> None:
    """Reads each file; one that cannot be read is one line, and the others are read. Raises
    DiskError."""
    for path in paths:
        try:
            read(path)
        except DiskError:
            raise
        except (DocumentError, ResourceError) as error:
            reporter.warn(f"esa: left out: {error.message}; {error.hint}".rstrip("; "))

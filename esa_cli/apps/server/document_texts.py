"""Texts of files that were asked about or shown, for whoever looks at a passage in its document."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from esa_cli.apps.open_books import FileStamp, file_stamp
from esa_cli.documents.document import Document

MOST_CHARACTERS = 50_000_000
"""Characters that are kept, unless one document alone has more."""


class _KeptText(NamedTuple):
    stamp: FileStamp
    document: Document


class DocumentTexts:
    """The documents used last, by path. Several threads may use it; they read each path once."""

    def __init__(self) -> None:
        self._kept: dict[str, _KeptText] = {}
        self._lock = threading.Lock()
        self._reading = defaultdict[str, threading.Lock](threading.Lock)

    def keep(self, path: str, document: Document, stamp: FileStamp) -> None:
        """Keeps a document of the file; `stamp` is from before it was read."""
        with self._lock:
            self._kept.pop(path, None)
            self._kept[path] = _KeptText(stamp, document)
            while self._characters() > MOST_CHARACTERS and len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]

    def read(self, path: str, load: Callable[[str], Document]) -> Document:
        """The document; it is loaded if the file has changed. Raises: as `load`."""
        with self._lock:
            reading = self._reading[path]
        with reading:
            stamp = file_stamp(path)
            with self._lock:
                kept = self._kept.get(path)
            document = kept.document if kept and kept.stamp == stamp else load(path)
            self.keep(path, document, stamp)
            return document

    def _characters(self) -> int:
        return sum(len(one.document.text) for one in self._kept.values())

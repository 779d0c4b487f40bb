"""Reads every byte of a stored document and names what is damaged."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from esa_cli.storage.library import checksummed_file as sealed
from esa_cli.storage.library import manifest as entries
from esa_cli.storage.library.checksummed_file import LibraryError
from esa_cli.storage.library.document_files import read_fit
from esa_cli.storage.library.library_paths import LibraryPaths
from esa_cli.storage.library.manifest import Entry
from esa_cli.storage.library.segment import Segment


def damages(places: LibraryPaths, entry: Entry) -> list[LibraryError]:
    """What is damaged in the document, one error a file; nothing that was checked before counts."""
    found: list[LibraryError] = []

    def attempt(check: Callable[[], object]) -> None:
        try:
            check()
        except LibraryError as error:
            found.append(error)

    if entry.damage:
        return [entries.unusable(entry)]
    key, digests = entry.key, entry.digests
    attempt(partial(entries.read, places, key))
    for kind in ("text", "tokens"):
        attempt(partial(sealed.read, places.document(key, kind), kind, key, digests[kind]))
    attempt(partial(read_fit, places, entry.fit, key))
    for i in range(len(entry.segments)):
        attempt(partial(_segment, places, entry, i))
    return found


def _segment(places: LibraryPaths, entry: Entry, index: int) -> None:
    path = places.segment(entry.segments[index])
    Segment(path, entry.layout, entry.segment_tokens(index), entry.key).check()

"""Documents of the library that a command names."""

from __future__ import annotations

from collections.abc import Sequence

from esa_cli.errors import UsageError
from esa_cli.storage.library import Entry, Library


def one_entry(library: Library, name: str) -> Entry:
    """The document whose id begins so, or whose name it is. Raises UsageError: none, or several."""
    found = library.matches(name)
    if not found:
        raise UsageError(f"no document {name} in the library", "see `esa library list`")
    if len(found) > 1:
        ids = ", ".join(entry.id for entry in found[:5])
        raise UsageError(f"{name} fits {len(found)} documents: {ids}", "give an id")
    return found[0]


def several_entries(library: Library, names: Sequence[str]) -> list[Entry]:
    """The same for several, each once."""
    found = (one_entry(library, name) for name in names)
    return list({entry.key: entry for entry in found}.values())

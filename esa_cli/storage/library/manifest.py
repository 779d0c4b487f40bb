"""A document's manifest: what is known of it without reading it. Knows no torch."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from esa_cli.errors import ForeignVersionError, LibraryError, UnreadableError
from esa_cli.storage.library import checksummed_file as sealed
from esa_cli.storage.library.checksummed_file import damaged, readable
from esa_cli.storage.library.library_paths import LibraryPaths, is_manifest
from esa_cli.storage.library.row_layout import Layout

NO_LAYOUT = Layout(1, 1, 1, "float32")


@dataclass(frozen=True)
class Entry:
    """A stored document.

    Args:
        key: its name in the library; `id` is enough for people. identity: what it was read with.
        layout: the shape of its rows. tokens: how many. head: of these, the prompt's before it.
        segments: their names. fit: the name of its projections, or "none".
        sizes: bytes of what it needs on disk: `segments`, `text`, `tokens`, `fit`.
        digests: of its text and tokens files. text_sha256, characters: of its text.
        marks: plain data about the text. provenance: where it came from: `name`, `source`, ...
        created: seconds since 1970. used: when it was last opened.
        damage: why it cannot be used, in words; then all else may be empty.
        foreign: it is another version's. unreadable: its manifest cannot be read now, and may be
            good.
    """

    key: str
    identity: str = ""
    layout: Layout = NO_LAYOUT
    tokens: int = 0
    head: int = 0
    segments: tuple[str, ...] = ()
    fit: str = "none"
    sizes: dict[str, int] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    text_sha256: str = ""
    characters: int = 0
    marks: tuple[Any, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    created: float = 0.0
    used: float = 0.0
    damage: str = ""
    foreign: bool = False
    unreadable: bool = False

    @property
    def id(self) -> str:
        return self.key[:12]

    @property
    def name(self) -> str:
        """What a person calls it."""
        return str(self.provenance.get("name", ""))

    @property
    def nbytes(self) -> int:
        """Bytes on disk, what it shares with other documents included."""
        return sum(self.sizes.values())

    def segment_tokens(self, index: int) -> int:
        """How many tokens are in that one of its segments."""
        return min(self.layout.segment, self.tokens - index * self.layout.segment)

    def as_json(self) -> dict[str, Any]:
        """The entry as JSON data, as `esa library --json` prints it."""
        if self.damage:
            return {"id": self.id, "key": self.key, "damage": self.damage}
        return {
            "id": self.id,
            "key": self.key,
            "name": self.name,
            "tokens": self.tokens,
            "characters": self.characters,
            "bytes": self.nbytes,
            "created": self.created,
            "used": self.used,
            **{name: self.provenance.get(name) for name in ("model", "preset", "esa")},
            "rows": self.layout.kind,
            "identity": self.identity,
            "layout": self.layout.as_json(),
            "provenance": self.provenance,
        }


def write(paths: LibraryPaths, entry: Entry) -> None:
    """Puts the manifest on disk: from now on there is a document. Raises OSError."""
    facts = asdict(entry) | {"layout": entry.layout.as_json()}
    for name in ("used", "damage", "foreign", "unreadable"):
        del facts[name]
    payload = json.dumps(facts, ensure_ascii=True, sort_keys=True, indent=1).encode()
    sealed.write(paths.document(entry.key), "document", payload, entry.key)


def read(paths: LibraryPaths, key: str) -> Entry:
    """The entry of a document that is there.

    Raises:
        LibraryError: the manifest is missing, damaged, another document's or another version's.
    """
    path = paths.document(key)
    facts = json.loads(sealed.read(path, "document", key))
    if facts["key"] != key:
        raise damaged(path, "it is the manifest of another document", key)
    layout = Layout.of_json(facts.pop("layout"))
    lists: dict[str, Any] = {name: tuple(facts.pop(name)) for name in ("segments", "marks")}
    entry = Entry(layout=layout, **lists, **facts)
    return replace(entry, used=_used(paths, key, entry.created))


def read_all(paths: LibraryPaths) -> list[Entry]:
    """Every document there is, the last used first; those that cannot be used have `damage`.

    Raises:
        LibraryError: the folder may not be read.
    """
    found = []
    with readable(paths.root):
        # Not `glob`, which takes a folder that may not be read for an empty one.
        names = os.listdir(paths.documents) if paths.documents.is_dir() else []
    for name in filter(is_manifest, names):
        key = name.partition(".")[0]
        try:
            found.append(read(paths, key))
        except LibraryError as error:
            if is_there(paths, key):  # else somebody removed it just now
                found.append(_without_contents(paths, key, error))
    return sorted(found, key=lambda entry: (-entry.used, entry.key))


def _without_contents(paths: LibraryPaths, key: str, error: LibraryError) -> Entry:
    return Entry(
        key,
        used=_used(paths, key, 0.0),
        damage=error.message,
        foreign=isinstance(error, ForeignVersionError),
        unreadable=isinstance(error, UnreadableError),
    )


def unusable(entry: Entry) -> LibraryError:
    """What is wrong with an entry that has `damage`."""
    if entry.unreadable:
        return UnreadableError(entry.damage, sealed.LOOK)
    return LibraryError(entry.damage, sealed.again(entry.key))


def is_there(paths: LibraryPaths, key: str) -> bool:
    """Whether there is a manifest. Raises LibraryError where the folder may not be read."""
    with readable(paths.root):
        return paths.document(key).exists()


def read_text(paths: LibraryPaths, entry: Entry) -> str:
    """A document's text. Raises LibraryError where it is missing or damaged."""
    path = paths.document(entry.key, "text")
    data = sealed.read(path, "text", entry.key, entry.digests["text"])
    return data.decode("utf-8", "surrogatepass")


def _used(paths: LibraryPaths, key: str, otherwise: float) -> float:
    try:
        return paths.document(key, "used").stat().st_mtime
    except OSError:
        return otherwise


def touch(paths: LibraryPaths, key: str) -> None:
    """Notes that the document was used now; a library that may only be read stays as it is."""
    try:
        paths.document(key, "used").touch()
    except OSError:
        return


def now() -> float:
    return round(time.time(), 3)

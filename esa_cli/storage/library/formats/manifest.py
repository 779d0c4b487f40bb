"""A document's manifest: its JSON file, the `Entry` made of it, and the hashes that name documents
and segments.

A segment's name covers all tokens up to its end, so two documents with the same beginning share
their first segments. The fitted projections depend on the first tokens (`Layout.fit`), which are
therefore in every name.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from esa_cli.errors import ForeignVersionError, LibraryError, UnreadableError
from esa_cli.storage.library.formats import checksummed_file
from esa_cli.storage.library.formats.checksummed_file import (
    FORMAT,
    READ_HINT,
    damage_error,
    read_errors,
)
from esa_cli.storage.library.formats.library_paths import LibraryPaths, is_manifest
from esa_cli.storage.library.formats.row_layout import Layout
from esa_cli.system.text import text_digest


def _hash(*parts: bytes) -> bytes:
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.digest()


def document_key(identity: str, text: str) -> str:
    """The key of a text that was prefilled with what `identity` names."""
    return _hash(b"document", bytes([FORMAT]), identity.encode(), text_digest(text).encode()).hex()


def _token_bytes(ids: Sequence[int]) -> bytes:
    numbers = array("q", ids)
    if array("H", [1]).tobytes() != b"\x01\x00":
        numbers.byteswap()
    return numbers.tobytes()


def segment_names(identity: str, ids: Sequence[int], layout: Layout) -> list[str]:
    """The names of the document's segments, each a hash of all tokens up to its end."""
    shape = json.dumps(layout.as_json(), sort_keys=True).encode()
    first = _token_bytes(ids[: layout.fit])
    last = _hash(b"segment", bytes([FORMAT]), identity.encode(), shape, first)
    names = []
    for start in range(0, len(ids), layout.segment):
        last = _hash(last, _token_bytes(ids[start : start + layout.segment]))
        names.append(last.hex())
    return names


NO_LAYOUT = Layout(1, 1, 1, "float32")


@dataclass(frozen=True)
class Entry:
    """A stored document.

    Args:
        key: its name in the library. identity: what it was prefilled with (the cache key).
        layout: the shape of its rows. tokens: number of tokens, of which `head` are the prompt's.
        segments: their names. fit: the name of its projections, or "none".
        sizes: bytes on disk of `segments`, `fit` and each of `kinds`.
        digests: of its text and tokens files. text_sha256, characters: of its text.
        marks: pages and chapters, as JSON data. provenance: `name`, `source` and more.
        created, used: seconds since 1970; `used` is the last time it was opened.
        damage: why it cannot be used, for people; other fields may then be empty.
        foreign: another version of esa wrote it. unreadable: the system does not give its manifest
            out now; it may be undamaged.
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
    def kinds(self) -> tuple[str, ...]:
        """See `own_kinds`."""
        return own_kinds(self.layout)

    @property
    def state(self) -> str:
        """`good`, or why it cannot be used: `damaged`, `another format` or `unreadable`."""
        if self.foreign or self.unreadable:
            return "another format" if self.foreign else "unreadable"
        return "damaged" if self.damage else "good"

    @property
    def name(self) -> str:
        """The document's name for people."""
        return str(self.provenance.get("name", ""))

    @property
    def file(self) -> str:
        """The absolute path of the file it was read from; empty: it was read from none."""
        path = str(self.provenance.get("path") or self.provenance.get("source", ""))
        return path if os.path.isabs(path) else ""

    @property
    def rows(self) -> str:
        """What is stored of each token, for people: `int8` or `native` rows, or `index`."""
        return str(self.provenance.get("rows", self.layout.kind))

    @property
    def nbytes(self) -> int:
        """Bytes on disk, including segments shared with other documents."""
        return sum(self.sizes.values())

    def segment_tokens(self, index: int) -> int:
        """Number of tokens in the segment with this index."""
        return min(self.layout.segment, self.tokens - index * self.layout.segment)

    def as_json(self) -> dict[str, Any]:
        """The entry as JSON data, as `esa library --json` prints it."""
        if self.damage:
            state = {"state": self.state, "damage": self.damage}
            return {"id": self.id, "key": self.key, **state}
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
            "rows": self.rows,
            "identity": self.identity,
            "layout": self.layout.as_json(),
            "provenance": self.provenance,
        }


def own_kinds(layout: Layout) -> tuple[str, ...]:
    """The files that a document has for itself, beside its manifest, and needs."""
    return ("text", "tokens", "states") if layout.states else ("text", "tokens")


def write(paths: LibraryPaths, entry: Entry) -> None:
    """Writes the manifest, with which the document exists. Raises OSError."""
    facts = asdict(entry) | {"layout": entry.layout.as_json()}
    for name in ("used", "damage", "foreign", "unreadable"):
        del facts[name]
    payload = json.dumps(facts, ensure_ascii=True, sort_keys=True, indent=1).encode()
    form = checksummed_file.WITH_STATES if entry.layout.states else checksummed_file.FORMAT
    form = checksummed_file.WITH_SHAPES if entry.layout.shapes else form
    checksummed_file.write(paths.document(entry.key), "document", payload, entry.key, form)


def read(paths: LibraryPaths, key: str) -> Entry:
    """The entry of a document. Raises LibraryError: the manifest is missing, damaged, another
    document's or another version's."""
    entry = decode_entry(paths, key, checksummed_file.read_bytes(paths.document(key), key))
    return replace(entry, used=last_use(paths, key, entry.created))


def decode_entry(paths: LibraryPaths, key: str, data: bytes) -> Entry:
    """The entry that the bytes of a manifest contain, without `used`. Raises LibraryError: as
    `read`."""
    path = paths.document(key)
    facts = json.loads(checksummed_file.decode(data, "document", path, key))
    if facts["key"] != key:
        raise damage_error(path, "it is the manifest of another document", key)
    layout = Layout.of_json(facts.pop("layout"))
    lists: dict[str, Any] = {name: tuple(facts.pop(name)) for name in ("segments", "marks")}
    return Entry(layout=layout, **lists, **facts)


def keys(paths: LibraryPaths) -> set[str]:
    """Keys of the documents. Raises LibraryError: the folder may not be read."""
    with read_errors(paths.root):
        # Not `glob`, which returns nothing for a folder that may not be read.
        names = os.listdir(paths.documents) if paths.documents.is_dir() else []
    return {name.partition(".")[0] for name in filter(is_manifest, names)}


def read_all(paths: LibraryPaths, chosen: Iterable[str] | None = None) -> list[Entry]:
    """The documents with the chosen keys (None: all), the most recently used first; those that
    cannot be used have `damage`. Raises LibraryError: the folder may not be read."""
    entries = list[Entry]()
    for key in keys(paths) if chosen is None else chosen:
        try:
            entries.append(read(paths, key))
        except LibraryError as error:
            if exists(paths, key):  # else another process has removed it
                entries.append(
                    Entry(
                        key,
                        used=last_use(paths, key, 0.0),
                        damage=error.message,
                        foreign=isinstance(error, ForeignVersionError),
                        unreadable=isinstance(error, UnreadableError),
                    )
                )
    return sorted(entries, key=lambda entry: (-entry.used, entry.key))


def entry_error(entry: Entry) -> LibraryError:
    """The error for an entry with `damage`."""
    if entry.unreadable:
        return UnreadableError(entry.damage, READ_HINT)
    if entry.foreign:
        return ForeignVersionError(entry.damage, checksummed_file.foreign_hint(entry.key))
    return LibraryError(entry.damage, checksummed_file.reingest_hint(entry.key))


def exists(paths: LibraryPaths, key: str) -> bool:
    """True if the document exists. Raises LibraryError if the folder may not be read."""
    with read_errors(paths.root):
        return paths.document(key).exists()


def read_text(paths: LibraryPaths, entry: Entry) -> str:
    """A document's text. Raises LibraryError if it is missing or damaged."""
    path = paths.document(entry.key, "text")
    data = checksummed_file.read(path, "text", entry.key, entry.digests["text"])
    return data.decode("utf-8", "surrogatepass")


def last_use(paths: LibraryPaths, key: str, otherwise: float) -> float:
    """When the document was last opened; `otherwise`, where that is not known."""
    try:
        return paths.document(key, "used").stat().st_mtime
    except OSError:
        return otherwise


def touch(paths: LibraryPaths, key: str) -> None:
    """Sets the time of the last use, unless the library is read-only."""
    try:
        paths.document(key, "used").touch()
    except OSError:
        return

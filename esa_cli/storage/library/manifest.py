"""The shape of stored rows, a document's manifest, and the hashes that name documents and segments.

A manifest is a JSON file, of which an `Entry` is made. A segment's name covers all tokens up to its
end, so two documents with the same beginning share their first segments. The fitted projections
depend on the first tokens (`Layout.fit`), which are therefore in every name.

A segment file is a checksummed header, padded to whole pages, and one section for each layer:

    rows        n records, one for each token: keys, then values of all heads (`segment.encode`)
    reduced     n reduced keys (R numbers), if the layer has any
    checksums   n of 64 bits, one for each record

Each begins at a multiple of 64 bytes, each section at a multiple of 4,096.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, NamedTuple

from esa_cli.errors import ForeignVersionError, LibraryError, UnreadableError
from esa_cli.storage.library import checksummed_file
from esa_cli.storage.library.checksummed_file import FORMAT, damage_error, read_errors
from esa_cli.storage.library.library_paths import LibraryPaths, is_manifest
from esa_cli.system.text import text_digest

SEGMENT = 4096
"""Tokens of a segment; the last one of a document may have fewer."""
PAGE = 4096
_LINE = 64
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number of each dtype that can be stored."""
OTHER_BYTES = 48
"""Upper bound of a token's bytes beside its rows: id and offsets (24), text, projections."""
MOST_LAYERS = 10_000
STRICT = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""How pydantic checks the manifests of strangers."""


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


class Section(NamedTuple):
    """Byte offsets of one layer's section in a segment file; `sums` are the checksums."""

    start: int
    rows_stop: int
    reduced: int
    sums: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The shape of the data stored for each token.

    Args:
        layers: their number. heads: G. dim: D. dtype: of keys and values, as "float32".
        kind: `native`, bit for bit; or `int8`, a quarter of float32.
        reduced: R of each layer, 0 where it has no reduced keys; (): no layer has any.
        reduced_dtype: by default the rows'. segment: tokens of a segment.
        fit: number of first tokens the compressor is fitted on; two documents share reduced keys
            only if they share these.
        shared: the keys are the values, too, and stored once.
        block: numbers of a head that share a scale in int8; by default D.
        states: layers of the model that keep a state, which has a file of its own.
        shapes: G and D of each layer; (): those of all are `heads` and `dim`. Where there are some,
            what depends on them is that of a layer, `of`.

    Raises:
        ValueError: they do not fit each other.
    """

    layers: int
    heads: int
    dim: int
    dtype: str
    kind: Literal["native", "int8"] = "native"
    reduced: tuple[int, ...] = ()
    reduced_dtype: str = ""
    fit: int = 0
    segment: int = SEGMENT
    shared: bool = False
    block: int = 0
    states: int = 0
    shapes: tuple[tuple[int, int], ...] = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        if not 1 <= self.layers <= MOST_LAYERS:  # a stranger's manifest may say any number
            raise ValueError(f"layers must be 1 to {MOST_LAYERS}, got {self.layers}")
        usual = {
            "block": self.block or self.dim,
            "reduced": tuple(self.reduced) or (0,) * self.layers,
            "reduced_dtype": self.reduced_dtype or self.dtype,
            "shapes": tuple((heads, dim) for heads, dim in self.shapes),
        }
        for name, value in usual.items():
            object.__setattr__(self, name, value)
        sizes = [self.heads, self.dim, self.segment, self.block, *sum(self.shapes, ())]
        if not (
            min(sizes) >= 1
            and min(self.fit, self.states, *self.reduced) >= 0
            and len(self.reduced) == self.layers
            and len(self.shapes) in (0, self.layers)
            and self.dim % self.block == 0
            and (not self.shapes or self.block == self.dim)
            and {self.dtype, self.reduced_dtype} <= {*ITEM}
            and self.kind in ("native", "int8")
        ):
            raise ValueError(f"no rows can have the layout {vars(self)}")

    def of(self, layer: int) -> Layout:
        """The layout of one layer's rows."""
        return _layer_of(self, layer) if self.shapes else self

    @property
    def vectors(self) -> int:
        """Vectors of D numbers in a row: keys and values of all heads."""
        return self.heads if self.shared else 2 * self.heads

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return self.vectors * self.dim

    @property
    def row_bytes(self) -> int:
        if self.kind == "native":
            return self.width * ITEM[self.dtype]
        return self.width + 4 * (self.width // self.block)

    def token_bytes(self, layer: int) -> int:
        """Bytes of a token's row and reduced key in one layer, without its checksum."""
        return self.of(layer).row_bytes + self.reduced[layer] * ITEM[self.reduced_dtype]

    @property
    def header_bytes(self) -> int:
        return _up(2048 + 112 * self.layers, PAGE)

    def sections(self, tokens: int) -> list[Section]:
        """The sections of a segment file of so many tokens."""
        sections, start = [], self.header_bytes
        for layer, width in enumerate(self.reduced):
            rows_stop = start + tokens * self.of(layer).row_bytes
            reduced = _up(rows_stop, _LINE)
            sums = _up(reduced + tokens * width * ITEM[self.reduced_dtype], _LINE)
            stop = _up(sums + tokens * 8, PAGE)
            sections.append(Section(start, rows_stop, reduced, sums, stop))
            start = stop
        return sections

    def nbytes(self, tokens: int) -> int:
        """The length of all segment files of a document of so many tokens."""
        whole, rest = divmod(tokens, self.segment)
        size = whole * self.sections(self.segment)[-1].stop
        return size + (self.sections(rest)[-1].stop if rest else 0)

    def as_json(self) -> dict[str, Any]:
        data = {**vars(self), "reduced": list(self.reduced), "shapes": [*map(list, self.shapes)]}
        # Names and headers of segments of other models are as before there were these settings.
        for name, usual in (("shared", False), ("block", self.dim), ("states", 0), ("shapes", [])):
            if data[name] == usual:
                del data[name]
        return data

    @staticmethod
    def of_json(data: dict[str, Any]) -> Layout:
        return Layout(**{**data, "reduced": tuple(data["reduced"])})


@lru_cache(maxsize=1024)
def _layer_of(layout: Layout, layer: int) -> Layout:
    heads, dim = layout.shapes[layer]
    reduced = (layout.reduced[layer],)
    return replace(layout, layers=1, heads=heads, dim=dim, block=dim, reduced=reduced, shapes=())


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
        error: why it cannot be used; other fields are then empty.
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
    marks: tuple[tuple[int, int | None, str | None], ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    created: float = 0.0
    used: float = 0.0
    error: LibraryError | None = field(default=None, compare=False)
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT | {"arbitrary_types_allowed": True}

    @property
    def id(self) -> str:
        return self.key[:12]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The files that it has for itself, beside its manifest, and needs."""
        return ("text", "tokens", "states") if self.layout.states else ("text", "tokens")

    @property
    def damage(self) -> str:
        """Why it cannot be used, for people."""
        return self.error.message if self.error else ""

    @property
    def state(self) -> str:
        """`good`, or why it cannot be used: `damaged`, `another format` or `unreadable`."""
        return state_of(self.error)

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
        known = {"id": self.id, "key": self.key}
        if self.error:
            return known | {"state": self.state, "damage": self.damage}
        return {
            **known,
            **{name: getattr(self, name) for name in ("name", "tokens", "characters")},
            "bytes": self.nbytes,
            "created": self.created,
            "used": self.used,
            **{name: self.provenance.get(name) for name in ("model", "preset", "esa")},
            "rows": self.rows,
            "identity": self.identity,
            "layout": self.layout.as_json(),
            "provenance": self.provenance,
        }


def state_of(error: LibraryError | None) -> str:
    """The state of a document with this error; see `Entry.state`."""
    if isinstance(error, ForeignVersionError):
        return "another format"
    if isinstance(error, UnreadableError):
        return "unreadable"
    return "damaged" if error else "good"


def facts(entry: Entry) -> dict[str, Any]:
    """The fields that are stored."""
    stored = asdict(entry) | {"layout": entry.layout.as_json()}
    del stored["used"], stored["error"]
    return stored


def write(paths: LibraryPaths, entry: Entry) -> None:
    """Writes the manifest, with which the document exists. Raises OSError."""
    payload = json.dumps(facts(entry), ensure_ascii=True, sort_keys=True, indent=1).encode()
    form = checksummed_file.WITH_STATES if entry.layout.states else FORMAT
    form = checksummed_file.WITH_SHAPES if entry.layout.shapes else form
    checksummed_file.write(paths.document(entry.key), "document", payload, entry.key, form)


def read(paths: LibraryPaths, key: str) -> Entry:
    """The entry of a document. Raises LibraryError: the manifest is missing, damaged, another
    document's or another version's."""
    entry = decode_entry(paths, key, checksummed_file.read_bytes(paths.document(key), key))
    return replace(entry, used=last_use(paths, key, entry.created))


def decode_entry(paths: LibraryPaths, key: str, data: bytes) -> Entry:
    """The entry that the bytes of a manifest contain, without `used`. Raises: as `read`."""
    path = paths.document(key)
    stored = json.loads(checksummed_file.decode(data, "document", path, key))
    if stored["key"] != key:
        raise damage_error(path, "it is the manifest of another document", key)
    layout = Layout.of_json(stored.pop("layout"))
    lists: dict[str, Any] = {name: tuple(stored.pop(name)) for name in ("segments", "marks")}
    return Entry(layout=layout, **lists, **stored)


def keys(paths: LibraryPaths) -> set[str]:
    """Keys of the documents. Raises LibraryError: the folder may not be read."""
    with read_errors(paths.root):
        # Not `glob`, which returns nothing for a folder that may not be read.
        names = os.listdir(paths.documents) if paths.documents.is_dir() else []
    return {name.partition(".")[0] for name in filter(is_manifest, names)}


def read_all(paths: LibraryPaths, chosen: Iterable[str] | None = None) -> list[Entry]:
    """The documents with the chosen keys (None: all), the most recently used first; those that
    cannot be used have an `error`. Raises LibraryError: the folder may not be read."""
    entries = list[Entry]()
    for key in keys(paths) if chosen is None else chosen:
        try:
            entries.append(read(paths, key))
        except LibraryError as error:
            if exists(paths, key):  # else another process has removed it
                entries.append(Entry(key, used=last_use(paths, key, 0.0), error=error))
    return sorted(entries, key=lambda entry: (-entry.used, entry.key))


def exists(paths: LibraryPaths, key: str) -> bool:
    """Whether the document exists. Raises LibraryError: the folder may not be read."""
    with read_errors(paths.root):
        return paths.document(key).exists()


def read_text(paths: LibraryPaths, entry: Entry) -> str:
    """A document's text. Raises LibraryError if it is missing or damaged."""
    path = paths.document(entry.key, "text")
    data = checksummed_file.read(path, "text", entry.key, entry.digests["text"])
    return data.decode("utf-8", "surrogatepass")


def last_use(paths: LibraryPaths, key: str, default: float) -> float:
    """When the document was last opened; `default` where that is not known."""
    try:
        return paths.document(key, "used").stat().st_mtime
    except OSError:
        return default


def touch(paths: LibraryPaths, key: str) -> None:
    """Sets the time of the last use, unless the library is read-only."""
    with suppress(OSError):
        paths.document(key, "used").touch()

"""Reads and writes the files of a stored document: manifest, text and the KV cache in segments.

A segment file has the keys and values of up to 4,096 tokens. After a header with checksums, padded
to whole pages, a segment file has one section for each layer. A layer's section has a record of
keys and values for each token, then the reduced keys, and then a 64-bit checksum for each record.
In a segment file, arrays begin at multiples of 64 bytes, and sections at multiples of 4,096 bytes.

A token's record has the keys, then the values, of all heads, unchanged or quantised to int8. In
int8, all numbers of a head, or a block of the head's numbers, share one float32 scale, which is the
largest absolute value divided by 127. A token's scales are in the same record as its numbers, so
that one memory access reads both. The checksum of a token's record also depends on the segment, the
layer and the token's number, so that a valid record in a wrong place is noticed.

A segment's name begins with a hash of all tokens up to the segment's end, so that two documents
with the same beginning share their first segments. A segment's hash also covers the tokens on which
the projections to reduced keys are fitted (`Layout.fit`)."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from esa_cli.errors import LibraryError, LibraryFileVersionError, UnreadableError
from esa_cli.storage.library import disk
from esa_cli.storage.library.disk import LibraryPaths, hash_byte_strings

if TYPE_CHECKING:
    from torch import Tensor

SEGMENT = 4096
"""Number of tokens in a segment; the last segment of a document may have fewer."""
NO_FIT = "none"
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MAX_LAYERS = 10_000
SCAN = 4
"""All records of a layer are checked at once if at least 1 / `SCAN` of the records are needed."""
_ODD = 0x9E3779B97F4A7C15
STRICT = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
"""The pydantic configuration for checking manifests that a stranger may have written."""


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


class LayerByteOffsets(NamedTuple):
    """The byte offsets of one layer's keys and values, reduced keys and checksums in a file."""

    start: int
    rows_stop: int
    reduced: int
    sums: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The shape and dtype of a KV cache on disk. Raises ValueError: its values do not fit."""

    layers: int
    heads: int  # G, the number of key/value heads
    dim: int  # D, the head dimension
    dtype: str  # of keys and values, such as "float32"
    kind: Literal["native", "int8"] = "native"  # whether keys and values are quantised
    reduced: tuple[int, ...] = ()  # R of each layer, or 0; by default no layer has reduced keys
    reduced_dtype: str = ""  # by default `dtype`
    fit: int = 0  # number of a document's first tokens on which the compressor is fitted
    segment: int = SEGMENT  # number of tokens in a segment
    shared: bool = False  # whether the keys are also the values and stored once (MLA)
    block: int = 0  # how many numbers of a head share a scale in int8; by default D
    states: int = 0  # number of the model's recurrent layers, whose states have a file
    shapes: tuple[tuple[int, int], ...] = ()  # G and D of each layer if layers differ
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    def __post_init__(self) -> None:
        if not 1 <= self.layers <= MAX_LAYERS:  # a stranger's manifest may say any number
            raise ValueError(f"layers must be 1 to {MAX_LAYERS}, got {self.layers}")
        defaults = {
            "block": self.block or self.dim,
            "reduced": tuple(self.reduced) or (0,) * self.layers,
            "reduced_dtype": self.reduced_dtype or self.dtype,
            "shapes": tuple((heads, dim) for heads, dim in self.shapes),
        }
        for name, value in defaults.items():
            object.__setattr__(self, name, value)
        sizes = [self.heads, self.dim, self.segment, self.block, *sum(self.shapes, ())]
        if not (
            min(sizes) >= 1
            and min(self.fit, self.states, *self.reduced) >= 0
            and len(self.reduced) == self.layers
            and len(self.shapes) in (0, self.layers)
            and self.dim % self.block == 0
            and (not self.shapes or self.block == self.dim)
            and {self.dtype, self.reduced_dtype} <= {*ITEM_BYTES}
            and self.kind in ("native", "int8")
        ):
            raise ValueError(f"the values of the layout contradict each other: {vars(self)}")

    def make_layer_layout(self, layer: int) -> Layout:
        return _compute_layer_layout(self, layer) if self.shapes else self

    @property
    def vectors_per_token(self) -> int:
        """Number of a token's key and value vectors of all heads in one layer."""
        return self.heads if self.shared else 2 * self.heads

    @property
    def width(self) -> int:
        return self.vectors_per_token * self.dim

    @property
    def row_bytes(self) -> int:
        """The bytes of one token's keys and values in one layer."""
        if self.kind == "native":
            return self.width * ITEM_BYTES[self.dtype]
        return self.width + 4 * (self.width // self.block)

    def count_token_bytes(self, layer: int) -> int:
        """Returns how many bytes a token's keys, values and reduced key take in one layer."""
        reduced_bytes = self.reduced[layer] * ITEM_BYTES[self.reduced_dtype]
        return self.make_layer_layout(layer).row_bytes + reduced_bytes

    @property
    def header_byte_count(self) -> int:
        return _round_up(2048 + 112 * self.layers, 4096)

    def locate_layers(self, token_count: int) -> list[LayerByteOffsets]:
        """Returns the byte offsets of each layer's section in a file with `token_count` tokens."""
        sections, start = [], self.header_byte_count
        for layer, width in enumerate(self.reduced):
            rows_stop = start + token_count * self.make_layer_layout(layer).row_bytes
            reduced = _round_up(rows_stop, 64)
            sums = _round_up(reduced + token_count * width * ITEM_BYTES[self.reduced_dtype], 64)
            stop = _round_up(sums + token_count * 8, 4096)
            sections.append(LayerByteOffsets(start, rows_stop, reduced, sums, stop))
            start = stop
        return sections

    def compute_segment_bytes(self, token_count: int) -> int:
        """Returns the size in bytes of all segment files of a document of `token_count` tokens."""
        whole, rest = divmod(token_count, self.segment)
        size = whole * self.locate_layers(self.segment)[-1].stop
        return size + (self.locate_layers(rest)[-1].stop if rest else 0)

    def to_json(self) -> dict[str, Any]:
        """Returns the layout as JSON data for a manifest, and for the hash in a segment's name."""
        data = {**vars(self), "reduced": list(self.reduced), "shapes": [*map(list, self.shapes)]}
        # Usual values are left out, so that segments stored before these settings keep their names.
        for name, usual in (("shared", False), ("block", self.dim), ("states", 0), ("shapes", [])):
            if data[name] == usual:
                del data[name]
        return data


@lru_cache(maxsize=1024)
def _compute_layer_layout(layout: Layout, layer: int) -> Layout:
    heads, dim = layout.shapes[layer]
    reduced = (layout.reduced[layer],)
    return replace(layout, layers=1, heads=heads, dim=dim, block=dim, reduced=reduced, shapes=())


def compute_segment_hashes(identity: str, token_ids: Sequence[int], layout: Layout) -> list[str]:
    """Returns a hash for each segment of a document's KV cache, of all tokens up to its end."""
    shape = json.dumps(layout.to_json(), sort_keys=True).encode()
    fitted = array("q", token_ids[: layout.fit]).tobytes()
    last = hash_byte_strings(b"segment", bytes([disk.FORMAT]), identity.encode(), shape, fitted)
    prefixes = []
    for start in range(0, len(token_ids), layout.segment):
        tokens = array("q", token_ids[start : start + layout.segment])
        last = hash_byte_strings(last, tokens.tobytes())
        prefixes.append(last.hex())
    return prefixes


def extract_segment_hash(segment_name: str) -> str:
    return segment_name.partition("-")[0]


_Mark = (
    tuple[int, int | None, str | None, int | None, str | None, str | None, int | None]
    | tuple[int, int | None, str | None, int | None, str | None, str | None]
    | tuple[int, int | None, str | None]
)
"""A mark as today's version stores it, or as one of two earlier versions did."""


@dataclass(frozen=True)
class LibraryEntry:
    """The manifest of a document stored in the library."""

    key: str  # the document's name in the library
    identity: str = ""  # model and settings of the prefill
    layout: Layout = Layout(1, 1, 1, "float32")
    tokens: int = 0  # number of tokens, including `head` tokens of the prompt
    head: int = 0
    segments: tuple[str, ...] = ()  # names
    fit: str = NO_FIT  # the name of the projections
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of segments, fit, unshared files
    digests: dict[str, str] = field(default_factory=dict)  # of the files of text and tokens
    text_sha256: str = ""
    characters: int = 0
    marks: tuple[_Mark, ...] = ()  # pages, chapters, titles
    provenance: dict[str, Any] = field(default_factory=dict)  # `name`, `source` and more
    created: float = 0.0  # seconds since 1970
    used: float = 0.0  # seconds since 1970 of the last time of opening
    # Why the document is unusable; other fields are then empty.
    error: LibraryError | None = field(default=None, compare=False)
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT | {"arbitrary_types_allowed": True}

    @property
    def id(self) -> str:
        return self.key[:12]

    def raise_error_if_unusable(self) -> None:
        if self.error:
            raise self.error

    @property
    def unshared_file_suffixes(self) -> tuple[str, ...]:
        """The suffixes of the files that belong to this document alone, but not the manifest's."""
        return ("text", "tokens", "states") if self.layout.states else ("text", "tokens")

    @property
    def damage_reason(self) -> str:
        """The reason why the document cannot be used, or an empty text for a good document."""
        return self.error.message if self.error else ""

    @property
    def health(self) -> str:
        """The document's condition: `good`, `damaged`, `another format` or `unreadable`."""
        if isinstance(self.error, LibraryFileVersionError):
            return "another format"
        if isinstance(self.error, UnreadableError):
            return "unreadable"
        return "damaged" if self.error else "good"

    @property
    def name(self) -> str:
        return str(self.provenance.get("name", ""))

    @property
    def file_path(self) -> str:
        """The absolute path of the file that was ingested, or an empty text for other sources."""
        path = str(self.provenance.get("path") or self.provenance.get("source", ""))
        return path if os.path.isabs(path) else ""

    @property
    def kv_format(self) -> str:
        """The format of the stored KV cache (`int8` or `native`), or `index` for a token index."""
        return str(self.provenance.get("rows", self.layout.kind))

    @property
    def nbytes(self) -> int:
        """Number of the document's bytes on disk, including files shared with other documents."""
        return sum(self.sizes.values())

    def count_segment_tokens(self, segment_index: int) -> int:
        return min(self.layout.segment, self.tokens - segment_index * self.layout.segment)

    def to_json(self) -> dict[str, Any]:
        """Returns the document's facts as JSON data, as `esa library list --json` prints them."""
        known = {"id": self.id, "key": self.key}
        if self.error:
            return known | {"state": self.health, "damage": self.damage_reason}
        return {
            **known,
            **{name: getattr(self, name) for name in ("name", "tokens", "characters")},
            "bytes": self.nbytes,
            "created": self.created,
            "used": self.used,
            **{name: self.provenance.get(name) for name in ("model", "preset", "esa")},
            "rows": self.kv_format,
            "identity": self.identity,
            "layout": self.layout.to_json(),
            "provenance": self.provenance,
        }

    def make_manifest_fields(self) -> dict[str, Any]:
        stored = asdict(self) | {"layout": self.layout.to_json()}
        del stored["used"], stored["error"]
        return stored


def write_manifest(paths: LibraryPaths, entry: LibraryEntry) -> None:
    """Writes a document's manifest, after which the library has the document. Raises OSError."""
    payload = json.dumps(entry.make_manifest_fields(), sort_keys=True, indent=1).encode()
    form = disk.WITH_STATES if entry.layout.states else disk.FORMAT
    form = disk.WITH_SHAPES if entry.layout.shapes else form
    path = paths.get_document_path(entry.key)
    disk.write_checksummed_file(path, payload, entry.key, form)


def read_manifest(paths: LibraryPaths, document_key: str) -> LibraryEntry:
    """Reads a document's manifest and time of last use. Raises LibraryError: the manifest is
    missing, damaged, of another format, or belongs to another document."""
    data = disk.read_file_bytes(paths.get_document_path(document_key), document_key)
    entry = decode_manifest(paths, document_key, data)
    return replace(entry, used=paths.read_time_of_last_use(document_key, entry.created))


def decode_manifest(paths: LibraryPaths, document_key: str, manifest_bytes: bytes) -> LibraryEntry:
    """Decodes a manifest. Raises LibraryError, as `read_manifest`."""
    path = paths.get_document_path(document_key)
    payload = disk.unpack_checksummed_file(manifest_bytes, path, document_key)
    stored = json.loads(payload)
    if stored["key"] != document_key:
        raise disk.make_damage_error(path, "it is the manifest of another document", document_key)
    layout = Layout(**stored.pop("layout"))
    lists: dict[str, Any] = {name: tuple(stored.pop(name)) for name in ("segments", "marks")}
    return LibraryEntry(layout=layout, **lists, **stored)


def read_manifests(
    paths: LibraryPaths, document_keys: Iterable[str] | None = None
) -> list[LibraryEntry]:
    """Reads the manifests of the given documents, or of all documents, sorted by last use. The
    entry of an unusable document has an `error`. Raises LibraryError: the folder is unreadable."""
    entries = list[LibraryEntry]()
    for key in paths.list_document_keys() if document_keys is None else document_keys:
        try:
            entries.append(read_manifest(paths, key))
        except LibraryError as error:
            if paths.has_document(key):  # else another process has removed it
                used = paths.read_time_of_last_use(key, 0.0)
                entries.append(LibraryEntry(key, used=used, error=error))
    return sorted(entries, key=lambda entry: (-entry.used, entry.key))


def read_document_text(paths: LibraryPaths, entry: LibraryEntry) -> str:
    """Reads a stored document's text. Raises LibraryError: the text is missing or damaged."""
    path = paths.get_document_path(entry.key, "text")
    payload = disk.read_checksummed_file(path, entry.key, entry.digests["text"])
    return payload.decode("utf-8", "surrogatepass")


def list_document_files(paths: LibraryPaths, entry: LibraryEntry) -> list[Path]:
    """Returns the paths of all files of a stored document, except its manifest."""
    fit = [] if entry.fit == NO_FIT else [paths.get_projections_path(entry.fit)]
    files = [paths.get_document_path(entry.key, kind) for kind in entry.unshared_file_suffixes]
    return [*map(paths.get_segment_path, entry.segments), *fit, *files]


def encode_rows(rows: Tensor, layout: Layout) -> Tensor:
    """Encodes keys and values, one row (of `width` numbers) per token, as bytes to be stored."""
    import torch

    if layout.kind == "native":
        return rows.contiguous().view(torch.uint8)
    blocks = rows.float().view(rows.shape[0], -1, layout.block)
    scales = blocks.abs().amax(dim=2) / 127
    steps = torch.where(scales > 0, scales, torch.ones_like(scales))
    numbers = (blocks / steps[:, :, None]).round().clamp(-127, 127).to(torch.int8)
    flat = numbers.view(rows.shape[0], layout.width).view(torch.uint8)
    return torch.cat((flat, scales.view(torch.uint8)), dim=1)


def decode_records(
    records: Tensor, layout: Layout, vector_indices: slice | list[int] = slice(None)
) -> Tensor:
    """Decodes stored bytes, one row per token, to keys and values, or only to the key and value
    vectors with the numbers `vector_indices`."""
    import torch

    dtype: torch.dtype = getattr(torch, layout.dtype)
    shape = records.shape[0], layout.vectors_per_token, layout.dim
    if layout.kind == "native":
        return records.view(dtype).view(shape)[:, vector_indices].flatten(1)
    numbers = records[:, : layout.width].view(torch.int8)
    scales = records[:, layout.width :].clone(memory_format=torch.contiguous_format)
    # One pass over the numbers; a conversion to floats first would be a second.
    blocks = *shape[:2], layout.dim // layout.block, layout.block
    steps = scales.view(torch.float32).view(*blocks[:3], 1)
    return (numbers.view(blocks)[:, vector_indices] * steps[:, vector_indices]).flatten(1).to(dtype)


def _compute_token_checksums(
    records: memoryview, record_bytes: int, segment_name: str, layer: int, token_numbers: Any
) -> Any:
    """Returns a checksum of each given token's stored keys and values in one layer of a segment."""
    import numpy
    import xxhash

    digest = xxhash.xxh3_64_intdigest
    sums = [digest(records[row * record_bytes :][:record_bytes]) for row in token_numbers.tolist()]
    base = hashlib.blake2b(f"{segment_name}/{layer}".encode(), digest_size=8).digest()
    numbers = token_numbers.astype(numpy.uint64)
    salts = (numbers + numpy.frombuffer(base, "<u8")) * numpy.uint64(_ODD)
    return numpy.array(sums, dtype=numpy.uint64) ^ salts


def write_segment_file(
    path: Path, document_key: str, layout: Layout, token_count: int,
    layers: Iterable[tuple[Tensor, Tensor | None]],
) -> None:  # fmt: skip
    """Writes a segment file with the KV cache of n tokens of a locked document: each layer's keys
    and values (n, width) and reduced keys (n, R). Raises OSError."""
    import numpy
    import torch
    import xxhash

    record_sums, tail_sums = list[str](), list[str]()
    with disk.create_file_atomically(path, document_key) as file:
        file.write(bytes(layout.header_byte_count))
        sections = zip(layers, layout.locate_layers(token_count), strict=True)
        for layer, ((rows, reduced), section) in enumerate(sections):
            array: Any = encode_rows(rows.cpu(), layout.make_layer_layout(layer)).numpy()
            records = memoryview(array).cast("B")
            if len(records) != section.rows_stop - section.start:
                raise ValueError(f"keys and values must fit the layout, got {tuple(rows.shape)}")
            size, numbers = layout.make_layer_layout(layer).row_bytes, numpy.arange(token_count)
            sums = _compute_token_checksums(records, size, path.stem, layer, numbers).astype("<u8")
            features = torch.empty(0) if reduced is None else reduced.cpu().contiguous()
            keys = features.view(torch.uint8).numpy().tobytes()
            tail = bytes(section.reduced - section.rows_stop)
            tail += keys.ljust(section.sums - section.reduced, b"\0") + sums.tobytes()
            tail = tail.ljust(section.stop - section.rows_stop, b"\0")
            record_sums.append(xxhash.xxh3_128_hexdigest(records))
            tail_sums.append(xxhash.xxh3_128_hexdigest(tail))
            file.write(records)
            file.write(tail)
        facts = {
            "name": path.stem, "layout": layout.to_json(), "tokens": token_count,
            "records": record_sums, "tails": tail_sums,
        }  # fmt: skip
        text, size = json.dumps(facts, sort_keys=True).encode(), layout.header_byte_count
        line_bytes = len(disk.pack_checksummed_file("segment", bytes(size))[0]) - size
        header, _ = disk.pack_checksummed_file("segment", text.ljust(size - line_bytes))
        assert len(header) == size, "the header must fill its pages"
        file.seek(0)
        file.write(header)


class KVSegmentFile:
    """A memory-mapped file with the KV cache of up to 4,096 tokens. Raises LibraryError: the file
    is missing, its header is damaged, or the file is of another format or another segment."""

    def __init__(self, path: Path, layout: Layout, tokens: int, key: str) -> None:
        import torch

        self.path, self.layout, self.tokens, self.key = path, layout, tokens, key
        (self.name, _), self.sections = disk.split_file_name(path), layout.locate_layers(tokens)
        expected = {"name": self.name, "layout": layout.to_json(), "tokens": tokens}
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read(layout.header_byte_count)
        except OSError as error:
            raise disk.make_file_reading_error(path, error, key) from error
        facts = json.loads(disk.unpack_checksummed_file(data, path, key))
        found = {name: facts[name] for name in expected}
        if found != expected or size != self.sections[-1].stop:
            raise disk.make_damage_error(path, "it is another segment, or is cut off", key)
        self.record_sums, self.tail_sums = facts["records"], facts["tails"]
        # torch's own mapping keeps no file open: a hundred documents would be thousands. Outside
        # inference mode, because a segment opened while a model runs is read later, too.
        with torch.inference_mode(False):
            self.bytes = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)

    def verify_all_bytes(self) -> None:
        for layer in range(self.layout.layers):
            KVSegmentLayer(self, layer).read_encoded_tokens(0, self.tokens)


class KVSegmentLayer:
    """One layer's keys, values, reduced keys and checksums in a memory-mapped segment file. The
    bytes are checked against their checksums when they are read for the first time."""

    def __init__(self, segment: KVSegmentFile, layer: int) -> None:
        import numpy

        self.segment, self.layer = segment, layer
        self.layout, self.section = segment.layout.make_layer_layout(layer), segment.sections[layer]
        rows_stop, stop = self.section.rows_stop, self.section.stop
        self._records = segment.bytes[self.section.start : rows_stop].view(len(self), -1)
        self._tail, self._is_tail_good = segment.bytes[rows_stop:stop], False
        self._are_rows_good = numpy.zeros(len(self), dtype=bool)

    def __len__(self) -> int:
        return self.segment.tokens

    def _make_damaged_layer_error(self, changed_part: str) -> LibraryError:
        reason = f"{changed_part} of layer {self.layer} changed"
        return disk.make_damage_error(self.segment.path, reason, self.segment.key)

    def read_reduced_keys_or_checksums(self, file_offset: int, byte_count: int) -> Tensor:
        """Returns the `byte_count` bytes from `file_offset` on in the segment file, which must be
        reduced keys or checksums of the layer. Raises LibraryError: the bytes are damaged."""
        import xxhash

        if not self._is_tail_good:
            array: Any = self._tail.numpy()
            if xxhash.xxh3_128_hexdigest(array) != self.segment.tail_sums[self.layer]:
                raise self._make_damaged_layer_error("reduced keys or checksums")
            self._is_tail_good = True
        return self._tail[file_offset - self.section.rows_stop :][:byte_count]

    def verify_token_checksums(self, token_numbers: Any) -> None:
        """Checks the keys and values of some tokens, once. Raises LibraryError: a byte changed."""
        import xxhash

        good, segment, array = self._are_rows_good, self.segment, self._records.numpy()
        stored: Any = self.read_reduced_keys_or_checksums(self.section.sums, 8 * len(self)).numpy()
        records = memoryview(array).cast("B")  # type: ignore[arg-type]
        new = token_numbers[~good[token_numbers]]
        # Many rows are checked at once; if any row changed, the rows' own checksums say which.
        if SCAN * new.size >= len(self):
            good |= xxhash.xxh3_128_hexdigest(records) == segment.record_sums[self.layer]
            new = token_numbers[~good[token_numbers]]
        if new.size:
            size = self.layout.row_bytes
            sums = _compute_token_checksums(records, size, segment.name, self.layer, new)
            wrong = new[sums != stored.view("<u8")[new]]
            if wrong.size:
                raise self._make_damaged_layer_error(f"row {wrong[0]}")
            good[new] = True

    def read_encoded_tokens(self, first_token: int, end_token: int) -> Tensor:
        """Returns the stored bytes of a range of tokens, one row per token. Raises LibraryError."""
        import numpy

        self.verify_token_checksums(numpy.arange(first_token, end_token))
        return self._records[first_token:end_token]

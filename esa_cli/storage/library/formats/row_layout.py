"""The shape of stored rows, and byte offsets in a segment file.

A segment file is a checksummed header, padded to whole pages, and one section for each layer:

    rows        n records, one for each token: keys, then values of all heads, unless the keys are
                the values; as they are (native) or as bytes followed by a float32 scale for each
                block of them: of the 2 * G heads, or a part of one (int8)
    reduced     n reduced keys (R numbers), if the layer has any
    checksums   n of 64 bits, one for each record

Each begins at a multiple of 64 bytes, each section at a multiple of 4,096.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

SEGMENT = 4096
"""Tokens of a segment; the last one of a document may have fewer."""
PAGE = 4096
_LINE = 64
ITEM = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number of each dtype that can be stored."""
OTHER_BYTES = 48
"""Upper bound of a token's bytes beside its rows: id and offsets (24), text, projections."""


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
    """The shape of what is stored of each token.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "block", self.block or self.dim)
        object.__setattr__(self, "reduced", tuple(self.reduced) or (0,) * self.layers)
        object.__setattr__(self, "reduced_dtype", self.reduced_dtype or self.dtype)
        object.__setattr__(self, "shapes", tuple((g, d) for g, d in self.shapes))
        if self.shapes and (len(self.shapes) != self.layers or self.block != self.dim):
            raise ValueError(f"shapes must be {self.layers}, without a block, got {self.shapes}")
        if min(self.layers, self.heads, self.dim, self.segment, *sum(self.shapes, ())) < 1:
            raise ValueError("layers, heads, dim and segment must be positive")
        if min(self.fit, self.states) < 0:
            raise ValueError("fit and states must be at least 0")
        if self.block < 1 or self.dim % self.block:
            raise ValueError(f"block must divide dim {self.dim}, got {self.block}")
        if self.dtype not in ITEM or self.reduced_dtype not in ITEM:
            raise ValueError(f"dtype must be one of {', '.join(ITEM)}, got {self.dtype}")
        if self.kind not in ("native", "int8"):
            raise ValueError(f"kind must be native or int8, got {self.kind}")
        if len(self.reduced) != self.layers or min(self.reduced) < 0:
            raise ValueError(
                f"reduced must be {self.layers} numbers, none negative, got {self.reduced}"
            )

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
        found, start = [], self.header_bytes
        for layer, width in enumerate(self.reduced):
            rows_stop = start + tokens * self.of(layer).row_bytes
            reduced = _up(rows_stop, _LINE)
            sums = _up(reduced + tokens * width * ITEM[self.reduced_dtype], _LINE)
            found.append(Section(start, rows_stop, reduced, sums, _up(sums + tokens * 8, PAGE)))
            start = found[-1].stop
        return found

    def segment_bytes(self, tokens: int) -> int:
        """The length of a segment file of so many tokens."""
        return self.sections(tokens)[-1].stop

    def nbytes(self, tokens: int) -> int:
        """The length of all segment files of a document of so many tokens."""
        whole, rest = divmod(tokens, self.segment)
        size = whole * self.segment_bytes(self.segment)
        return size + (self.segment_bytes(rest) if rest else 0)

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

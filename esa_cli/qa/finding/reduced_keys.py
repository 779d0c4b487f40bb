"""The keys of a document's tokens in memory, as the library stores them: a byte a number."""

from __future__ import annotations

import torch
from torch import Tensor

from esa_cli.storage.library import SEGMENT, Layout
from esa_cli.storage.library.formats.segment import decode, encode

SEGMENT_TOKENS = 512
"""Tokens of a document that are encoded together."""
CONTEXT_TOKENS = 64
"""Tokens before a segment that its own ones see."""
PIECE = 4 * SEGMENT_TOKENS
"""Tokens encoded at once; a segment of the library is whole pieces."""


def index_layout(dim: int) -> Layout:
    """The layout of a token index with reduced keys of R = `dim` numbers, an even number.

    A reduced key is a row of one layer with one head: its first half stands in the place of the
    key, its second half in that of the value, each with a scale of its own. Eight bits, for the
    keys have unit length. Nothing is reduced further, and no prompt's head is before the text.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"the numbers of a reduced key must be even, got {dim}")
    return Layout(layers=1, heads=1, dim=dim // 2, dtype="float32", kind="int8", segment=SEGMENT)


class ReducedKeys:
    """The keys (N, R) of a document's tokens: a quarter of the bytes of float32.

    Args:
        records: (N, row_bytes) bytes, as `int8_rows.encode` makes them. layout: theirs.
    """

    def __init__(self, records: Tensor, layout: Layout) -> None:
        self.records, self.layout = records, layout
        assert records.shape[1] == layout.row_bytes, "records must be of this many numbers"

    @classmethod
    def of(cls, keys: Tensor, layout: Layout) -> ReducedKeys:
        """Keys (n, R), rounded."""
        return cls(encode(keys, layout), layout)

    @classmethod
    def empty(cls, tokens: int, layout: Layout) -> ReducedKeys:
        """Room for the keys of so many tokens, not set."""
        return cls(torch.empty((tokens, layout.row_bytes), dtype=torch.uint8), layout)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, R)."""
        return self.records.shape[0], self.layout.width

    @property
    def nbytes(self) -> int:
        return self.records.nbytes

    def rows(self, start: int, stop: int) -> Tensor:
        """Keys (stop - start, R) float32 of the tokens [start, stop)."""
        return decode(self.records[start:stop], self.layout)

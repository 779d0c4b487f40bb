"""The keys of a document's tokens in memory, as the library stores them: a byte a number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esa_cli.storage.library import SEGMENT, Layout
from esa_cli.storage.library.formats.segment import decode, encode


def index_layout(dim: int) -> Layout:
    """The layout of a token index with reduced keys of R = `dim` numbers, an even number.

    A reduced key is a row of one layer with one head: its first half stands in the place of the
    key, its second half in that of the value, each with a scale of its own. Eight bits, for the
    keys have unit length. Nothing is reduced further, and no prompt's head is before the text.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"the numbers of a reduced key must be even, got {dim}")
    return Layout(layers=1, heads=1, dim=dim // 2, dtype="float32", kind="int8", segment=SEGMENT)


def voting_layout(heads: int, dim: int) -> Layout:
    """The layout of a token index with the keys of so many key heads of D = `dim` numbers.

    A token's keys are a row of one layer without values, each with a scale of its own: some heads'
    keys are much longer than others'.
    """
    return Layout(
        layers=1, heads=heads, dim=dim, dtype="float32", kind="int8", segment=SEGMENT, shared=True
    )


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

    def rows(
        self,
        start: int,
        stop: int,
        heads: Sequence[int] | None = None,
        device: torch.device | None = None,
    ) -> Tensor:
        """Keys (stop - start, R) float32 of the tokens [start, stop).

        Args:
            heads: only of these, in this order: (stop - start, len(heads) * D). device: where they
                are decoded; None: on the processor.
        """
        records = self.records[start:stop]
        return decode(records if device is None else records.to(device), self.layout, heads)

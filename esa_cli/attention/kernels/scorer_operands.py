"""What a scoring kernel computes on: padded queries, groups of blocks of keys, and tile sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

TYPES = (torch.float16, torch.bfloat16, torch.float32)


Tables = dict[tuple[int, ...], Tensor]
"""Tables of blocks (`KeyGroup.table`) by their numbers."""


@dataclass(frozen=True)
class Tiles:
    """Sizes of a kernel's tile: queries, tokens, and numbers of a key multiplied at a time."""

    queries: int
    tokens: int
    numbers: int


def tiles_for(chunk: int, rank: int, dtype: torch.dtype) -> Tiles:
    """Tiles for C queries and keys of R numbers: powers of two from 16, as tensor cores need.

    Two stages of loads of the largest take 96 KB, which every GPU since Ampere has. Not measured.
    """
    if dtype == torch.float32:
        return Tiles(_power_of_two(chunk, 64), 64, 32)
    # Larger keys are multiplied in parts; their last part is padded.
    numbers = _power_of_two(rank, 128) if rank <= 128 else 64
    return Tiles(_power_of_two(chunk, 128), 128, numbers)


def _power_of_two(count: int, most: int) -> int:
    return min(most, max(16, 1 << (count - 1).bit_length()))


@dataclass(frozen=True)
class TileQueries:
    """Reduced queries in the keys' dtype, padded with zeros to whole tiles.

    Args:
        rounded: (C', R'). scales: (C',) float32 powers of two by which products are multiplied;
            None: 1. chunk: C. rank: R.
    """

    rounded: Tensor
    scales: Tensor | None
    chunk: int
    rank: int
    tiles: Tiles

    @property
    def filled(self) -> bool:
        """Whether a key fills its tiles, without padding."""
        return self.rounded.shape[1] == self.rank

    def pad_maxima(self, maxima: Tensor) -> Tensor:
        """Maxima (C,) as (C',): inf for padding, whose scores are then -inf."""
        more = self.rounded.shape[0] - self.chunk
        return functional.pad(maxima, (0, more), value=float("inf")) if more else maxima


def tile_queries(queries: Tensor, dtype: torch.dtype) -> TileQueries:
    """Queries (C, R) float32 for keys of `dtype`.

    A query of a float16 model, summed over heads and mapped, can be beyond float16: each is divided
    by a power of two, which changes none of its digits.
    """
    chunk, rank = queries.shape
    tiles = tiles_for(chunk, rank, dtype)
    pad = (0, -rank % tiles.numbers, 0, -chunk % tiles.queries)
    padded = functional.pad(queries, pad) if any(pad) else queries
    scales = None
    if dtype == torch.float16:
        _, exponent = torch.frexp(padded.abs().amax(dim=1))
        scales = torch.ldexp(torch.ones_like(padded[:, 0]), exponent - 15)
        padded = padded / scales[:, None]
    return TileQueries(padded.to(dtype).contiguous(), scales, chunk, rank, tiles)


@dataclass(frozen=True)
class KeyGroup:
    """Blocks of keys on one device with the same queries: one launch of a kernel.

    Args:
        blocks: keys (n, R) each, all of one dtype and row stride. offsets: of their first tokens,
            into M. tables: those made before, which are used again.
    """

    queries: TileQueries
    blocks: Sequence[Tensor]
    offsets: Sequence[int]
    tables: Tables = field(default_factory=dict)

    @cached_property
    def table(self) -> Tensor:
        """(3, blocks) int64 on the keys' device: addresses, tokens and offsets of the blocks."""
        addresses = [block.data_ptr() for block in self.blocks]
        rows = (*addresses, *(block.shape[0] for block in self.blocks), *self.offsets)
        if rows not in self.tables:
            table, device = torch.tensor(rows).view(3, -1), self.queries.rounded.device
            if device.type == "cuda":
                # From pinned memory, since other copies wait for the device.
                table = table.pin_memory().to(device, non_blocking=True)
            self.tables[rows] = table
        return self.tables[rows]

    @property
    def longest(self) -> int:
        """Tokens of the longest block."""
        return max(block.shape[0] for block in self.blocks)


class ScoringKernel(Protocol):
    """The two passes of Eqs. (3)-(4) over one group."""

    def query_maxima(self, group: KeyGroup) -> Tensor:
        """(C,) float32: each query's maximum product over the group's tokens."""
        ...

    def chunk_maxima(self, group: KeyGroup, maxima: Tensor, out: Tensor) -> None:
        """Writes each token's maximum over the queries of its product less `maxima` (C,) to its
        place in `out` (M,)."""
        ...

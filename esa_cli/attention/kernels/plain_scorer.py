"""The tiles of `triton_scorer` in plain torch: the kernel's algorithm, on any device.

Slow; for tests, which compare both with loops, and this one also where Triton is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from esa_cli.attention.kernels.scorer_operands import KeyGroup

NOTHING = float("-inf")


class PlainScorer:
    """See `ScoringKernel`."""

    def query_maxima(self, group: KeyGroup) -> Tensor:
        queries = group.queries
        best = queries.rounded.new_full((queries.rounded.shape[0],), NOTHING, dtype=torch.float32)
        for _, rows, sums in _tiles(group):
            best[rows] = torch.maximum(best[rows], sums.amax(dim=1))
        return best[: queries.chunk]

    def chunk_maxima(self, group: KeyGroup, maxima: Tensor, out: Tensor) -> None:
        padded = group.queries.pad_maxima(maxima)
        for block, offset in zip(group.blocks, group.offsets, strict=True):
            out[offset : offset + block.shape[0]] = NOTHING
        for tokens, rows, sums in _tiles(group):
            scores = (sums - padded[rows, None]).amax(dim=0)
            out[tokens] = torch.maximum(out[tokens], scores)


def _tiles(group: KeyGroup) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yields (tokens of M, padded queries, products) of each tile; products (QUERIES, n)."""
    queries, tiles = group.queries, group.queries.tiles
    for block, offset in zip(group.blocks, group.offsets, strict=True):
        for start in range(0, block.shape[0], tiles.tokens):
            keys = block[start : start + tiles.tokens].float()
            tokens = slice(offset + start, offset + start + keys.shape[0])
            for first in range(0, queries.rounded.shape[0], tiles.queries):
                rows = slice(first, first + tiles.queries)
                yield tokens, rows, _products(group, rows, keys)


def _products(group: KeyGroup, rows: slice, keys: Tensor) -> Tensor:
    """(QUERIES, n): numbers of a key are multiplied and added part by part, in float32."""
    queries, step = group.queries, group.queries.tiles.numbers
    q = queries.rounded[rows].float()
    sums = q.new_zeros(q.shape[0], keys.shape[0])
    for first in range(0, queries.rank, step):
        part = keys[:, first : first + step]
        sums += q[:, first : first + part.shape[1]] @ part.T
    if queries.scales is not None:
        sums = sums * queries.scales[rows, None]
    # As on a GPU, whose maxima leave NaN out: an infinite key times the zeros of padding.
    return torch.where(sums.isnan(), NOTHING, sums)

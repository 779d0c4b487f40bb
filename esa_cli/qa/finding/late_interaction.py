"""Late interaction: scores of windows of tokens by reduced queries and keys.

A window's score is the sum over the question's tokens of their weight times the largest product
with a key in the window: the form of Eqs. (3) and (4), with a window in place of the whole text.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esa_cli.storage.library import SEGMENT, Layout
from esa_cli.storage.library.segment import decode, encode

SEGMENT_TOKENS = 512
"""Tokens of a document that are encoded together."""
CONTEXT_TOKENS = 64
"""Tokens before a segment that its own ones see."""
PIECE = 4 * SEGMENT_TOKENS
"""Tokens encoded at once; a segment of the library is whole pieces."""


def index_layout(dim: int) -> Layout:
    """The layout of a token index with reduced keys of R = `dim` numbers, an even number: rows of
    one layer with one head. The first half takes the place of the key, the second half that
    of the value, each with a scale of its own; eight bits, for the keys have unit length."""
    if dim < 2 or dim % 2:
        raise ValueError(f"the numbers of a reduced key must be even, got {dim}")
    return Layout(layers=1, heads=1, dim=dim // 2, dtype="float32", kind="int8", segment=SEGMENT)


class ReducedKeys:
    """The keys (N, R) of a document's tokens: a quarter of the bytes of float32.

    Args:
        records: (N, row_bytes) bytes, as `segment.encode` makes them. layout: theirs.
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


TILE = 4096
"""Tokens whose keys are decoded at once: 2 MB of R = 128 numbers, which stay in the CPU's
cache until they are multiplied."""


def window_products(
    queries: Tensor, keys: Tensor | ReducedKeys, first: Tensor, last: Tensor
) -> Tensor:
    """The largest product of each query with a key in each window [first, last) of tokens, (W, M)
    float32; -1 for windows without tokens.

    The keys are read once, tile by tile, and nothing is kept that grows with N times R or M.

    Args:
        queries: (M, R). keys: (N, R). first, last: (W,).
    """
    first, last = first.contiguous(), last.contiguous()
    nothing = queries.new_full((first.shape[0], queries.shape[0]), -1.0, dtype=torch.float32)
    bounds = torch.unique(torch.cat((first, last)))
    if bounds.numel() < 2 or not keys.shape[0]:
        return nothing
    best = _largest_products(queries.float(), keys, bounds)
    begin, end = torch.searchsorted(bounds, first), torch.searchsorted(bounds, last)
    most = best[begin.clamp(max=best.shape[0] - 1)]
    for step in range(1, int((end - begin).max())):
        most = most.maximum(best[(begin + step).minimum(end - 1).clamp(min=0)])
    return torch.where((last > first)[:, None], most, nothing)


def products_around(products: Tensor, windows: int) -> Tensor:
    """The largest of the products (W, M) of each window and of `windows` before and after it."""
    if not products.shape[0]:
        return products
    size, columns = 2 * windows + 1, products.T[:, None]
    return nn.functional.max_pool1d(columns, size, 1, windows)[:, 0].T


def _largest_products(queries: Tensor, keys: Tensor | ReducedKeys, bounds: Tensor) -> Tensor:
    """The largest product of each query with a key between two neighbouring of the ascending bounds
    (B,): (B - 1, M). Windows overlap, so these are multiplied once for all windows."""
    best = queries.new_full((bounds.shape[0] - 1, queries.shape[0]), -torch.inf)
    low, high = int(bounds[0]), int(bounds[-1])
    starts = torch.arange(low, high, TILE)
    # The bounds inside each tile, after its first token.
    inner = torch.searchsorted(bounds, torch.stack((starts, (starts + TILE).clamp(max=high)), 1))
    after = torch.searchsorted(bounds, starts, right=True).tolist()
    for start, from_bound, (_, to_bound) in zip(
        starts.tolist(), after, inner.tolist(), strict=True
    ):
        stop = min(start + TILE, high)
        rows = keys.rows(start, stop) if isinstance(keys, ReducedKeys) else keys[start:stop].float()
        cuts = bounds[from_bound:to_bound]
        edges = torch.cat((cuts.new_tensor([start]), cuts, cuts.new_tensor([stop])))
        most = torch.segment_reduce(rows @ queries.T, "max", lengths=edges.diff(), axis=0)
        pieces = best[from_bound - 1 : to_bound]
        torch.maximum(pieces, most, out=pieces)
    return best

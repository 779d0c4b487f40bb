"""Late interaction scores windows by the largest products of reduced queries and reduced keys.

The score of a window is a weighted sum over the question's tokens of the largest product of each
token with a key in the window. The score has the form of Equations 3 and 4, in which the window is
the text.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from esa_cli.storage.library import SEGMENT, Layout
from esa_cli.storage.library.segment import decode, encode

SEGMENT_TOKENS = 512
"""The number of document tokens that are encoded together."""
CONTEXT_TOKENS = 64
"""The number of tokens before a segment that are encoded together with the segment as context."""
PIECE = 4 * SEGMENT_TOKENS
"""The number of tokens encoded in one call, of which a segment of the library is a multiple."""
TILE = 4096
"""The number of tokens whose keys are decoded at once: 2 MB with R = 128 fit the CPU's cache."""


def index_layout(dim: int) -> Layout:
    """Returns the layout of reduced keys of dimension `dim`, stored as halves: key and value."""
    if dim < 2 or dim % 2:
        raise ValueError(f"the dimension of a reduced key must be even, got {dim}")
    return Layout(layers=1, heads=1, dim=dim // 2, dtype="float32", kind="int8", segment=SEGMENT)


class ReducedKeys:
    """The reduced keys (N, R) of a document's tokens, stored as uint8 records (N, row_bytes)."""

    def __init__(self, records: Tensor, layout: Layout) -> None:
        assert records.shape[1] == layout.row_bytes, "records must have the bytes of the layout"
        self.records, self.layout = records, layout

    @classmethod
    def of(cls, keys: Tensor, layout: Layout) -> ReducedKeys:
        """Rounds keys (n, R) to the number format of the layout."""
        return cls(encode(keys, layout), layout)

    @classmethod
    def allocate(cls, tokens: int, layout: Layout) -> ReducedKeys:
        """Allocates uninitialised keys for `tokens` tokens."""
        return cls(torch.empty((tokens, layout.row_bytes), dtype=torch.uint8), layout)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, R)."""
        return self.records.shape[0], self.layout.width

    @property
    def nbytes(self) -> int:
        """The number of bytes that all records take."""
        return self.records.nbytes

    def decode_keys(self, start: int, stop: int) -> Tensor:
        """Decodes the keys (stop - start, R) of the tokens [start, stop) to float32."""
        return decode(self.records[start:stop], self.layout)


def window_products(
    queries: Tensor, keys: Tensor | ReducedKeys, first: Tensor, last: Tensor
) -> Tensor:
    """Returns the largest products (W, M) of queries (M, R) with keys (N, R) in W windows of tokens
    [first, last). The products are float32, and -1 for windows without tokens."""
    first, last = first.contiguous(), last.contiguous()
    empty = queries.new_full((first.shape[0], queries.shape[0]), -1.0, dtype=torch.float32)
    bounds = torch.unique(torch.cat((first, last)))
    if bounds.numel() < 2 or not keys.shape[0]:
        return empty
    # Windows overlap, so the tokens between two bounds are multiplied once for all windows.
    best = _products_between(queries.float(), keys, bounds)
    begin, end = torch.searchsorted(bounds, first), torch.searchsorted(bounds, last)
    largest = best[begin.clamp(max=best.shape[0] - 1)]
    for step in range(1, int((end - begin).max())):
        largest = largest.maximum(best[(begin + step).minimum(end - 1).clamp(min=0)])
    return torch.where((last > first)[:, None], largest, empty)


def _products_between(queries: Tensor, keys: Tensor | ReducedKeys, bounds: Tensor) -> Tensor:
    """Returns the largest products (B - 1, M) between neighbours of B ascending bounds."""
    best = queries.new_full((bounds.shape[0] - 1, queries.shape[0]), -torch.inf)
    low, high = int(bounds[0]), int(bounds[-1])
    for start in range(low, high, TILE):
        stop = min(start + TILE, high)
        if isinstance(keys, ReducedKeys):
            tile = keys.decode_keys(start, stop)
        else:
            tile = keys[start:stop].float()
        # The bounds inside this tile, after its first token, divide it.
        from_bound = int(torch.searchsorted(bounds, start, right=True))
        to_bound = int(torch.searchsorted(bounds, stop))
        outer = bounds.new_tensor([start, stop])
        edges = torch.cat((outer[:1], bounds[from_bound:to_bound], outer[1:]))
        largest = torch.segment_reduce(tile @ queries.T, "max", lengths=edges.diff(), axis=0)
        pieces = best[from_bound - 1 : to_bound]
        torch.maximum(pieces, largest, out=pieces)
    return best


def pool_products(products: Tensor, windows: int) -> Tensor:
    """Returns the maximum of products (W, M) over each window and `windows` windows on each
    side."""
    if not products.shape[0]:
        return products
    size, columns = 2 * windows + 1, products.T[:, None]
    return nn.functional.max_pool1d(columns, size, 1, windows)[:, 0].T

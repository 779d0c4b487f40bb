"""The queries and keys whose products are a token's sums over heads: Eq. (3), or (6) if reduced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from esa_cli.attention.folding import flatten_keys
from esa_cli.attention.interfaces import KVStore, Projection
from esa_cli.attention.kernels.scorer_operands import Tables


class SumBlock(NamedTuple):
    """Queries and the keys of n neighbouring middle tokens.

    Args:
        offset: of the first token, into M. queries: (C, R) float32, the same tensor for all blocks
            that share maps. keys: (n, R) in the store's dtype; rows may have a stride.
    """

    offset: int
    queries: Tensor
    keys: Tensor


class SumOperands:
    """Blocks of keys of the middle tokens, with the queries for their maps.

    Args:
        folded: GQA-folded queries (C, F), float32. low, high: the middle tokens in the store.
        tables: of a kernel's blocks, for one step; None: new ones.
    """

    def __init__(
        self, folded: Tensor, store: KVStore, low: int, high: int, projection: Projection | None,
        tables: Tables | None = None,
    ) -> None:  # fmt: skip
        self.folded, self.store, self.projection = folded, store, projection
        self.low, self.high = low, high
        self.tables: Tables = {} if tables is None else tables
        # With the maps, so that no others get their id.
        self._reduced: dict[int, tuple[Projection, Tensor]] = {}

    def blocks(self, most: int) -> Iterator[SumBlock]:
        """Yields all of M in blocks of at most `most` tokens."""
        if self.projection is None:
            for at, keys in self.store.key_blocks(self.low, self.high, most):
                yield SumBlock(at - self.low, self.folded, flatten_keys(keys))
            return
        for at, features in self.store.feature_blocks(self.low, self.high, most):
            yield SumBlock(at - self.low, self._queries(self.projection.at(at)), features)

    def _queries(self, maps: Projection) -> Tensor:
        """Reduced queries (C, R) of a document's maps."""
        if id(maps) not in self._reduced:
            self._reduced[id(maps)] = maps, maps.queries(self.folded)
        return self._reduced[id(maps)][1]

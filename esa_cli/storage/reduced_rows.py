"""One layer's reduced keys: the part of a `KVStore` that is on the computing device in any case."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from esa_cli.storage.growing_rows import GrowingRows

BLOCK = 8192
"""Tokens of a block in a scan of keys: 6 MB with 3 heads of 64 floats, which fits a cache."""


class ReducedRows:
    """Reduced keys of the first tokens of a layer."""

    def __init__(self) -> None:
        self._features: GrowingRows | None = None
        self._expected = 0

    def expect(self, tokens: int) -> None:
        """Says how many tokens there will be, before the first."""
        self._expected = tokens

    @property
    def reduced(self) -> int:
        """The number of tokens that have a reduced key."""
        return self._features.length if self._features else 0

    def append_features(self, features: Tensor) -> None:
        """Adds reduced keys (n, R) for the next n tokens that have none."""
        if self._features is None:
            self._features = GrowingRows(features.shape[1], features.dtype, features.device)
            self._features.expect(self._expected)
        self._features.append(features)

    def feature_blocks(
        self, start: int, stop: int, most: int = BLOCK
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, reduced keys (n, R)) over [start, stop), n <= most."""
        assert self._features is not None, "the store must have reduced keys"
        yield from self._features.blocks(start, stop, most)

"""Positions, selections, projections and a layer's store: what a method's parts exchange.

Shapes in the letters of `esa_cli.attention`. No batch axis: one document, one sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Positions(NamedTuple):
    """Positions at which queries and keys are rotated; RoPE depends on their differences only."""

    query: Tensor
    """(C,) integers or floats, in tokens."""
    key: Tensor
    """(n,) likewise."""


Selection = Tensor | list[Tensor]
"""(K,) offsets into M, one selection for all heads; or H of them, one for each query head."""


class LayerState(ABC):
    """A selector's data about one layer's tokens, kept from step to step; see `Selector`."""

    @abstractmethod
    def crop(self, length: int) -> None:
        """Drops what depends on tokens from position `length` on, which were cropped."""


class Projection(ABC):
    """A fitted compressor of one layer (Eq. (5)): linear maps of folded queries and keys."""

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """(C, F) -> (C, R)."""

    @abstractmethod
    def keys(self, k: Tensor) -> Tensor:
        """(n, F) -> (n, R)."""

    def at(self, row: int) -> Projection:
        """The maps that reduced the key of this cached row; concatenated documents have several."""
        return self


class KVStore(Protocol):
    """Unrotated keys and values of one layer's N cached tokens: in the device's memory, the host's,
    or on disk."""

    heads: int
    dim: int
    shared: bool
    """Whether the keys are the values, too, and stored once."""

    @property
    def resident(self) -> bool:
        """Whether all rows are in the memory of the device that computes."""
        ...

    def __len__(self) -> int: ...

    def append(self, k: Tensor, v: Tensor) -> None:
        """Adds C tokens, k and v (G, C, D), unrotated; v is not stored where the keys are it."""
        ...

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of [start, stop), each (G, stop - start, D)."""
        ...

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at ascending positions (K,), each (G, K, D)."""
        ...

    def release(self) -> None:
        """Frees copies of rows, which are made again when they are needed."""
        ...

    def key_blocks(
        self, start: int, stop: int, most: int = ..., groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, keys (G, n, D)) over [start, stop).

        Args:
            groups: only of these key/value heads, in this order: (len(groups), n, D).
        """
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that its rows and reduced keys take, where they are."""
        ...

    @property
    def reduced(self) -> int:
        """How many tokens have a reduced key."""
        ...

    def append_features(self, features: Tensor) -> None:
        """Adds reduced keys (n, R) for the next n tokens without one."""
        ...

    def feature_blocks(
        self, start: int, stop: int, most: int = ...
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, reduced keys (n, R)) over [start, stop)."""
        ...

    def crop(self, tokens: int) -> None:
        """Removes the last -tokens tokens (negative, like transformers' caches)."""
        ...

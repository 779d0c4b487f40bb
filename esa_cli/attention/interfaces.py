"""What the parts of a method work on: positions, selections, projections and a layer's store.

Letters: H query heads, G key/value heads, D head dimension, C current tokens (the chunk), N cached
tokens, I initial, M middle, L local, K selected, F = G * D folded dimension, R reduced dimension.
There is no batch axis: one document, one sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Positions(NamedTuple):
    """Where queries and keys stand when they are rotated; only differences matter to RoPE."""

    query: Tensor
    """(C,) integers or floats, in tokens."""
    key: Tensor
    """(n,) likewise."""


Selection = Tensor | list[Tensor]
"""(K,) offsets into M, one selection for all heads; or H of them, one for each query head."""


class LayerState(ABC):
    """What a selector keeps of one layer's tokens from step to step; see `Selector`."""

    @abstractmethod
    def crop(self, length: int) -> None:
        """Drops what depends on tokens from position `length` on: they were taken back."""


class Projection(ABC):
    """A fitted compressor of one layer (Eq. (5)): linear maps of folded queries and keys."""

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """(C, F) -> (C, R)."""

    @abstractmethod
    def keys(self, k: Tensor) -> Tensor:
        """(n, F) -> (n, R)."""

    def at(self, row: int) -> Projection:
        """The maps by which the key of a cached row was reduced; joined documents have several."""
        return self


class KVStore(Protocol):
    """One layer's memory of N tokens; held in RAM, in host memory beside a GPU, or on disk."""

    heads: int
    dim: int

    def __len__(self) -> int: ...

    def append(self, k: Tensor, v: Tensor) -> None:
        """Adds C tokens, k and v (G, C, D), unrotated."""
        ...

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of [start, stop), each (G, stop - start, D)."""
        ...

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values at ascending positions (K,), each (G, K, D)."""
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
        """Bytes in use, reduced keys included."""
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
        """Takes back the last -tokens tokens (negative, like the host's cache)."""
        ...

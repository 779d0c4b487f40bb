"""The extension surface on one screen: what a selector, score, compressor or position encoding is.

Letters: H query heads, G key/value heads, D head dimension, C current tokens (the chunk), N cached
tokens, I initial, M middle, L local, K selected, F = G * D folded dimension, R reduced dimension.
There is no batch axis: one document, one sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from esa_cli.attention.compression import Moments
    from esa_cli.attention.step import Step


class Positions(NamedTuple):
    """Where queries and keys stand when they are rotated; only differences matter to RoPE."""

    query: Tensor
    """(C,) integers or floats, in tokens."""
    key: Tensor
    """(n,) likewise."""


@runtime_checkable
class Score(Protocol):
    """How much the current tokens want each middle token: F_s(m; C) of Eq. 2-3, or another rule.

    One more member is optional: `last: int | None`, the last layer in which any score is not 0.
    """

    @property
    def features(self) -> bool:
        """Whether `scores` reads reduced keys; when False none are computed or stored."""
        ...

    def scores(self, step: Step) -> Tensor:
        """(M,) float; higher is wanted more. -inf: not to be taken while another is left."""
        ...


Selection = Tensor | list[Tensor]
"""(K,) offsets into M, one selection for all heads; or H of them, one for each query head."""


@runtime_checkable
class Selector(Protocol):
    """Which middle tokens are attended to in this step.

    More is optional:
    - `sums_layers: bool`: it adds up what the layers' scores say; only then may a score let some
      layers' heads vote alone (`vote.heads`);
    - `allowance(step, budget) -> int`: how many tokens this step may take in place of `budget`,
      for methods whose first layers, or all, attend to everything;
    - `observe(step)`, called for every chunk after it was attended to; `step.lse` is there. Side
      data goes into `step.store.memo`. When tokens are taken back, memo values with a
      `truncate(length)` method are cut to the tokens left, and others are dropped;
    - `rounds: int` and `again(shared) -> dict`: with 2 rounds a session reads each question twice,
      and what `again` returns after the first time is in `step.shared` the second; `REHEARSAL`
      (see `step`) is in it the first time, which `select` may end by raising `step.Heard`.
    """

    def select(self, step: Step, budget: int) -> Selection:
        """int64 offsets into M: ascending, unique, at most min(budget, M) of them for a head."""
        ...


class Projection(ABC):
    """A fitted compressor of one layer (Eq. 4): linear maps of folded queries and keys."""

    @abstractmethod
    def queries(self, q: Tensor) -> Tensor:
        """(C, F) -> (C, R)."""

    @abstractmethod
    def keys(self, k: Tensor) -> Tensor:
        """(n, F) -> (n, R)."""

    def at(self, row: int) -> Projection:
        """The maps by which the key of a cached row was reduced; joined documents have several."""
        return self


@runtime_checkable
class Compressor(Protocol):
    """Where a layer's projection comes from: a file, or the document's first tokens."""

    @property
    def fit_tokens(self) -> int:
        """Tokens of the document to look at before `fit`; 0 when it needs none."""
        ...

    def fit(self, layer: int, moments: Moments) -> Projection | None:
        """The projection of `layer`, or None to score with the whole folded keys."""
        ...


@runtime_checkable
class PositionEncoding(Protocol):
    """Where the current, local and far tokens stand (Section 3.2 of the paper).

    Three more members are optional:
    - `reach: int`: near tokens this far from a query or further are seen from exactly this far;
    - `sharpness(at) -> Tensor`: what queries at absolute positions `at` (C,) are multiplied by;
    - `frequencies(inverse, factor, length) -> (Tensor, float)`: other rotary frequencies (D / 2,)
      and another factor for cosines and sines than the host's, when `length` tokens are cached.
    """

    @property
    def distance(self) -> int:
        """Query position, keys at 0, that stands for 'far' when tokens are scored rotated."""
        ...

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        """Positions for attention to [L, C].

        Args:
            local, chunk: tokens in L and C. start: absolute position of the first current token.
            far: how many far tokens are attended to in the same step.
        """
        ...

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        """Positions for attention to the far tokens at ascending absolute positions (n,)."""
        ...


class KVStore(Protocol):
    """One layer's memory of N tokens; held in RAM, in host memory beside a GPU, or on disk."""

    heads: int
    dim: int
    memo: dict[str, Any]

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

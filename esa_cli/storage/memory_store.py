"""One layer's `KVStore` in memory: every token's unrotated key and value, and its reduced key.

Token-major: a token's keys and values of all G heads are one contiguous row, so that fetching a
selected token is one read. Nothing is ever evicted. Where a GPU has less memory than the cache
takes, rows may be in host memory: reduced keys stay on the GPU, and selected rows are copied to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from esa_cli.attention.step import KVStore
from esa_cli.storage.growing_rows import GrowingRows, as_index

CPU = torch.device("cpu")
BLOCK = 8192
"""Tokens of a block in a scan of keys: 6 MB with 3 heads of 64 floats, which fits a cache."""
LAST_KEPT = 8192
"""Most of the last tokens whose rows are kept on a GPU."""


def split_rows(rows: Tensor, heads: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Rows (n, 2 * G * D), or (n, G * D) where the keys are the values, as keys and values, each
    (G, n, D)."""
    if shared:
        one = rows.view(rows.shape[0], heads, rows.shape[1] // heads).transpose(0, 1)
        return one, one
    both = rows.view(rows.shape[0], 2, heads, rows.shape[1] // (2 * heads))
    return both[:, 0].transpose(0, 1), both[:, 1].transpose(0, 1)


class LastSpan:
    """The rows of the last tokens, kept where they were copied to: the next token of an answer has
    all of them but one in view."""

    def __init__(self) -> None:
        self._start, self._rows = 0, torch.empty(0)

    def read(
        self, start: int, stop: int, length: int, read: Callable[[int, int], Tensor]
    ) -> Tensor:
        """What `read(start, stop)` returns, of so many tokens; kept if it ends with the last."""
        if stop != length:
            return read(start, stop)
        if self._rows.numel() and self._start <= start:
            return self._rows[start - self._start :]
        rows = read(start, stop)
        if stop - start <= LAST_KEPT:
            self._start, self._rows = start, rows
        return rows

    def drop(self) -> None:
        """Frees the rows; also needed before the last tokens change."""
        self._rows = torch.empty(0)


class MemoryStore:
    """Keys and values of N tokens of one layer, and the side data that belongs to them.

    Args:
        heads: G, key/value heads. dim: D, the head dimension. device: that computes.
        shared: the keys are the values, too, and stored once (MLA).
        on_host: keys and values are in host memory.
    """

    def __init__(
        self, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
        shared: bool = False, on_host: bool = False,
    ) -> None:  # fmt: skip
        self.heads, self.dim, self.dtype, self.device = heads, dim, dtype, device
        self.shared, self.resident = shared, not on_host
        width = (1 if shared else 2) * heads * dim
        self._rows = GrowingRows(width, dtype, CPU if on_host else device)
        self._features: GrowingRows | None = None
        self._expected, self._last = 0, LastSpan()

    def expect(self, tokens: int) -> None:
        """Says how many tokens there will be, before the first."""
        self._expected = tokens
        self._rows.expect(tokens)

    def __len__(self) -> int:
        return self._rows.length

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + (self._features.nbytes if self._features else 0)

    def append(self, k: Tensor, v: Tensor) -> None:
        """Adds C tokens: k and v (G, C, D), unrotated."""
        self._last.drop()
        kept = (k,) if self.shared else (k, v)
        rows = torch.stack([one.transpose(0, 1) for one in kept], dim=1)
        self._rows.append(rows.reshape(k.shape[1], self._rows.width))

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop), each (G, stop - start, D)."""
        if self.resident:
            rows = self._rows.span(start, stop)
        else:
            rows = self._last.read(start, stop, len(self), self._copied)
        return split_rows(rows, self.heads, self.shared)

    def _copied(self, start: int, stop: int) -> Tensor:
        return self._rows.span(start, stop).to(self.device)

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens at ascending positions (K,), each (G, K, D)."""
        rows = self._rows.gather(at.to(self._rows.device)).to(self.device)
        return split_rows(rows, self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, keys (G, n, D)) over [start, stop), n <= most; see `KVStore`."""
        for at, rows in self._rows.blocks(start, stop, most):
            keys = split_rows(rows, self.heads, self.shared)[0].to(self.device)
            yield at, keys if groups is None else keys[as_index(groups)]

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

    def release(self) -> None:
        """Frees the copies of the last rows."""
        self._last.drop()

    def crop(self, tokens: int) -> None:
        """Takes back the last -tokens tokens; `tokens` is negative, like the host's `crop`."""
        self._last.drop()
        length = len(self) + tokens
        if self._features is not None:
            self._features.truncate(length)
        self._rows.truncate(length)  # last: `len` tells whether the crop was interrupted

    def first(self, count: int) -> tuple[Tensor, Tensor | None]:
        """The first tokens' rows, see `split_rows`, and their reduced keys (count, R) if any."""
        features = self._features.span(0, count) if self._features else None
        return self._rows.span(0, count), features

    def drop_first(self, count: int) -> None:
        """Removes the first `count` tokens and frees their memory."""
        self._rows = self._rows.after(count)
        if self._features is not None:
            self._features = self._features.after(count)


class MakeStore(Protocol):
    """Makes the store of a layer with G key/value heads of D dimensions."""

    def __call__(
        self, layer: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device,
        shared: bool = False,
    ) -> KVStore:  # fmt: skip
        """
        Args:
            device: of the keys. shared: the keys are the values, too.
        """


def has_own_memory(device: torch.device) -> bool:
    """Whether a device has other memory than the CPU."""
    return device.type == "cuda"


class StorePlaces:
    """Makes stores, each on its layer's device or in host memory.

    Args:
        elsewhere: whether a device has other memory than the host; where not, rows stay there.
    """

    def __init__(self, elsewhere: Callable[[torch.device], bool] = has_own_memory) -> None:
        self.elsewhere = elsewhere

    def stores(self, on_host: Container[int]) -> MakeStore:
        """What puts these layers' rows into host memory."""
        return partial(self._make, on_host)

    def _make(
        self, on_host: Container[int], layer: int, heads: int, dim: int, dtype: torch.dtype,
        device: torch.device, shared: bool = False,
    ) -> KVStore:  # fmt: skip
        hosted = layer in on_host and self.elsewhere(device)
        return MemoryStore(heads, dim, dtype, device, shared, hosted)

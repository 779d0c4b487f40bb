"""One layer's `KVStore` in memory: every token's unrotated key and value, and its reduced key.

Token-major: a token's keys and values of all G heads are one contiguous row, so that fetching a
selected token is one read. Nothing is ever evicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from esa_cli.storage.growing_rows import GrowingRows, as_index
from esa_cli.storage.reduced_rows import BLOCK, ReducedRows


def split_rows(rows: Tensor, heads: int, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Rows (n, 2 * G * D), or (n, G * D) where the keys are the values, as keys and values, each
    (G, n, D)."""
    if shared:
        one = rows.view(rows.shape[0], heads, rows.shape[1] // heads).transpose(0, 1)
        return one, one
    both = rows.view(rows.shape[0], 2, heads, rows.shape[1] // (2 * heads))
    return both[:, 0].transpose(0, 1), both[:, 1].transpose(0, 1)


class MemoryStore(ReducedRows):
    """Keys and values of N tokens of one layer, and the side data that belongs to them.

    Args:
        heads: G, key/value heads.
        dim: D, the head dimension.
        shared: the keys are the values, too, and stored once (MLA).
    """

    resident = True

    def __init__(
        self, heads: int, dim: int, dtype: torch.dtype, device: torch.device, shared: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.dim, self.dtype, self.device = heads, dim, dtype, device
        self.shared = shared
        self._rows = GrowingRows((1 if shared else 2) * heads * dim, dtype, device)

    def expect(self, tokens: int) -> None:
        """Says how many tokens there will be, before the first."""
        super().expect(tokens)
        self._rows.expect(tokens)

    def __len__(self) -> int:
        return self._rows.length

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + (self._features.nbytes if self._features else 0)

    def append(self, k: Tensor, v: Tensor) -> None:
        """Adds C tokens: k and v (G, C, D), unrotated."""
        kept = (k,) if self.shared else (k, v)
        rows = torch.stack([one.transpose(0, 1) for one in kept], dim=1)
        self._rows.append(rows.reshape(k.shape[1], self._rows.width))

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop), each (G, stop - start, D)."""
        return split_rows(self._rows.span(start, stop), self.heads, self.shared)

    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens at ascending positions (K,), each (G, K, D)."""
        return split_rows(self._rows.gather(at), self.heads, self.shared)

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, keys (G, n, D)) over [start, stop), n <= most; see `KVStore`."""
        for at, rows in self._rows.blocks(start, stop, most):
            keys = split_rows(rows, self.heads, self.shared)[0]
            yield at, keys if groups is None else keys[as_index(groups)]

    def prefetch(self, at: Tensor) -> None:
        """Nothing to fetch."""

    def release(self) -> None:
        """Nothing to free."""

    def crop(self, tokens: int) -> None:
        """Takes back the last -tokens tokens; `tokens` is negative, like the host's `crop`."""
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

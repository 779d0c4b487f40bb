"""One layer's `KVStore` in host memory, for a device with less memory than the cache takes.

    host      keys and values of all tokens but those written last, pinned for CUDA
    device    the last `near` tokens, for L and C; and all reduced keys, which are scored

So reading and decoding fetch selected tokens only. Rows are written to the host in large pieces,
when the device's buffer is full. Not run on a GPU so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from esa_cli.storage.growing_rows import GrowingRows, as_index
from esa_cli.storage.host_copies import DONE, HostCopies, PendingRows
from esa_cli.storage.recent_rows import RecentRows
from esa_cli.storage.reduced_rows import BLOCK, ReducedRows

CPU = torch.device("cpu")


class _Fetch(NamedTuple):
    """Rows that are being fetched: the tensor of positions, those from the host, and positions of
    those that the device has."""

    at: Tensor
    rows: PendingRows | None
    near: Tensor


class HostStore(ReducedRows):
    """Keys and values of N tokens of one layer in host memory, their reduced keys on the device.

    Args:
        heads: G, key/value heads. dim: D, the head dimension.
        copies: of the device that computes; shared by its layers.
        near: tokens that the device keeps: L and all tokens of a forward call.
        shared: the keys are the values, too, and stored once (MLA).
    """

    resident = False

    def __init__(
        self, heads: int, dim: int, dtype: torch.dtype, copies: HostCopies, near: int,
        shared: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.dim, self.dtype, self.device = heads, dim, dtype, copies.device
        self.shared, self._copies, width = shared, copies, heads * dim
        kinds = ("keys",) if shared else ("keys", "values")
        self._host = [GrowingRows(width, dtype, CPU, copies.pinned) for _ in kinds]
        self._recent = RecentRows(width, dtype, copies.device, near, len(kinds))
        self._written = DONE
        self._fetch: _Fetch | None = None

    def __len__(self) -> int:
        return self._recent.stop

    @property
    def nbytes(self) -> int:
        matrices = [*self._host, *([self._features] if self._features else [])]
        return sum(one.nbytes for one in matrices) + self._recent.nbytes

    @torch.no_grad()
    def append(self, k: Tensor, v: Tensor) -> None:
        """Adds C tokens: k and v (G, C, D), unrotated."""
        self._fetch = None
        self._refill()
        kept = (k,) if self.shared else (k, v)
        rows = torch.stack([one.transpose(0, 1) for one in kept]).flatten(2)
        for piece in torch.split(rows, self._recent.slack, 1):
            if not self._recent.fits(piece.shape[1]):
                self._write()
                self._recent.replace()
            self._recent.append(piece)

    def _write(self) -> None:
        """Writes what the host lacks; the buffer on the device is not used again afterwards."""
        # After an interruption one of two matrices may be longer.
        done, stop = min(one.length for one in self._host), len(self)
        if done == stop:
            return
        rows = self._recent.span(done, stop)
        pairs: list[tuple[Tensor, Tensor]] = []
        for matrix, source in zip(self._host, rows, strict=True):
            matrix.truncate(done)
            for low, view in matrix.room(stop - done):
                pairs.append((view, source[low : low + view.shape[0]]))
        self._written = self._copies.to_host(pairs)
        for matrix in self._host:
            matrix.lengthen(stop - done)

    def _refill(self) -> None:
        """Fetches those of the last `near` tokens that the device lacks: after a crop, mostly."""
        first = max(0, len(self) - self._recent.near)
        if first < self._recent.start:
            self._recent.replace(self._from_host(first, self._recent.start))

    def _from_host(self, start: int, stop: int) -> Tensor:
        """Rows of keys and of values (kinds, n, G * D) of tokens [start, stop), which the host
        has."""
        pending = [
            [self._copies.to_device(view) for _, view in matrix.blocks(start, stop, BLOCK)]
            for matrix in self._host
        ]
        return torch.stack([_together([one.get() for one in pieces]) for pieces in pending])

    def _split(self, rows: Tensor) -> Tensor:
        """Rows (n, G * D) as (G, n, D)."""
        return rows.view(-1, self.heads, self.dim).transpose(0, 1)

    def _both(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (kinds, n, G * D) as keys and values, each (G, n, D)."""
        return self._split(rows[0]), self._split(rows[-1])

    def span(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values of tokens [start, stop), each (G, stop - start, D)."""
        recent = self._recent
        if len(self) - recent.near <= start < recent.start:
            self._refill()
        middle = min(max(start, recent.start), stop)
        rows = recent.span(middle, stop)
        if start < middle:
            rows = torch.cat((self._from_host(start, middle), rows), 1)
        return self._both(rows)

    def prefetch(self, at: Tensor) -> None:
        """Begins to fetch what `gather(at)` with the same tensor will return."""
        self._fetch = self._begin(at)

    @torch.no_grad()
    def gather(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the tokens at ascending positions (K,), each (G, K, D)."""
        fetch, self._fetch = self._fetch, None
        if fetch is None or fetch.at is not at:
            fetch = self._begin(at)
        rows = self._recent.gather(fetch.near)
        if fetch.rows is not None:
            far = fetch.rows.get()
            rows = torch.cat((far, rows), 1) if rows.shape[1] else far
        return self._both(rows)

    def _begin(self, at: Tensor) -> _Fetch:
        """Begins to fetch rows at ascending positions (K,); waits for these, once."""
        where = at.to(CPU)
        far = int(torch.searchsorted(where, self._recent.start))
        rows = None
        if far:
            self._written.synchronize()
            rows = self._copies.gather(self._host, where[:far])
        return _Fetch(at, rows, at[far:].to(self.device))

    def key_blocks(
        self, start: int, stop: int, most: int = BLOCK, groups: Sequence[int] | None = None
    ) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, keys (G, n, D)) over [start, stop), n <= most; see `KVStore`. The
        next block is copied while one is used."""
        for at, rows in self._blocks(start, stop, most):
            keys = self._split(rows)
            yield at, keys if groups is None else keys[as_index(groups)]

    def _blocks(self, start: int, stop: int, most: int) -> Iterator[tuple[int, Tensor]]:
        """Yields (absolute start, rows of keys (n, G * D))."""
        middle = min(max(start, self._recent.start), stop)
        near = self._recent.span(middle, stop)[0]
        before: tuple[int, PendingRows] | None = None
        for at, view in self._host[0].blocks(start, middle, most):
            following = at, self._copies.to_device(view)
            if before is not None:
                yield before[0], before[1].get()
            before = following
        if before is not None:
            yield before[0], before[1].get()
        for low in range(0, near.shape[0], most):
            yield middle + low, near[low : low + most]

    def crop(self, tokens: int) -> None:
        """Removes the last -tokens tokens (negative)."""
        self._fetch = None
        length = max(0, len(self) + tokens)
        for matrix in (*self._host, *([self._features] if self._features else [])):
            matrix.truncate(length)
        self._recent.crop(length)  # last: `len` tells whether the crop was interrupted

    def release(self) -> None:
        """Frees the rows on the device, which come back when the last tokens are wanted."""
        self._fetch = None
        self._write()
        self._recent.release()


def _together(pieces: Sequence[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))

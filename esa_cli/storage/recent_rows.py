"""The last tokens' keys and values of one layer, on the device that computes."""

from __future__ import annotations

import torch
from torch import Tensor


def slack(near: int) -> int:
    """The most tokens that are appended at once; `near` others are copied once in so many."""
    return max(1, near // 4)


def capacity(near: int) -> int:
    """Rows of a buffer that keeps `near` tokens."""
    return near + slack(near)


class RecentRows:
    """Rows of keys and of values of tokens [start, stop): the last ones, mostly `near` or more.

    A buffer that is full is replaced by another, so rows that were handed out stay as they are.

    Args:
        width: of a row, G * D. near: tokens that are kept when the buffer is replaced.
        kinds: 2, or 1 where the keys are the values.
    """

    def __init__(
        self, width: int, dtype: torch.dtype, device: torch.device, near: int, kinds: int = 2
    ) -> None:
        self.width, self.dtype, self.device, self.near = width, dtype, device, near
        self.kinds = kinds
        self.slack, self.capacity = slack(near), capacity(near)
        self.start = self.stop = 0
        self._rows: Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return 0 if self._rows is None else self._rows.nbytes

    def fits(self, count: int) -> bool:
        """Whether so many tokens can be appended to this buffer."""
        return self._rows is not None and self.stop - self.start + count <= self.capacity

    def replace(self, before: Tensor | None = None) -> None:
        """Goes on in a new buffer, with the last `near` tokens.

        Args:
            before: rows (kinds, n, width) of the tokens before `start`, which are kept, too.
        """
        missing = 0 if before is None else before.shape[1]
        first = max(self.start - missing, self.stop - self.near)
        kept = None if self._rows is None else self.span(max(first, self.start), self.stop)
        # Outside inference mode, so that it can be written to outside of it.
        with torch.inference_mode(False):
            shape = self.kinds, self.capacity, self.width
            rows = torch.empty(shape, dtype=self.dtype, device=self.device)
        held = 0
        for part in (before, kept):
            if part is not None:
                rows[:, held : held + part.shape[1]].copy_(part)
                held += part.shape[1]
        self._rows, self.start = rows, self.stop - held

    def append(self, rows: Tensor) -> None:
        """Adds rows (kinds, n, width) that fit."""
        assert self._rows is not None, "the buffer must have been made"
        at = self.stop - self.start
        self._rows[:, at : at + rows.shape[1]].copy_(rows)
        self.stop += rows.shape[1]

    def span(self, start: int, stop: int) -> Tensor:
        """Rows (kinds, n, width) of tokens [start, stop), a view."""
        if self._rows is None:
            return torch.empty(self.kinds, 0, self.width, dtype=self.dtype, device=self.device)
        return self._rows[:, start - self.start : stop - self.start]

    def gather(self, at: Tensor) -> Tensor:
        """Rows (kinds, n, width) of tokens at positions (n,)."""
        return self.span(self.start, self.stop).index_select(1, at - self.start)

    def crop(self, stop: int) -> None:
        """Drops tokens from `stop` on."""
        self.start, self.stop = min(self.start, stop), stop

    def release(self) -> None:
        """Drops all rows, and frees their memory."""
        self.start, self._rows = self.stop, None

"""Copies that are made as late as allowed: reading before the event, or writing over, shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.storage.host_copies import CopyEvent, HostCopies, PendingRows


@dataclass
class DelayedEvent:
    copies: DelayedCopies
    number: int

    def synchronize(self) -> None:
        self.copies.make(self.number)

    def wait(self, stream: Any = None) -> None:
        self.copies.make(self.number)


class DelayedCopies(HostCopies):
    """A stand-in for a GPU's stream; both sides are on the processor."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.begun = self.made = 0
        self.rows = 0
        """Rows that were copied to the device."""
        self._queue: list[Callable[[], None]] = []

    def _begin(self, copy: Callable[[], None]) -> CopyEvent:
        self._queue.append(copy)
        self.begun += 1
        return DelayedEvent(self, self.begun)

    def to_device(self, source: Tensor) -> PendingRows:
        self.rows += source.shape[-2]
        pending = super().to_device(source)
        pending._rows.fill_(float("nan"))
        return pending

    def make(self, number: int) -> None:
        """Makes the copies up to this one, in order."""
        while self.made < number:
            self._queue.pop(0)()
            self.made += 1

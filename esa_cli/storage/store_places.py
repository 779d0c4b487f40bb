"""Makes the stores of a cache's layers, each on its layer's device or in host memory."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Protocol

import torch

from esa_cli.attention.step import KVStore
from esa_cli.storage.host_copies import HostCopies
from esa_cli.storage.host_store import HostStore
from esa_cli.storage.memory_store import MemoryStore


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
    """Whether a device has other memory than the processor."""
    return device.type == "cuda"


class StorePlaces:
    """Makes stores for all caches of one model.

    Args:
        near: tokens that a device keeps of a layer in host memory; see `HostStore`.
        elsewhere: whether a device has other memory than the host; where not, rows stay there.
        copies: makes the copies of a device.
    """

    def __init__(
        self,
        near: int,
        elsewhere: Callable[[torch.device], bool] = has_own_memory,
        copies: Callable[[torch.device], HostCopies] = HostCopies,
    ) -> None:
        self.near, self.elsewhere, self._copies = near, elsewhere, copies
        self._made: dict[torch.device, HostCopies] = {}

    def stores(self, on_host: Container[int]) -> MakeStore:
        """What puts these layers' rows into host memory."""
        return partial(self._make, on_host)

    def _make(
        self,
        on_host: Container[int],
        layer: int,
        heads: int,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        shared: bool = False,
    ) -> KVStore:
        if layer not in on_host or not self.elsewhere(device):
            return MemoryStore(heads, dim, dtype, device, shared)
        if device not in self._made:
            self._made[device] = self._copies(device)
        return HostStore(heads, dim, dtype, self._made[device], self.near, shared)

"""Decides for each document which layers' rows are on the device and which in host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from esa_cli.attention.method import Method
from esa_cli.models.attachment.layer_traits import row_layers
from esa_cli.qa.planning.costs import RowCosts
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.storage import check_cache
from esa_cli.storage.memory_store import MakeStore, StorePlaces
from esa_cli.system.machine import available_memory


def free_on(device: torch.device) -> int:
    """Bytes for rows on a GPU: the free ones, and those that torch holds in reserve."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return available_memory(str(device)) + kept


class CachePlacement:
    """Where the caches of one model are. Raises UsageError: there is no such place.

    Args:
        cache: device, host, auto or disk; with disk, what is not on disk yet is on the device.
        places: makes the stores; on a device that shares the host's memory, rows stay there.
        free: bytes that a device has for rows.
    """

    def __init__(
        self,
        model: Any,
        method: Method,
        cache: str,
        places: StorePlaces | None = None,
        free: Callable[[torch.device], int] = free_on,
    ) -> None:
        check_cache(cache)
        self.model, self.method, self.cache = model, method, cache
        self._places, self._free = places or StorePlaces(), free

    def stores(self, tokens: int) -> MakeStore:
        """What makes the stores of a document of so many tokens. In host memory are as few layers
        as fit, the last ones, which are the likelier not to be scored by whole keys."""
        layers = row_layers(self.model)
        return self._places.stores(frozenset(layers[len(layers) - self._on_host(tokens) :]))

    def _on_host(self, tokens: int) -> int:
        device, size = self.model.device, self.model.dtype.itemsize
        if self.cache in ("device", "disk") or not self._places.elsewhere(device):
            return 0
        shape = shape_of(self.model.config.to_dict())
        if self.cache == "host":
            return shape.rows
        costs = RowCosts(shape, on_gpu=True, method=self.method)
        room = self._free(device) - costs.working(tokens, size) - costs.reduced_keys(tokens, size)
        return costs.fewest_host_layers(tokens, size, room)

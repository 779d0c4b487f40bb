"""Decides for each document which layers' rows are on their device and which in host memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from esa_cli.attention.method import Method
from esa_cli.models.attachment.inspection import layer_devices, row_layers
from esa_cli.qa.planning.costs import Costs, fewest_host_layers, rank_of
from esa_cli.qa.planning.model_shape import shape_of
from esa_cli.storage import check_cache
from esa_cli.storage.memory_store import MakeStore, StorePlaces, has_own_memory
from esa_cli.system.machine import available_memory


def free_on(device: torch.device) -> int:
    """Bytes for rows on a GPU: what is free, and what torch keeps of what was freed."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return available_memory(str(device)) + kept


class CachePlacement:
    """Where the caches of one model are.

    Args:
        cache: device, host, auto or disk; with disk, what is not on disk yet is on the device.
        places: makes the stores; None: on GPUs as chosen, elsewhere on the CPU.
        free: bytes that a device has for rows.

    Raises:
        UsageError: there is no such place.
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
        self._places = places or StorePlaces()
        self._elsewhere = has_own_memory if places is None else places.elsewhere
        self._free = free

    def stores(self, tokens: int) -> MakeStore:
        """What makes the stores of a document of so many tokens."""
        there = self.on_host(layer_devices(self.model), tokens)
        layers = row_layers(self.model)
        return self._places.stores(frozenset(layers[i] for i in there))

    def on_host(self, devices: Sequence[torch.device], tokens: int) -> frozenset[int]:
        """Which of the layers with rows, each on its device, will have them in host memory: as few
        as fit, the last ones of each device, which are the likelier not to be scored by whole keys.
        """
        if self.cache in ("device", "disk"):
            return frozenset()
        layers = [i for i, device in enumerate(devices) if self._elsewhere(device)]
        if self.cache == "host":
            return frozenset(layers)
        host: list[int] = []
        for device in dict.fromkeys(devices[i] for i in layers):
            own = [i for i in layers if devices[i] == device]
            host += own[len(own) - self._fewest(len(own), tokens, self._free(device)) :]
        return frozenset(host)

    def _fewest(self, layers: int, tokens: int, free: int) -> int:
        """How many of so many layers of one device must be in host memory."""
        shape, size = shape_of(self.model.config.to_dict()), self.model.dtype.itemsize
        costs = Costs(shape, self.method, rank_of(self.method, shape), on_gpu=True)
        reduced = costs.reduced_keys(tokens, size) * layers // shape.rows
        room = free - costs.working(tokens, size) - reduced
        return fewest_host_layers(costs, tokens, size, room, layers)

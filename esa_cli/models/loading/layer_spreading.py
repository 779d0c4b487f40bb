"""A model's layers on several GPUs, and those without room there on the CPU.

Each layer is computed where its weights are, and keeps its rows there. accelerate's own maps leave
the CPU's layers in its memory, but compute them on a GPU, to which it copies their weights
for every forward call; a token of an answer would wait for gigabytes. Not run on a GPU so far.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

CPU = "cpu"
KEPT_FREE = 2 << 30
"""Bytes of each GPU for rows and for what is computed."""


def gpu_rooms() -> dict[str, int]:
    """Bytes for weights on each GPU."""
    import torch

    names = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return {name: torch.cuda.mem_get_info(name)[0] - KEPT_FREE for name in names}


def overflows(need: int) -> bool:
    """Whether weights of so many bytes have no room on all GPUs together."""
    return need > sum(max(0, one) for one in gpu_rooms().values())


def layer_places(sizes: Sequence[int], other: int, rooms: Mapping[str, int]) -> list[str]:
    """The device of each layer: GPUs in order while there is room, then the CPU.

    Args:
        sizes: bytes of each layer's weights. other: of what is on the first GPU beside layers.
        rooms: bytes for weights, by GPU.
    """
    names, left = list(rooms), list(rooms.values())
    if left:
        left[0] -= other
    places, at = list[str](), 0
    for size in sizes:
        while at < len(left) and left[at] < size:
            at += 1
        if at < len(left):
            left[at] -= size
        places.append(names[at] if at < len(names) else CPU)
    return places


def device_map(model: Any, rooms: Mapping[str, int]) -> dict[str, str]:
    """The device of each part of a model of transformers."""
    layers, prefix = model.base_model.layers, model.base_model_prefix
    sizes = [sum(one.nbytes for one in layer.parameters()) for layer in layers]
    other = sum(one.nbytes for one in model.parameters()) - sum(sizes)
    first = next((name for name, room in rooms.items() if room >= other), CPU)
    own = dict(sorted(rooms.items(), key=lambda one: one[0] != first))
    places = layer_places(sizes, 0 if first == CPU else other, own)
    found = {f"{prefix}.layers.{i}": place for i, place in enumerate(places)}
    found |= {f"{prefix}.{name}": first for name, _ in model.base_model.named_children()
              if name != "layers"}  # fmt: skip
    return found | {name: first for name, _ in model.named_children() if name != prefix}


def spread(model: Any, places: Mapping[str, str]) -> Any:
    """Moves a model that is on the CPU to these devices."""
    accelerate: Any = import_module("accelerate")  # untyped
    # It warns that what is on the CPU is offloaded, which it is not.
    logger = logging.getLogger("accelerate.big_modeling")
    logger.disabled, before = True, logger.disabled
    try:
        return accelerate.dispatch_model(
            model, dict(places), main_device=CPU, skip_keys=model._skip_keys_device_placement
        )
    finally:
        logger.disabled = before

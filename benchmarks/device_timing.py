"""Times of calls on a device, which works on behind the host's back."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch


def settled(device: torch.device) -> None:
    """Waits for what the device was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Any], device: torch.device, repeats: int = 20) -> float:
    """The median time of a call, after three to warm up."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        settled(device)
        started = time.perf_counter()
        call()
        settled(device)
        times.append(time.perf_counter() - started)
    return median(times)

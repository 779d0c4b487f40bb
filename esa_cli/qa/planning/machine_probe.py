"""The speed of a machine at a model's matrix product, where no reading was measured yet."""

from __future__ import annotations

import time

import torch

from esa_cli.qa.planning.costs import FEED
from esa_cli.qa.planning.model_shape import Shape

SECONDS = 0.15


def probe(shape: Shape, dtype: torch.dtype, device: str) -> float:
    """Operations per second of the MLP's matrix product on FEED tokens."""
    place = "cuda" if device == "balanced" else device
    x = torch.ones(FEED, shape.hidden, dtype=dtype, device=place)
    weight = torch.ones(shape.hidden, shape.inner, dtype=dtype, device=place)
    float((x[:64] @ weight)[0, 0])
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < SECONDS:
        float((x @ weight)[0, 0])  # waits for the device
        done += 1
    return 2.0 * x.numel() * shape.inner * done / spent

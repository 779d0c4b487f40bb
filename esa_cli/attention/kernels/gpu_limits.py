"""What flash attention needs of queries and their GPU."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

WIDEST = 256
"""Most dimensions of a head."""
ALIGNED = 8
"""The dimensions of a head are a multiple of it."""


@cache
def capability(device: torch.device) -> int:
    """Major compute capability: 8 Ampere and Ada, 9 Hopper, 10 to 12 Blackwell."""
    return torch.cuda.get_device_capability(device)[0]


def is_half(q: Tensor) -> bool:
    """Whether q is in half precision, on a GPU."""
    return q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16)


def fits_flash(q: Tensor) -> bool:
    """Whether flash attention takes q (H, C, D): in half precision, D up to 256, since Ampere."""
    width = q.shape[-1]
    return is_half(q) and width <= WIDEST and width % ALIGNED == 0 and capability(q.device) >= 8

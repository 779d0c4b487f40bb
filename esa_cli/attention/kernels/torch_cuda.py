"""torch's private operators of attention on a GPU: flash for half precision, memory-efficient for
float32, wide heads, and GPUs before Ampere."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

WIDEST = 256
"""Most dimensions of a head in flash attention."""
ALIGNED = 8
"""The dimensions of a head are a multiple of it."""


@cache
def capability(device: torch.device) -> int:
    """Major compute capability: 8 Ampere and Ada, 9 Hopper, 10 to 12 Blackwell."""
    return torch.cuda.get_device_capability(device)[0]


def fits_flash(q: Tensor) -> bool:
    """Whether flash attention takes q (H, C, D): in half precision, D up to 256, since Ampere."""
    half = q.device.type == "cuda" and q.dtype in (torch.float16, torch.bfloat16)
    width = q.shape[-1]
    return half and width <= WIDEST and width % ALIGNED == 0 and capability(q.device) >= 8


def usable(q: Tensor) -> bool:
    return q.device.type == "cuda"


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """See `reference.attend`; causal needs C = N. Query groups are folded as on the CPU."""
    heads, count, dim = q.shape
    groups = k.shape[0]
    if causal:
        assert count == k.shape[1], "causal attention is for a chunk with itself"
        repeat = heads // groups
        query, keys, values = q, k.repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
    else:
        query, keys, values = q.reshape(groups, heads // groups * count, dim), k, v
    if not fits_flash(q):
        op = torch.ops.aten._scaled_dot_product_efficient_attention
        out, lse, *_ = op(
            query[None], keys[None], values[None], None, True, 0.0, causal, scale=scale
        )
    else:
        op = torch.ops.aten._scaled_dot_product_flash_attention
        out, lse, *_ = op(query[None], keys[None], values[None], 0.0, causal, False, scale=scale)
    # The memory-efficient op pads the lse to a multiple of its block.
    lse = lse[0, :, : query.shape[1]]
    return out[0].reshape(heads, count, dim), lse.reshape(heads, count).float()

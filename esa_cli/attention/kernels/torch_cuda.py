"""torch's private operators of attention on a GPU: flash for half precision, memory-efficient for
float32, wide heads, and GPUs before Ampere."""

from __future__ import annotations

import torch
from torch import Tensor

from esa_cli.attention.kernels.gpu_limits import fits_flash
from esa_cli.attention.kernels.reference import unseen


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


def attend_first(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """See `reference.attend_first`; the memory-efficient operator alone takes a mask."""
    op = torch.ops.aten._scaled_dot_product_efficient_attention
    heads, _, dim = q.shape
    groups, share = k.shape[0], heads // k.shape[0]
    mask = unseen(k, ends).to(q.dtype).expand(1, groups, share, -1)
    folded = q.reshape(1, groups, share, dim)
    out, lse, *_ = op(folded, k[None], v[None], mask, True, 0.0, False, scale=scale)
    return out[0].reshape(q.shape), lse[0, :, :share].reshape(heads, 1).float()

"""torch's fused CPU attention, which also returns the log-sum-exp."""

from __future__ import annotations

import torch
from torch import Tensor


def usable(q: Tensor) -> bool:
    return q.device.type == "cpu" and hasattr(
        torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu"
    )


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """See `reference.attend`; causal needs C = N.

    Without a mask the queries of one key head are independent of each other, so a group's H / G
    query heads are laid end to end and the keys are never repeated.
    """
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    heads, count, dim = q.shape
    groups = k.shape[0]
    if causal:
        assert count == k.shape[1], "causal attention is for a chunk with itself"
        keys, values = (_for_each_head(x, heads // groups) for x in (k, v))
        out, lse = fused(q[None], keys[None], values[None], 0.0, True, scale=scale)
        return out[0], lse[0].float()
    folded = q.reshape(1, groups, heads // groups * count, dim)
    out, lse = fused(folded, k[None], v[None], 0.0, False, scale=scale)
    return out.reshape(heads, count, dim), lse.reshape(heads, count).float()


def _for_each_head(x: Tensor, repeat: int) -> Tensor:
    """Keys or values (G, N, D), each head `repeat` times; a single one is not copied."""
    return x[:, None].expand(-1, repeat, -1, -1).flatten(0, 1)

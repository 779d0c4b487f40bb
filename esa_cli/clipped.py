"""Attention in which no key is seen further away than `reach` (ReRoPE's rule of distances).

Distances are per query and key, so neither rotation alone gives the logits: those within reach come
from true distances, the others from queries at `reach` and keys at 0. Plain operations; the method
it serves is a baseline. Source: Su, "Rectified Rotary Position Embeddings" (ReRoPE), 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .protocols import Positions
from .rotary import Rope


def attend_clipped(
    q: Tensor, k: Tensor, v: Tensor, at: Positions, reach: int, rope: Rope, scale: float
) -> tuple[Tensor, Tensor]:
    """Causal attention at distances min(query - key, reach).

    Args:
        q: (H, C, D), k and v: (G, N, D), unrotated. at: positions (C,) and (N,) of both.
        reach: in tokens.

    Returns:
        out (H, C, D), lse (H, C) float32.
    """
    share = q.shape[0] // k.shape[0]
    query, key = at.query.to(q.device), at.key.to(q.device)
    distance = query[:, None] - key[None]
    away = torch.full_like(query, reach)
    keys, values = (x.repeat_interleave(share, dim=0).float() for x in (k, v))
    near = rope.rotate(q.float(), query) @ rope.rotate(keys, key).transpose(1, 2)
    far = rope.rotate(q.float(), away) @ (keys * rope.gain(keys)).transpose(1, 2)
    logits = torch.where(distance < reach, near, far) * scale
    logits = logits.masked_fill(distance < 0, float("-inf"))
    lse = logits.logsumexp(dim=-1)
    out = torch.exp(logits - lse[..., None]) @ values
    return out.to(q.dtype), lse

"""Causal attention at distances min(query - key, limit), for ReRoPE.

Logits within the limit come from true positions, the others from queries at `limit` and keys at 0.
Both are computed, in blocks of queries. Source: Su, "Rectified Rotary Position Embeddings", 2023.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esa_cli.attention.cap_and_sink import soft_capped
from esa_cli.attention.interfaces import Positions
from esa_cli.attention.rope import Rope

AT_ONCE = 128
"""Most queries in a block."""


def attend_within(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    at: Positions,
    limit: int,
    rope: Rope,
    scale: float,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Causal attention at distances min(query - key, limit).

    Args:
        q: (H, C, D), k and v: (G, N, D), unrotated. at: positions (C,) and (N,) of both.
        limit: in tokens. cap: soft cap of the logits; 0: none.

    Returns:
        out (H, C, D), lse (H, C) float32.
    """
    share = q.shape[0] // k.shape[0]
    query, key = at.query.to(q.device), at.key.to(q.device)
    keys, values = (x.repeat_interleave(share, dim=0).float() for x in (k, v))
    inside = rope.rotate(keys, key).transpose(1, 2)
    outside = (keys * rope.gain(keys)).transpose(1, 2)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=q.device)
    for start in range(0, q.shape[1], AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        block, position = q[:, rows].float(), query[rows]
        distance = position[:, None] - key[None]
        far = rope.rotate(block, torch.full_like(position, limit)) @ outside
        logits = torch.where(distance < limit, rope.rotate(block, position) @ inside, far) * scale
        logits = soft_capped(logits, cap).masked_fill_(distance < 0, float("-inf"))
        lse[:, rows] = logits.logsumexp(dim=-1)
        out[:, rows] = (logits.sub_(lse[:, rows, None]).exp_() @ values).to(q.dtype)
    return out, lse

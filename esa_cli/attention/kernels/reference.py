"""Attention and its log-sum-exp in plain operations; the other kernels are tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from esa_cli.attention.cap_and_sink import soft_capped


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """softmax(scale * q k^T) v, computed in float32.

    Args:
        q: (H, C, D); query head h uses key head h // (H / G).
        k, v: (G, N, D).
        cap: soft cap of the logits x, which become cap * tanh(x / cap) (Gemma 2); 0: none.
        causal: query i sees the first N - C + i + 1 keys (the last query sees all of them).

    Returns:
        out (H, C, D) in the dtype of q and lse (H, C) in float32, the log of the softmax's
        denominator. With N = 0, out is 0 and lse is -inf.
    """
    repeat = q.shape[0] // k.shape[0]
    keys = k.repeat_interleave(repeat, dim=0).float()
    values = v.repeat_interleave(repeat, dim=0).float()
    logits = soft_capped(q.float() @ keys.transpose(1, 2) * scale, cap)
    if causal:
        c, n = logits.shape[1:]
        later = torch.ones(c, n, dtype=torch.bool, device=q.device).triu(n - c + 1)
        logits = logits.masked_fill(later, float("-inf"))
    lse = logits.logsumexp(dim=-1)
    weights = torch.nan_to_num(torch.exp(logits - lse[..., None]), nan=0.0)
    return (weights @ values).to(q.dtype), lse

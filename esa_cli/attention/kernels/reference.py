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


def attend_first(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scale: float, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """`attend` of single queries (H, 1, D) to the first n keys. The device alone knows n.

    Args:
        k, v: (G, N, D); those behind the first n are finite, and N is a multiple of 16.
        ends: (2,) int32, 0 and n, on the device of q.
    """
    heads, _, dim = q.shape
    query = q.float().view(k.shape[0], -1, dim)
    logits = soft_capped(query @ k.float().transpose(1, 2) * scale, cap) + unseen(k, ends)
    lse = logits.logsumexp(dim=-1)
    out = torch.exp(logits - lse[..., None]) @ v.float()
    return out.view(q.shape).to(q.dtype), lse.view(heads, 1)


def unseen(k: Tensor, ends: Tensor) -> Tensor:
    """(N,) float32: 0 for the first n keys of (G, N, D), -inf behind them; see `attend_first`."""
    behind = torch.arange(k.shape[1], device=k.device) >= ends[1:]
    return torch.zeros(k.shape[1], device=k.device).masked_fill(behind, float("-inf"))

"""Functions that fold heads, fuse attention outputs, cap logits and add attention sinks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fold(q: Tensor, groups: int) -> Tensor:
    """Folds queries (H, C, D) into (C, G * D): sums the query heads that share one key head.

    sum_h q_h · k_g(h) = sum_g (sum_{h in g} q_h) · k_g, so the sum over heads of equation (3) needs
    F = G * D dimensions, not H * D."""
    heads, count, dim = q.shape
    return q.view(groups, heads // groups, count, dim).sum(1).transpose(0, 1).reshape(count, -1)


def join_key_heads(k: Tensor) -> Tensor:
    """Concatenates the G heads of keys (G, n, D) into (n, G * D)."""
    return k.transpose(0, 1).reshape(k.shape[1], -1)


def fuse_attention(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Fuses partial attention outputs (out_i (H, C, D), lse_i (H, C)) into attention over all keys.

    The sum follows steps 12-14 of Algorithm 1; subtracting the joint log-sum-exp
    first prevents overflow."""
    if len(parts) == 1:
        return parts[0]
    total = torch.stack([lse for _, lse in parts]).logsumexp(dim=0)
    out = torch.zeros_like(parts[0][0], dtype=torch.float32)
    for piece, lse in parts:
        out.addcmul_(piece.float(), torch.exp(lse - total)[..., None])
    return out.to(parts[0][0].dtype), total


def apply_soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Returns cap * tanh(logits / cap), the soft cap of Gemma 2; a cap of 0 changes nothing."""
    return cap * torch.tanh(logits / cap) if cap else logits


def add_attention_sink(out: Tensor, lse: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Adds an attention sink (gpt-oss): a key for each head, with a learned logit and value 0.

    Args:
        out: (H, C, D) and lse (H, C): attention to the other keys. sink: (H,) logits, or None."""
    if sink is None:
        return out, lse
    total = torch.logaddexp(lse, sink.detach().to(lse)[:, None])
    return (out * torch.exp(lse - total)[..., None]).to(out.dtype), total


def to_float64(x: Tensor) -> Tensor:
    """Converts a tensor to float64, for sums in which float32 loses digits. The tensor of a device
    without float64 (`mps`) is moved to the CPU."""
    return (x.cpu() if x.device.type == "mps" else x).double()

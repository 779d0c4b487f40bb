"""Functions that fold heads, fuse attention outputs, cap logits and add attention sinks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fold(q: Tensor, key_head_count: int) -> Tensor:
    """Sums the query heads that share one key head, so that queries (H, C, D) become (C, G * D).

    If query head h reads key head g(h), then sum_h q_h · k_g(h) = sum_g (sum_{h in g} q_h) · k_g,
    so equation (3) needs F = G * D dimensions, not H * D."""
    heads, count, dim = q.shape
    q = q.view(key_head_count, heads // key_head_count, count, dim)
    return q.sum(1).transpose(0, 1).reshape(count, -1)


def concat_key_heads(keys: Tensor) -> Tensor:
    """Concatenates the G heads of keys (G, n, D) into (n, G * D)."""
    return keys.transpose(0, 1).reshape(keys.shape[1], -1)


def fuse_attention(outputs_with_lse: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Fuses partial outputs (H, C, D) by their log-sum-exps (H, C): steps 12-14 of Algorithm 1."""
    if len(outputs_with_lse) == 1:
        return outputs_with_lse[0]
    total = torch.stack([lse for _, lse in outputs_with_lse]).logsumexp(dim=0)
    out = torch.zeros_like(outputs_with_lse[0][0], dtype=torch.float32)
    for piece, lse in outputs_with_lse:
        out.addcmul_(piece.float(), torch.exp(lse - total)[..., None])
    return out.to(outputs_with_lse[0][0].dtype), total


def apply_soft_cap(logits: Tensor, cap: float) -> Tensor:
    """Returns cap * tanh(logits / cap), the soft cap of Gemma 2; a cap of 0 changes nothing."""
    return cap * torch.tanh(logits / cap) if cap else logits


def add_attention_sink(out: Tensor, lse: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Adds gpt-oss's attention sink, a key with a learned logit (H,) and value 0 for each head, to
    the attention to the other keys, out (H, C, D) and lse (H, C)."""
    if sink is None:
        return out, lse
    total = torch.logaddexp(lse, sink.detach().to(lse)[:, None])
    return (out * torch.exp(lse - total)[..., None]).to(out.dtype), total


def to_float64(tensor: Tensor) -> Tensor:
    """Converts to float64, on the CPU from `mps`, which has none: float32 loses digits in sums."""
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).double()

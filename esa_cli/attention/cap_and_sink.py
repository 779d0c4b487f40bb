"""Soft cap of logits (Gemma 2) and attention sinks (gpt-oss): what some models add to a softmax."""

from __future__ import annotations

import torch
from torch import Tensor


def soft_capped(logits: Tensor, cap: float) -> Tensor:
    """cap * tanh(logits / cap); the logits themselves where `cap` is 0."""
    return cap * torch.tanh(logits / cap) if cap else logits


def with_sink(out: Tensor, lse: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention with one more key for each head, whose logit is learned and whose value is 0.

    Args:
        out: (H, C, D) and lse (H, C): attention to the other keys.
        sink: (H,) logits; None: the model has none.

    Returns:
        out (H, C, D) and lse (H, C) with the sink in the softmax's denominator.
    """
    if sink is None:
        return out, lse
    total = torch.logaddexp(lse, sink.detach().to(lse)[:, None])
    return (out * torch.exp(lse - total)[..., None]).to(out.dtype), total

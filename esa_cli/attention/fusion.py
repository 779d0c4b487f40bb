"""Log-sum-exp fusion of attentions over disjoint keys (Algorithm 1, steps 12-14)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def fuse(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Fuses (out_i (H, C, D), lse_i (H, C)) into the attention over all keys together.

    Algorithm 1, steps 12-14, with the joint lse subtracted before exp, so that nothing overflows.
    """
    if len(parts) == 1:
        return parts[0]
    lse = torch.stack([part[1] for part in parts])
    total = lse.logsumexp(dim=0)
    weights = torch.exp(lse - total)
    out = parts[0][0].float() * weights[0][..., None]
    for (piece, _), weight in zip(parts[1:], weights[1:], strict=True):
        out = out.addcmul_(piece.float(), weight[..., None])
    return out.to(parts[0][0].dtype), total

"""Causal attention on the processor, a block of queries at a time, as plain matrix products.

PyTorch's fused attention reaches a fifth of the processor's rate of bfloat16 matrix products; it
was two fifths of the time of reading a document for its index (`benchmarks/reading_speed.py`). Here
a block of queries is multiplied with all keys up to its end, which leaves few products that are
masked, and the heads that share keys are one product.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128
"""Queries of a block: fewer mask less and make smaller products."""


def causal_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Outputs (B, T, H, D) of queries (B, H, T, D) with keys and values (B, G, N, D): query t sees
    the keys up to N - T + t."""
    batch, heads, count, size = query.shape
    groups, length = key.shape[1], key.shape[2]
    shared, earlier = heads // groups, length - count
    queries = (query * size**-0.5).reshape(batch, groups, shared, count, size)
    keys = key.reshape(batch * groups, length, size).transpose(1, 2)
    values = value.reshape(batch * groups, length, size)
    out = []
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        rows, seen = stop - start, earlier + stop
        block = queries[:, :, :, start:stop].reshape(batch * groups, shared * rows, size)
        scores = torch.bmm(block, keys[:, :, :seen]).view(-1, shared, rows, seen)
        if rows > 1:
            later = torch.ones(rows, rows, dtype=torch.bool, device=query.device).triu(1)
            scores[..., seen - rows :].masked_fill_(later, -torch.inf)
        weights = scores.softmax(-1).view(batch * groups, shared * rows, seen)
        found = torch.bmm(weights, values[:, :seen])
        out.append(found.view(batch, heads, rows, size).transpose(1, 2))
    return torch.cat(out, 1) if len(out) > 1 else out[0]

"""Causal attention on the processor, a block of queries at a time, as plain matrix products.

PyTorch's fused attention reaches a fifth of the processor's rate of bfloat16 matrix products; it
was two fifths of the time of reading a document for its index (`benchmarks/reading_speed.py`). Here
a block of queries is multiplied with all keys up to its end, which leaves few products that are
masked, and the heads that share keys are one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

NAME = "esa_blocks"
BLOCK = 128
"""Queries of a block: fewer mask less and make smaller products."""
OTHER_RULES = ("sliding_window", "attn_logit_softcapping", "attention_chunk_size")
"""Settings of models whose attention is not plain causal attention."""


@contextmanager
def block_attention(model: Any) -> Iterator[None]:
    """A model on the processor computes its attention in blocks until the block ends.

    Models elsewhere, of other types than bfloat16, or whose attention is not plain causal
    attention keep their own. The calls within must not have padding before a token that counts.
    """
    before = model.config._attn_implementation
    if not supports_blocks(model):
        yield
        return
    # Late: what only finds by words must not wait for transformers.
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(NAME, causal_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    try:
        model.set_attn_implementation(NAME)
        yield
    finally:
        model.set_attn_implementation(before)


def supports_blocks(model: Any) -> bool:
    """Whether `block_attention` changes this model's attention."""
    config = model.config
    return (
        model.device.type == "cpu"
        and model.dtype == torch.bfloat16
        and config._attn_implementation == "sdpa"
        and all(getattr(config, name, None) is None for name in OTHER_RULES)
    )


def causal_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Outputs (B, T, H, D) of queries (B, H, T, D) with keys and values (B, G, N, D), as
    `AttentionInterface` wants them: query t sees the keys up to N - T + t."""
    batch, heads, count, size = query.shape
    groups, length = key.shape[1], key.shape[2]
    shared, earlier = heads // groups, length - count
    scaled = query * (size**-0.5 if scaling is None else scaling)
    queries = scaled.reshape(batch, groups, shared, count, size)
    keys = key.reshape(batch * groups, length, size).transpose(1, 2)
    values = value.reshape(batch * groups, length, size)
    out = []
    for start in range(0, count, BLOCK):
        stop = min(start + BLOCK, count)
        rows, seen = stop - start, earlier + stop
        block = queries[:, :, :, start:stop].reshape(batch * groups, shared * rows, size)
        scores = torch.bmm(block, keys[:, :, :seen]).view(-1, shared, rows, seen)
        later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        scores[..., seen - rows :].masked_fill_(later, -torch.inf)
        weights = scores.softmax(-1).view(batch * groups, shared * rows, seen)
        found = torch.bmm(weights, values[:, :seen])
        out.append(found.view(batch, heads, rows, size).transpose(1, 2))
    return torch.cat(out, 1) if len(out) > 1 else out[0].contiguous(), None


def _no_mask(*args: Any, **options: Any) -> None:
    """The mask that transformers hands over: none, the function knows its own."""

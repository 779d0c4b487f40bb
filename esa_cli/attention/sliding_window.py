"""Attention of layers that attend only to the last W tokens (Gemma, gpt-oss, OLMo 3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from esa_cli.attention.algebra import add_attention_sink
from esa_cli.attention.kernels import compute_reference_attention
from esa_cli.attention.method import LayerMemory
from esa_cli.attention.rope import Rope
from esa_cli.attention.window import QueryState

AT_ONCE = 512
"""The largest number of queries in a block."""


class SlidingWindowAttention:
    """Causal attention of a query to its own and the W - 1 tokens before, at true distances.

    Args:
        window: W, in tokens. scale: factor of q . k. cap: soft cap of the logits; 0: none."""

    def __init__(self, window: int, rope: Rope, scale: float, cap: float = 0.0) -> None:
        self.window, self.rope, self.scale, self.cap = window, rope, scale, cap

    def __call__(
        self, memory: LayerMemory, q: Tensor, query: QueryState, sink: Tensor | None = None
    ) -> Tensor:
        """Returns the attention output (H, n, D) for the queries q (H, n, D) of the last n cached
        tokens. `sink` has the logits (H,) of the model's attention sink, if any."""
        stop = len(memory.store)
        start = stop - q.shape[1]
        out = torch.empty_like(q)
        for first in range(start, stop, AT_ONCE):
            last = min(first + AT_ONCE, stop)
            rows = slice(first - start, last - start)
            out[:, rows] = self._attend_queries_to_window(memory, q[:, rows], first, last, sink)
        return out

    def _attend_queries_to_window(
        self, memory: LayerMemory, q: Tensor, start: int, stop: int, sink_logits: Tensor | None
    ) -> Tensor:
        """Returns the attention output (H, C, D) of the queries at positions [start, stop)."""
        low = max(0, start - self.window + 1)
        keys, values = memory.store.span(low, stop)
        # Only differences of positions count: small ones keep the rotation exact.
        at = torch.arange(stop - low)
        query, keys = self.rope.rotate(q, at[start - low :]), self.rope.rotate(keys, at)
        distance = (at[start - low :, None] - at[None]).to(q.device, non_blocking=True)
        seen = (distance >= 0) & (distance < self.window)
        if self.cap or sink_logits is not None:  # which fused attention has not
            options = False, self.scale, self.cap, seen
            part = compute_reference_attention(query, keys, values, *options)
            return add_attention_sink(*part, sink_logits)[0]
        one = stop - start == 1  # a single query sees all these keys, and needs no mask
        if not one:  # on a GPU, fused attention with a mask takes no fewer key heads
            keys, values = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (keys, values))
        out: Tensor = scaled_dot_product_attention(
            query[None], keys[None], values[None], None if one else seen, scale=self.scale,
            enable_gqa=one,
        )  # fmt: skip
        return out[0]

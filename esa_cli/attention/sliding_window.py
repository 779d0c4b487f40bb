"""Layers that attend to the last W tokens alone, whatever the method (Gemma, gpt-oss, OLMo 3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from esa_cli.attention.algebra import soft_capped, with_sink
from esa_cli.attention.method import LayerMemory
from esa_cli.attention.rope import Rope
from esa_cli.attention.window import QueryState

AT_ONCE = 512
"""Most queries in a block, each of which is multiplied with up to AT_ONCE + W - 1 keys."""


def takes_grouped_heads(device: torch.device) -> bool:
    """Whether fused attention with a mask takes fewer key heads than query heads on a device."""
    return device.type != "cuda"


class SlidingAttention:
    """Causal attention to the last W tokens, the query's own included, as the model has it.

    In models that mix such layers with full ones, the full ones run the method. A window's keys are
    at their distances in the text, so positions need no encoding.

    Args:
        window: W, in tokens. rope: the layers' rotary embedding. scale: factor of q . k.
        cap: soft cap of the logits; 0: none.
    """

    def __init__(self, window: int, rope: Rope, scale: float, cap: float = 0.0) -> None:
        self.window, self.rope, self.scale, self.cap = window, rope, scale, cap

    def __call__(
        self, memory: LayerMemory, q: Tensor, query: QueryState, sink: Tensor | None = None
    ) -> Tensor:
        """Attention output (H, n, D) of the last n tokens of the store, queries q (H, n, D).

        Args:
            query: not used; the layer attends to the same tokens whatever is asked.
            sink: (H,) logits of an attention sink; None: the model has none.
        """
        stop = len(memory.store)
        start = stop - q.shape[1]
        out = torch.empty_like(q)
        for first in range(start, stop, AT_ONCE):
            last = min(first + AT_ONCE, stop)
            rows = slice(first - start, last - start)
            out[:, rows] = self._attend(memory, q[:, rows], first, last, sink)
        return out

    def _attend(
        self, memory: LayerMemory, q: Tensor, start: int, stop: int, sink: Tensor | None
    ) -> Tensor:
        """Output (H, C, D) of the queries of [start, stop)."""
        low = max(0, start - self.window + 1)
        keys, values = memory.store.span(low, stop)
        # Only differences of positions count: small ones keep the rotation exact.
        at = torch.arange(stop - low)
        query, keys = self.rope.rotate(q, at[start - low :]), self.rope.rotate(keys, at)
        distance = (at[start - low :, None] - at[None]).to(q.device, non_blocking=True)
        seen = (distance >= 0) & (distance < self.window)
        if self.cap or sink is not None:
            return self._attend_plainly(query, keys, values, seen, sink)
        mask = None if stop - start == 1 else seen  # a single query sees all these keys
        shared = mask is None or takes_grouped_heads(q.device)
        if not shared:
            keys, values = (x.repeat_interleave(len(q) // len(x), dim=0) for x in (keys, values))
        out: Tensor = scaled_dot_product_attention(
            query[None], keys[None], values[None], mask, scale=self.scale, enable_gqa=shared
        )
        return out[0]

    def _attend_plainly(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor, sink: Tensor | None
    ) -> Tensor:
        """Attention in plain float32 operations: fused attention has neither cap nor sink."""
        heads, count, dim = q.shape
        grouped = q.float().reshape(k.shape[0], -1, dim)
        logits = (grouped @ k.float().transpose(1, 2) * self.scale).view(heads, count, -1)
        logits = soft_capped(logits, self.cap).masked_fill_(~seen, -torch.inf)
        lse = logits.logsumexp(dim=-1)
        weights = logits.sub_(lse[..., None]).exp_().view(k.shape[0], -1, k.shape[1])
        out = (weights @ v.float()).view(heads, count, dim)
        return with_sink(out, lse, sink)[0].to(q.dtype)

"""Second moments of queries and keys, from which a compressor is fitted during prefill."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from esa_cli.attention.precision import to_float64


@dataclass
class Moments:
    """Second moments of a layer's folded queries and keys, (F, F) each, summed over tokens.

    Args:
        count: tokens added. seen: position after the last of them.
    """

    count: int = 0
    seen: int = 0
    queries: Tensor | None = field(default=None, repr=False)
    keys: Tensor | None = field(default=None, repr=False)

    def add(self, q: Tensor, k: Tensor, seen: int = 0) -> None:
        """Adds folded queries (n, F) and keys (n, F) of the tokens before position `seen`."""
        q, k = to_float64(q), to_float64(k)
        zeros = torch.zeros(q.shape[1], q.shape[1], dtype=q.dtype, device=q.device)
        queries = (zeros if self.queries is None else self.queries) + q.T @ q
        keys = (zeros if self.keys is None else self.keys) + k.T @ k
        count = self.count + q.shape[0]
        # In one statement without calls: an interruption (Ctrl-C) changes all or nothing.
        self.queries, self.keys, self.count, self.seen = queries, keys, count, seen

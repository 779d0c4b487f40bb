"""Attention to far tokens that each query head selected for itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from esa_cli.attention.interfaces import KVStore, Positions
from esa_cli.attention.rope import Rope


class Attend(Protocol):
    """A kernel call: q (H, C, D), k and v (G, n, D) -> output (H, C, D), log-sum-exp (H, C)."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, causal: bool
    ) -> tuple[Tensor, Tensor]: ...


def attend_per_head(
    attend: Attend,
    store: KVStore,
    rope: Rope,
    q: Tensor,
    selected: Sequence[Tensor],
    positions: Sequence[Positions],
) -> tuple[Tensor, Tensor]:
    """Output (H, C, D) and log-sum-exp (H, C) of queries q (H, C, D).

    Keys and values of all G heads are read for every query head.

    Args:
        selected: absolute positions (n,) for each of H query heads. positions: of these.
    """
    share = q.shape[0] // store.heads
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], float("-inf"), device=q.device)
    for head, at in enumerate(selected):
        if not at.shape[0]:
            continue
        keys, values = store.gather(at)
        group = slice(head // share, head // share + 1)
        keys = rope.rotate(keys[group], positions[head].key)
        query = rope.rotate(q[head : head + 1], positions[head].query)
        out[head], lse[head] = attend(query, keys, values[group], causal=False)
    return out, lse

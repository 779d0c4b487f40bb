"""Attention temperature: a factor of queries that grows with their position (Ministral 3)."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Temperature = Callable[[Tensor], Tensor]
"""Factors (n,) of queries at positions (n,)."""


def with_temperature(q: Tensor, factors: Temperature | None, at: Tensor) -> Tensor:
    """Queries (H, n, D) times the factors of positions (n,); as they are where a model has none."""
    return q if factors is None else q * factors(at.to(q.device, non_blocking=True))[:, None].to(q)


def without_temperature(q: Tensor, factors: Temperature | None, at: Tensor) -> Tensor:
    """Queries (H, n, D) divided by the factors of positions (n,)."""
    return q if factors is None else q / factors(at.to(q.device, non_blocking=True))[:, None].to(q)

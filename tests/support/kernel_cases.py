"""Queries, keys and values for kernels, and what loops make of them."""

from __future__ import annotations

import reference
import torch

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
GROUPS = [(2, 2), (6, 2), (8, 1)]
"""H and G."""
DIM = 8


def draw(heads: int, groups: int, chunk: int, keys: int, dim: int = DIM) -> Tensors:
    return (
        torch.randn(heads, chunk, dim) * 2,
        torch.randn(groups, keys, dim),
        torch.randn(groups, keys, dim),
    )


def in_loops(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    lists = reference.plain(q), reference.plain(k), reference.plain(v)
    out, lse = reference.attend(*lists, causal, scale)
    return torch.tensor(out).reshape(q.shape), torch.tensor(lse)


def close(
    got: tuple[torch.Tensor, torch.Tensor],
    want: tuple[torch.Tensor, torch.Tensor],
    tolerance: float = 2e-6,
) -> None:
    torch.testing.assert_close(got[0].float(), want[0].float(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got[1], want[1].float(), rtol=tolerance, atol=tolerance)

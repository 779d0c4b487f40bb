"""Top-k without waiting for a GPU, against the sorted list; it computes the same on processors."""

from __future__ import annotations

import pytest
import reference
import torch

from esa_cli.attention.device_top_k import top_k_on_device
from esa_cli.attention.selection import top_k

INFINITY = float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2, 50, 1000])
def test_the_best_in_order(count: int, dtype: torch.dtype) -> None:
    """Of few different numbers, so that most are equal to others; and of many."""
    for scores in (torch.randint(-3, 3, (count,)) / 2, torch.randn(count)):
        scores = scores.to(dtype)
        for k in {1, count // 3 + 1, count}:
            got = top_k_on_device(scores, k)
            assert got.dtype == torch.int64
            assert got.tolist() == reference.top_k(scores.tolist(), k)
            assert torch.equal(got, top_k(scores, k))


@pytest.mark.parametrize("k", [1, 3, 5, 8])
def test_infinities_and_zeros(k: int) -> None:
    """0.0 and -0.0 are equal."""
    scores = torch.tensor([-0.0, 0.0, -INFINITY, 1e-45, INFINITY, -1e-45, -INFINITY, -0.0])
    assert top_k_on_device(scores, k).tolist() == reference.top_k(scores.tolist(), k)


def test_numbers_that_are_none_are_offsets_too() -> None:
    scores = torch.tensor([1.0, float("nan"), 2.0, float("nan")])
    assert len(set(top_k_on_device(scores, 3).tolist())) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_and_without_waiting() -> None:
    scores = torch.randint(-50, 50, (200_000,)) / 8
    on_gpu = scores.cuda()
    top_k(on_gpu, 2048)
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = top_k(on_gpu, 2048)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(got.cpu(), top_k(scores, 2048))

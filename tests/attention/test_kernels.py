"""Kernels that run on processors, and fusion, against loops."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import DIM, GROUPS, close, draw, in_loops

from esa_cli.attention.algebra import fuse_attention
from esa_cli.attention.kernels import attend
from esa_cli.storage.memory_store import MemoryKVStore

HERE = ["torch-cpu", "reference", "auto"]


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize(("heads", "groups"), GROUPS)
@pytest.mark.parametrize(
    ("chunk", "keys", "causal"),
    [
        (1, 1, False),
        (1, 33, False),
        (7, 20, False),
        (33, 20, False),
        (33, 33, False),
        (1, 1, True),
        (2, 2, True),
        (33, 33, True),
    ],
)
def test_kernel_matches_loops(
    kernel: str, heads: int, groups: int, chunk: int, keys: int, causal: bool
) -> None:
    q, k, v = draw(heads, groups, chunk, keys)
    got = attend(q, k, v, causal=causal, scale=0.3, kernel=kernel)
    assert got[0].shape == (heads, chunk, DIM)
    assert got[1].dtype == torch.float32
    close(got, in_loops(q, k, v, causal, 0.3))


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("causal", [False, True])
def test_strided_queries_keys_and_values(kernel: str, causal: bool) -> None:
    """As they come: queries transposed by the host, keys and values as views of a store."""
    store = MemoryKVStore(2, DIM, torch.float32, torch.device("cpu"))
    store.append(torch.randn(2, 40, DIM), torch.randn(2, 40, DIM))
    k, v = store.span(11, 31)
    q = torch.randn(1, 20, 6, DIM).transpose(1, 2)[0]
    assert not q.is_contiguous()
    assert not k.is_contiguous()
    close(
        attend(q, k, v, causal=causal, scale=0.35, kernel=kernel), in_loops(q, k, v, causal, 0.35)
    )


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16(kernel: str, causal: bool) -> None:
    q, k, v = (x.bfloat16() for x in draw(6, 2, 24, 24))
    got = attend(q, k, v, causal=causal, scale=0.3, kernel=kernel)
    assert got[0].dtype == torch.bfloat16
    assert got[1].dtype == torch.float32
    want = in_loops(q, k, v, causal, 0.3)
    torch.testing.assert_close(got[0].double(), want[0].double(), rtol=0.02, atol=0.02)
    torch.testing.assert_close(got[1].double(), want[1].double(), rtol=0.01, atol=0.02)


@pytest.mark.parametrize("kernel", HERE)
def test_without_keys(kernel: str) -> None:
    q, k, v = draw(6, 2, 4, 0)
    out, lse = attend(q, k, v, causal=False, scale=0.3, kernel=kernel)
    assert torch.equal(out, torch.zeros(6, 4, DIM))
    assert torch.equal(lse, torch.full((6, 4), -torch.inf))
    some = attend(*draw(6, 2, 4, 5), causal=False, scale=0.3, kernel="reference")
    close(fuse_attention([(out, lse), some]), some)
    close(fuse_attention([some, (out, lse)]), some)


@pytest.mark.parametrize("cuts", [(5,), (1,), (19,), (3, 11), (1, 19)])
@pytest.mark.parametrize("kernel", ["torch-cpu", "reference"])
def test_fusion_is_one_softmax_over_the_union(cuts: tuple[int, ...], kernel: str) -> None:
    q, k, v = draw(6, 2, 4, 20)
    parts = []
    for low, high in zip((0, *cuts), (*cuts, 20), strict=True):
        part = attend(q, k[:, low:high], v[:, low:high], causal=False, scale=0.3, kernel=kernel)
        parts.append(part)
    close(fuse_attention(parts), in_loops(q, k, v, False, 0.3))


@pytest.mark.parametrize("sizes", [(1e4, -1e4), (-1e4, 1e4), (1e4, 1e4), (-1e4, -1e4)])
@pytest.mark.parametrize("third", [None, 1e4, -1e4, 0.0])
def test_fusion_is_stable(sizes: tuple[float, float], third: float | None) -> None:
    """Logits of ten thousand, where the exp(lse) of Algorithm 1 would overflow or vanish."""
    wanted = [*sizes] if third is None else [*sizes, third]
    q = torch.zeros(2, 3, DIM)
    q[..., 0] = 1.0
    k = torch.zeros(2, 4 * len(wanted), DIM)
    for i, size in enumerate(wanted):
        k[:, 4 * i : 4 * i + 4, 0] = size + torch.tensor([0.0, 1.0, 2.0, 3.0])
    v = torch.randn(2, 4 * len(wanted), DIM)
    parts = []
    for i in range(len(wanted)):
        at = slice(4 * i, 4 * i + 4)
        parts.append(attend(q, k[:, at], v[:, at], causal=False, scale=1.0))
    out, lse = fuse_attention(parts)
    assert torch.isfinite(out).all()
    close((out, lse), in_loops(q, k, v, False, 1.0), tolerance=2e-3)


def test_fusion_keeps_the_parts_and_their_type() -> None:
    q, k, v = (x.bfloat16() for x in draw(2, 2, 3, 8))
    parts = [
        attend(q, k[:, :5], v[:, :5], causal=False, scale=0.3),
        attend(q, k[:, 5:], v[:, 5:], causal=False, scale=0.3),
    ]
    before = [(out.clone(), lse.clone()) for out, lse in parts]
    assert fuse_attention(parts)[0].dtype == torch.bfloat16
    for (out, lse), (old_out, old_lse) in zip(parts, before, strict=True):
        assert torch.equal(out, old_out)
        assert torch.equal(lse, old_lse)

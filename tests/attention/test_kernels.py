"""Kernels that run on processors, with windows, soft caps, sinks and float64, against loops."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_cases import DIM, GROUPS, close, draw, in_loops
from test_layer import build_rope

from esa_cli.attention import sliding_window
from esa_cli.attention.algebra import add_attention_sink, apply_soft_cap, fuse_attention, to_float64
from esa_cli.attention.kernels import attend, choose_kernel_name
from esa_cli.attention.method import LayerMemory
from esa_cli.attention.sliding_window import SlidingWindowAttention
from esa_cli.attention.window import QueryState
from esa_cli.errors import UsageError
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


class OnAMac(torch.Tensor):
    """Pretends to lie on a device without float64."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("mps")

    def double(self) -> torch.Tensor:
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype")

    def cpu(self) -> torch.Tensor:  # type: ignore[override]
        return self.as_subclass(torch.Tensor)


def test_a_device_without_float64_is_left_first() -> None:
    x = torch.tensor([1.0, 2.0])
    with pytest.raises(TypeError, match="MPS"):
        x.as_subclass(OnAMac).double()
    assert torch.equal(to_float64(x.as_subclass(OnAMac)), x.double())


def test_float64_is_float64() -> None:
    x = torch.rand(3, dtype=torch.bfloat16)
    assert to_float64(x).dtype == torch.float64
    assert to_float64(x).tolist() == x.tolist()


HEADS, KEY_HEADS, WIDTH, LENGTH, SCALE = 4, 2, 8, 40, 0.4


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = [(HEADS, LENGTH, WIDTH), (KEY_HEADS, LENGTH, WIDTH), (KEY_HEADS, LENGTH, WIDTH)]
    q, k, v = (2 * torch.randn(shape, generator=generator) for shape in shapes)
    return q, k, v


def one_query(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: int, window: int, cap: float, sink: float
) -> torch.Tensor:
    """(D,): attention of a head's query at `at`, rotated at true positions; no sink: -inf."""
    rope, weights, out = build_rope(WIDTH), [math.exp(sink)], torch.zeros(WIDTH)
    places = torch.arange(LENGTH)
    query, keys = rope.rotate(q[None], places)[0, at], rope.rotate(k[None], places)[0]
    for j in range(max(0, at - window + 1), at + 1):
        logit = float(query @ keys[j]) * SCALE
        logit = cap * math.tanh(logit / cap) if cap else logit
        weights.append(math.exp(logit))
        out += weights[-1] * v[j]
    return out / sum(weights)


@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize(
    ("window", "start", "block"), [(1, 0, 9), (7, 0, 9), (7, 33, 3), (60, 1, 40)]
)
def test_a_window_is_loops(
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    window: int,
    start: int,
    block: int,
    sinks: bool,
    cap: float,
) -> None:
    q, k, v = rows
    monkeypatch.setattr(sliding_window, "AT_ONCE", block)
    store = MemoryKVStore(KEY_HEADS, WIDTH, torch.float32, torch.device("cpu"))
    store.append(k, v)
    sink = torch.tensor([0.5, -1.0, 3.0, 0.0]) if sinks else None
    attention = SlidingWindowAttention(window, build_rope(WIDTH), SCALE, cap)
    got = attention(LayerMemory(0, store), q[:, start:], QueryState(), sink)
    for head in range(HEADS):
        group = head * KEY_HEADS // HEADS
        logit = -math.inf if sink is None else float(sink[head])
        for at in range(start, LENGTH):
            want = one_query(q[head], k[group], v[group], at, window, cap, logit)
            torch.testing.assert_close(got[head, at - start], want, rtol=1e-4, atol=1e-5)


def test_a_sink_is_one_more_key_without_a_value(
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    q, k, v = rows
    sink = torch.tensor([0.5, -1.0, 3.0, 0.0])
    out, lse = add_attention_sink(*attend(q, k, v, causal=False, scale=SCALE), sink)
    logits = torch.einsum("hcd,hnd->hcn", q, k.repeat_interleave(2, 0)) * SCALE
    both = torch.cat((logits, sink[:, None, None].expand(-1, LENGTH, 1)), dim=-1)
    weights = both.softmax(dim=-1)[..., :-1]
    torch.testing.assert_close(out, weights @ v.repeat_interleave(2, 0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse, both.logsumexp(dim=-1))
    assert add_attention_sink(out, lse, None)[0] is out


def test_a_soft_cap_needs_a_kernel_that_has_one(
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    q, k, v = rows
    assert choose_kernel_name(q, soft_cap=2.0) == "reference"
    assert choose_kernel_name(q) == "torch-cpu"
    with pytest.raises(UsageError, match="'torch-cpu' cannot run on cpu with"):
        attend(q, k, v, causal=True, scale=SCALE, kernel="torch-cpu", soft_cap=2.0)
    got, _ = attend(q, k, v, causal=True, scale=SCALE, soft_cap=2.0)
    logits = torch.einsum("hcd,hnd->hcn", q, k.repeat_interleave(2, 0)) * SCALE
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    weights = apply_soft_cap(logits, 2.0).masked_fill(later, -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(got, weights @ v.repeat_interleave(2, 0), rtol=1e-5, atol=1e-5)

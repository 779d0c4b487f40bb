"""Layers with a window, and soft caps and sinks, against loops over single queries."""

from __future__ import annotations

import math

import pytest
import torch
from test_layer import build_rope

from esa_cli.attention import sliding_window
from esa_cli.attention.algebra import add_attention_sink, apply_soft_cap
from esa_cli.attention.kernels import attend, choose_kernel_name
from esa_cli.attention.method import LayerMemory
from esa_cli.attention.sliding_window import SlidingWindowAttention
from esa_cli.attention.window import QueryState
from esa_cli.errors import UsageError
from esa_cli.storage.memory_store import MemoryKVStore

HEADS, GROUPS, DIM, LENGTH, SCALE = 4, 2, 8, 40, 0.4


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = [(HEADS, LENGTH, DIM), (GROUPS, LENGTH, DIM), (GROUPS, LENGTH, DIM)]
    q, k, v = (2 * torch.randn(shape, generator=generator) for shape in shapes)
    return q, k, v


def one_query(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: int, window: int, cap: float, sink: float
) -> torch.Tensor:
    """(D,): attention of a head's query at `at`, rotated at true positions; no sink: -inf."""
    rope, weights, out = build_rope(DIM), [math.exp(sink)], torch.zeros(DIM)
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
    store = MemoryKVStore(GROUPS, DIM, torch.float32, torch.device("cpu"))
    store.append(k, v)
    sink = torch.tensor([0.5, -1.0, 3.0, 0.0]) if sinks else None
    attention = SlidingWindowAttention(window, build_rope(DIM), SCALE, cap)
    got = attention(LayerMemory(0, store), q[:, start:], QueryState(), sink)
    for head in range(HEADS):
        group = head * GROUPS // HEADS
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

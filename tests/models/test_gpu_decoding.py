"""Answers decoded by real CUDA graphs are those of forward calls.

Not run so far: this project has had no GPU.
"""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import test_graph_selection
import torch
from conftest import ModelFactory
from test_graph_decoding import DOCUMENT, IDS, KEPT, KINDS, both, opened

from esa_cli.attention.method import Method
from esa_cli.models.attachment.attach import attach
from esa_cli.models.decoding.cuda_graph import CudaGraph, graphs_on
from esa_cli.models.decoding.graph_decoding import GraphDecoding

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of float32 numbers are not rounded to TF32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_over_several_recordings(make_model: ModelFactory, kind: str) -> None:
    method, weights = KINDS[kind]
    model: Any = make_model(kind, initializer_range=weights, tie_word_embeddings=False).to(CUDA)
    got, want = both(model, method, 60, 24, CudaGraph)
    assert got.decoding is not None
    assert (got.decoding.reason, got.decoding.replayed) == ("", 57)
    assert got.tokens == want.tokens
    torch.testing.assert_close(got.logits, want.logits, rtol=1e-3, atol=1e-3)
    for mine, theirs in zip(got.rows, want.rows, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scoring", ["auto", "tiled"])
@pytest.mark.parametrize("method", [test_graph_selection.PAPER, test_graph_selection.GROWING])
def test_each_token_selects(make_model: ModelFactory, method: Method, scoring: str) -> None:
    model: Any = test_graph_selection.model_of(make_model, "llama").to(CUDA)
    got, want = test_graph_selection.both(model, replace(method, scoring=scoring), make=CudaGraph)
    assert got.decoding is not None
    assert (got.decoding.reason, got.decoding.replayed) == ("", 37)
    assert got.tokens == want.tokens
    torch.testing.assert_close(got.logits, want.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_same_tokens_in_half_precision(make_model: ModelFactory, dtype: torch.dtype) -> None:
    """With `torch-varlen`, which takes the number of keys from the device."""
    model: Any = make_model("llama", head_dim=64).to(CUDA, dtype)
    tokens = torch.randint(1, 60, (40, 1, 1), device=CUDA)
    found = []
    with attach(model, KEPT) as attached, torch.inference_mode():
        for room in (0, 16):
            cache = opened(attached)
            model(IDS[:, DOCUMENT:].to(CUDA), past_key_values=cache, use_cache=True)
            decoding = GraphDecoding(attached, cache, CudaGraph, room=room or 16, first=2)
            if not room:
                decoding.reason = "compared with"
            found.append(torch.cat([decoding(one)[:, -1].float().clone() for one in tokens]))
            assert decoding.replayed == (37 if room else 0), decoding.reason  # one is compared
    torch.testing.assert_close(found[1], found[0], rtol=0.05, atol=0.1)


def test_replaying_waits_for_nothing_and_memory_is_freed(make_model: ModelFactory) -> None:
    model: Any = make_model("llama").to(CUDA)
    with attach(model, KEPT) as attached, torch.inference_mode():
        cache, token = opened(attached), IDS[:, :1].to(CUDA)
        model(IDS[:, DOCUMENT:].to(CUDA), past_key_values=cache, use_cache=True)
        decoding = GraphDecoding(
            attached, cache, CudaGraph, room=64, first=2, outcomes={True: True}
        )
        for _ in range(5):  # libraries keep what they allocate for the first recording
            decoding(token)
        assert decoding.replayed == 3
        decoding.flush()
        gc.collect()
        before = torch.cuda.memory_allocated()
        for _ in range(3):
            decoding(token)
        assert decoding.replayed == 6
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                decoding(token)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        decoding.flush()
        gc.collect()
        assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_a_forward_call_that_waits_is_not_recorded(make_model: ModelFactory) -> None:
    model: Any = make_model("llama").to(CUDA)
    layer = model.model.layers[1]
    handle = layer.register_forward_hook(lambda *given: float(given[-1].sum()) and None)
    got, want = both(model, KEPT, 12, 8, CudaGraph)
    handle.remove()
    assert got.tokens == want.tokens
    assert got.decoding is not None
    assert "waits for the GPU" in got.decoding.reason
    assert graphs_on(CUDA) is CudaGraph
    again, _ = both(model, KEPT, 12, 8, CudaGraph)
    assert again.decoding is not None
    assert again.decoding.replayed == 9

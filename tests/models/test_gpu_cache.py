"""Keys and values in host memory with CUDA: equal numbers, bounded memory.

Not run so far: this project has had no GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import ModelFactory
from test_host_cache import METHODS, VOCABULARY, run

from esa_cli.storage.memory_store import MemoryStore, StorePlaces

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda", 0)
HEADS, DIM = 8, 128


def filled(store: Any, tokens: int, piece: int = 1024) -> Any:
    random = torch.Generator(CUDA).manual_seed(3)
    for _ in range(0, tokens, piece):
        rows = torch.randn(2, HEADS, piece, DIM, device=CUDA, generator=random)
        store.append(*rows.to(store.dtype))
    return store


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("kind", "pieces"), [("llama", 16), ("llama", 120), ("deepseek_v3", 16)])
def test_answers_are_those_of_a_cache_on_the_device(
    make_model: ModelFactory, name: str, kind: str, pieces: int
) -> None:
    model: Any = make_model(kind, vocab_size=VOCABULARY).to(CUDA)
    want = run(model, METHODS[name], None, pieces)
    got = run(model, METHODS[name], StorePlaces().stores(range(2)), pieces)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_device_has_the_last_tokens_and_reduced_keys_alone() -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    store = filled(MemoryStore(HEADS, DIM, torch.bfloat16, CUDA, on_host=True), 131_072)
    store.append_features(torch.zeros(131_072, 32, dtype=torch.bfloat16, device=CUDA))
    for start in range(0, 120_000, 1000):
        store.gather(torch.arange(start, start + 1000, device=CUDA))
    for _ in store.key_blocks(0, 131_072):
        pass
    torch.cuda.synchronize()
    taken = torch.cuda.memory_allocated() - before
    rows = 2 * HEADS * DIM * 2
    assert taken <= 1.1 * (5120 * rows + 131_072 * 32 * 2) + (8 << 20)
    assert taken < 131_072 * rows // 8

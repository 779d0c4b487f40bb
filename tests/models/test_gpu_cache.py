"""Keys and values in host memory with CUDA: equal numbers, bounded memory, pinned copies.

Not run so far: this project has had no GPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import ModelFactory
from test_host_cache import METHODS, VOCABULARY, run

from esa_cli.qa.ingestion.cache_placement import CachePlacement
from esa_cli.storage.host_copies import HostCopies
from esa_cli.storage.host_store import HostStore
from esa_cli.storage.memory_store import MemoryStore
from esa_cli.storage.store_places import StorePlaces

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
    got = run(model, METHODS[name], StorePlaces(16).stores(range(2)), pieces)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_those_of_a_store_on_the_device(dtype: torch.dtype) -> None:
    host = filled(HostStore(HEADS, DIM, dtype, HostCopies(CUDA), 2048), 40_960)
    plain = filled(MemoryStore(HEADS, DIM, dtype, CUDA), 40_960)
    random = torch.Generator(CUDA).manual_seed(4)
    for step in range(20):
        at = torch.randperm(40_000, generator=random, device=CUDA)[:2048].sort().values
        if step % 2:
            host.prefetch(at)
            torch.randn(4096, 4096, device=CUDA).square_()  # the GPU computes meanwhile
        for mine, theirs in zip(host.gather(at), plain.gather(at), strict=True):
            assert torch.equal(mine, theirs)
        for store in (host, plain):
            store.crop(-7 * step)
            rows = torch.full((2, HEADS, 7 * step, DIM), float(step), device=CUDA, dtype=dtype)
            store.append(*rows)
    keys = [torch.cat([k for _, k in s.key_blocks(0, len(s))], 1) for s in (host, plain)]
    assert torch.equal(*keys)
    for mine, theirs in zip(host.span(0, 40_960), plain.span(0, 40_960), strict=True):
        assert torch.equal(mine, theirs)


def test_the_device_has_the_last_tokens_and_reduced_keys_alone() -> None:
    copies = HostCopies(CUDA)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    store = filled(HostStore(HEADS, DIM, torch.bfloat16, copies, 4096), 131_072)
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


def test_host_memory_is_pinned_and_copies_do_not_wait() -> None:
    copies = HostCopies(CUDA)
    store = filled(HostStore(HEADS, DIM, torch.bfloat16, copies, 4096), 65_536)
    store.release()
    assert all(part.is_pinned() for matrix in store._host for part in matrix._segments)
    store.gather(torch.arange(1000, device=CUDA))
    assert any(one._bytes.is_pinned() for one in copies._staging)
    source = store._host[0].span(16_384, 24_576)
    assert source.is_pinned(), "rows of one segment are not copied"
    pending = copies.to_device(source)
    torch.cuda.synchronize()
    assert pending.get().device == CUDA
    torch.cuda._sleep(200_000_000)  # what computes is busy; a copy goes on beside it
    pending = copies.to_device(source)
    pending.event.synchronize()
    assert not torch.cuda.current_stream().query(), "the copy was done before"
    torch.cuda.synchronize()


def test_layers_are_placed_by_the_memory_that_is_free(make_model: ModelFactory) -> None:
    model: Any = make_model("llama", vocab_size=VOCABULARY).to(CUDA)
    method = METHODS["reduced keys"]
    assert CachePlacement(model, method, "auto").on_host([CUDA, CUDA], 1000) == set()
    tight = CachePlacement(model, method, "auto", free=lambda device: 0)
    assert tight.on_host([CUDA, CUDA], 100_000) == {0, 1}

"""Scores by a kernel in two passes: its algorithm in plain torch, and the Triton kernels, against
loops and against tiles of torch's products. Triton's interpreter runs the kernels here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from conftest import build_rope, build_step
from simulated_device import DEVICE, SimulatedDevice, lies_there

from esa_cli.attention import fused_scoring, scoring, selection
from esa_cli.attention.compression import Linear
from esa_cli.attention.fused_scoring import fused_scores, scoring_kernel
from esa_cli.attention.kernels.plain_scorer import PlainScorer
from esa_cli.attention.kernels.scorer_operands import (
    KeyGroup,
    ScoringKernel,
    tile_queries,
    tiles_for,
)
from esa_cli.attention.scoring import SumScore
from esa_cli.attention.selection import TopK, checked_selection, top_k
from esa_cli.attention.step import Step
from esa_cli.errors import UsageError
from esa_cli.storage.joined_store import JoinedStore, PerDocumentMaps, StoreSlice
from esa_cli.storage.memory_store import MemoryStore

FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
CHUNKS, MIDDLES, RANKS = (1, 7, 64), (1, 63, 1000), (8, 64, 100)
INTERPRETED = [
    (1, 1, 100, FLOAT), (1, 63, 8, HALF), (1, 1000, 64, BRAIN),
    (7, 1, 8, BRAIN), (7, 63, 64, FLOAT), (7, 1000, 100, HALF),
    (64, 1, 64, HALF), (64, 63, 100, BRAIN), (64, 300, 8, FLOAT), (130, 70, 200, BRAIN),
]  # fmt: skip
"""Each pair of sizes, and of a size and a type, once: a tile takes milliseconds there."""


@pytest.fixture(params=["plain", "triton"])
def kernel(request: pytest.FixtureRequest) -> ScoringKernel:
    return PlainScorer() if request.param == "plain" else interpreter()


def interpreter() -> ScoringKernel:
    pytest.importorskip("triton")
    if not fused_scoring.interpreted():
        pytest.skip("TRITON_INTERPRET is not 1: kernels are compiled, see the tests marked gpu")
    found = scoring_kernel("triton", torch.device("cpu"))
    assert found is not None
    return found


def group_of(chunk: int, rank: int, lengths: Sequence[int], dtype: torch.dtype) -> KeyGroup:
    """Random queries and keys in blocks, whose rows are parts of longer ones."""
    queries, offsets = torch.randn(chunk, rank), [sum(lengths[:i]) for i in range(len(lengths))]
    blocks = [torch.randn(n, 2 * rank).to(dtype)[:, :rank] for n in lengths]
    return KeyGroup(tile_queries(queries, dtype), blocks, offsets)


def products(group: KeyGroup) -> torch.Tensor:
    """(C, M) in float64, of the rounded queries."""
    some = group.queries
    q = some.rounded[: some.chunk, : some.rank].double()
    if some.scales is not None:
        q = q * some.scales[: some.chunk, None]
    return q @ torch.cat(list(group.blocks)).double().T


def check(kernel: ScoringKernel, group: KeyGroup) -> None:
    want = products(group)
    maxima = kernel.query_maxima(group)
    out = torch.full((want.shape[1],), float("nan"))
    kernel.chunk_maxima(group, maxima, out)
    torch.testing.assert_close(maxima.double(), want.amax(1), rtol=1e-5, atol=1e-4)
    wanted = torch.tensor(reference.chunk_maximum(want.tolist())).double()
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-4)
    assert float(out.amax()) == 0


@pytest.mark.parametrize("dtype", [FLOAT, HALF, BRAIN])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_the_algorithm_is_eq_4(chunk: int, dtype: torch.dtype) -> None:
    for middle in MIDDLES:
        for rank in RANKS:
            check(PlainScorer(), group_of(chunk, rank, [middle], dtype))


@pytest.mark.parametrize(("chunk", "middle", "rank", "dtype"), INTERPRETED)
def test_the_triton_kernels_are_eq_4(
    chunk: int, middle: int, rank: int, dtype: torch.dtype
) -> None:
    check(interpreter(), group_of(chunk, rank, [middle], dtype))


def test_several_blocks_are_one_launch(kernel: ScoringKernel) -> None:
    check(kernel, group_of(7, 24, [130, 1, 40], BRAIN))


def test_programs_share_the_tiles_of_a_block(
    kernel: ScoringKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer programs than tiles: each reduces several."""
    if not isinstance(kernel, PlainScorer):
        monkeypatch.setattr("esa_cli.attention.kernels.triton_scorer.PARTIAL_MAXIMA", 4)
    check(kernel, group_of(7, 8, [700, 300], BRAIN))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_infinite_products_score_lowest(kernel: ScoringKernel) -> None:
    """Positive queries; -inf in a key makes each of its products -inf."""
    group = group_of(7, 20, [40], FLOAT)
    group = replace(group, queries=tile_queries(torch.rand(7, 20), FLOAT))
    group.blocks[0][[3, 39], 5] = float("-inf")
    check(kernel, group)


def test_equal_keys_have_equal_scores(kernel: ScoringKernel) -> None:
    """In different tiles; of two equals the first is selected."""
    group = group_of(1, 20, [256], BRAIN)
    group.blocks[0][128:] = group.blocks[0][:128]
    out = torch.empty(256)
    kernel.chunk_maxima(group, kernel.query_maxima(group), out)
    assert torch.equal(out[:128], out[128:])
    best = set(top_k(out, 5).tolist())
    twins = {token for token in best if token + 128 in best}
    assert (len(twins), len({token % 128 for token in best}), len(best)) == (2, 3, 5)
    assert max(best - twins - {token + 128 for token in twins}) < 128


@pytest.mark.parametrize("factor", [1e6, 1e-9, 0.0])
def test_queries_beyond_float16_lose_no_digits(kernel: ScoringKernel, factor: float) -> None:
    queries = torch.randn(7, 20) * factor
    prepared = tile_queries(queries, HALF)
    assert prepared.scales is not None
    back = prepared.rounded[:7, :20].float() * prepared.scales[:7, None]
    torch.testing.assert_close(back, queries, rtol=2**-10, atol=factor * 1e-6)
    group = KeyGroup(prepared, [torch.randn(40, 20).to(HALF)], [0])
    want = products(group).amax(1)
    torch.testing.assert_close(kernel.query_maxima(group).double(), want, rtol=1e-5, atol=0)


def test_tiles_are_powers_of_two_that_tensor_cores_take() -> None:
    for dtype in (FLOAT, HALF, BRAIN):
        for size in (1, 15, 16, 17, 48, 128, 129, 512, 1024):
            tiles = tiles_for(size, size, dtype)
            for count in (tiles.queries, tiles.tokens, tiles.numbers):
                assert 16 <= count <= 128
                assert count & (count - 1) == 0


def random_step(
    chunk: int, middle: int, dtype: torch.dtype = FLOAT, rank: int | None = 5, **more: Any
) -> Step:
    q, k = torch.randn(6, chunk, 8).to(dtype), torch.randn(2, middle, 8).to(dtype)
    maps = None if rank is None else Linear(torch.randn(16, rank), torch.randn(16, rank))
    return build_step(q, k, low=4, after=6, projection=maps, **more)


def fused(step: Step, kernel: ScoringKernel, rotate: bool = False) -> torch.Tensor:
    return fused_scores(step.sum_operands(rotate), step.middle, kernel)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("rank", [None, 5])
@pytest.mark.parametrize("chunk", [1, 6])
def test_scores_of_a_step_are_those_of_the_tiles(
    kernel: ScoringKernel, chunk: int, rank: int | None, rotate: bool
) -> None:
    """Blocks of segments that grow; with whole keys, which are views of longer rows."""
    step = random_step(chunk, 70, rank=rank)
    got, want = fused(step, kernel, rotate), SumScore(rotate).scores(step)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)
    assert float(got.amax()) == 0


def test_tables_that_are_given_are_used_again() -> None:
    """A recording cannot copy a table to the device, and reads its memory with every replay."""

    class Kernel(PlainScorer):
        def chunk_maxima(self, group: KeyGroup, maxima: torch.Tensor, out: torch.Tensor) -> None:
            seen.append(group.table)
            super().chunk_maxima(group, maxima, out)

    seen: list[torch.Tensor] = []
    step = replace(random_step(1, 70), tables={})
    for _ in range(2):
        fused(replace(step, queries=torch.randn_like(step.queries)), Kernel())
    fused(replace(step, high=step.high - 1), Kernel())
    assert seen[1] is seen[0]
    assert seen[2] is not seen[0]
    assert seen[0].shape == (3, 1)
    fused(replace(step, tables=None), Kernel())
    assert torch.equal(seen[3], seen[0])
    assert seen[3] is not seen[0]


@pytest.mark.usefixtures("small_segments")
def test_groups_are_bounded(kernel: ScoringKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    step = random_step(6, 70)
    whole = fused(step, kernel)
    sizes: list[int] = []
    maxima = type(kernel).query_maxima
    monkeypatch.setattr(
        type(kernel),
        "query_maxima",
        lambda self, group: sizes.append(len(group.blocks)) or maxima(self, group),
    )
    monkeypatch.setattr(fused_scoring, "GROUP_BYTES", 16 * 5 * 4)
    assert torch.equal(fused(step, kernel), whole)
    assert sizes[0] == 2
    assert len(sizes) > 2
    sizes.clear()
    monkeypatch.setattr(fused_scoring, "GROUP_BYTES", 1 << 20)
    monkeypatch.setattr(fused_scoring, "GROUP_BLOCKS", 3)
    assert torch.equal(fused(step, kernel), whole)
    assert max(sizes) == 3


def test_concatenated_documents_have_their_own_queries(kernel: ScoringKernel) -> None:
    """Two documents with maps of different ranks: the maximum of a query is over both."""
    maps = [Linear(torch.randn(16, rank), torch.randn(16, rank)) for rank in (3, 20)]
    parts = []
    for one in maps:
        store = MemoryStore(2, 8, FLOAT, torch.device("cpu"))
        keys = torch.randn(2, 30, 8)
        store.append(keys, keys)
        store.append_features(one.keys(keys.transpose(0, 1).reshape(30, 16)))
        parts.append(StoreSlice(store, 0, 30))
    joined = JoinedStore(parts, MemoryStore(2, 8, FLOAT, torch.device("cpu")))
    step = replace(
        random_step(6, 50), store=joined, low=2, high=60, projection=PerDocumentMaps([0, 30], maps)
    )
    torch.testing.assert_close(fused(step, kernel), SumScore().scores(step), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_rounded_queries_select_what_exact_ones_do(
    kernel: ScoringKernel, dtype: torch.dtype
) -> None:
    """Keys that share an offset, as trained ones do: a query's rounding moves all products alike,
    and its maximum is subtracted."""
    q, k = torch.randn(6, 3, 8) + 6, torch.randn(2, 400, 8) + 6
    maps = Linear(torch.eye(16), torch.eye(16))
    step = build_step(q.to(dtype), k.to(dtype), low=4, after=6, projection=maps)
    want, got = SumScore().scores(step), fused(step, kernel)
    spread = float(want.std())
    assert float((got - want).abs().amax()) < 0.02 * spread
    same = set(top_k(got, 40).tolist()) & set(top_k(want, 40).tolist())
    assert len(same) >= 38


def test_nothing_between_is_no_scores(kernel: ScoringKernel) -> None:
    step = random_step(6, 0)
    assert fused(step, kernel).shape == (0,)


def test_float64_keys_are_read_as_float32(kernel: ScoringKernel) -> None:
    step = random_step(6, 30, dtype=torch.float64, rank=None)
    torch.testing.assert_close(fused(step, kernel), SumScore().scores(step), rtol=1e-5, atol=1e-4)


def test_a_score_uses_the_kernel_that_is_set() -> None:
    kernel = interpreter()
    step = replace(random_step(6, 40), scoring="triton")
    assert torch.equal(SumScore().scores(step), fused(step, kernel))
    picked = checked_selection(TopK(proximity=2), step, 9)
    plain = checked_selection(TopK(proximity=2), replace(step, scoring="tiled"), 9)
    assert isinstance(picked, torch.Tensor)
    assert isinstance(plain, torch.Tensor)
    assert torch.equal(picked, plain)


def test_what_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    monkeypatch.setattr(fused_scoring, "installed", lambda: True)
    monkeypatch.setattr(fused_scoring, "interpreted", lambda: False)
    capability = [(8, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    assert scoring_kernel("auto", cpu) is None
    assert scoring_kernel("tiled", gpu) is None
    with pytest.raises(UsageError, match="cannot run on cpu"):
        scoring_kernel("triton", cpu)
    with pytest.raises(UsageError, match="unknown scoring 'fast'"):
        scoring_kernel("fast", cpu)
    assert fused_scoring.usable(gpu)
    monkeypatch.setattr(fused_scoring, "interpreted", lambda: True)
    assert scoring_kernel("auto", cpu) is None
    assert fused_scoring.usable(cpu)
    assert not fused_scoring.usable(gpu)
    monkeypatch.setattr(fused_scoring, "interpreted", lambda: False)
    capability[0] = (7, 5)
    assert not fused_scoring.usable(gpu)
    capability[0] = (9, 0)
    monkeypatch.setattr(fused_scoring, "installed", lambda: False)
    assert scoring_kernel("auto", gpu) is None
    with pytest.raises(UsageError, match=r"needs triton 3\.4"):
        scoring_kernel("triton", gpu)


@pytest.mark.process
def test_the_kernels_compile_for_gpus() -> None:
    """For Ampere and Hopper: tensor cores, wide loads of keys, and shared memory that the smallest
    of these GPUs have."""
    pytest.importorskip("triton")
    script = Path(__file__).parents[1] / "support" / "compiled_scorer.py"
    cases = [
        (512, 128, "bf16", 5), (512, 192, "bf16", 1), (1, 128, "bf16", 1), (512, 64, "fp16", 5),
    ]  # fmt: skip
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), json.dumps(cases)],
        capture_output=True, text=True, env=env, timeout=90,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 4 * len(cases)
    for row in rows:
        assert row["products"] > 0, row
        assert row["wide"] > 0, row
        assert row["narrow"] == 0, row
        assert row["shared"] <= 99 * 1024, row


@pytest.mark.parametrize("chunk", [1, 6])
def test_selection_on_a_simulated_device_waits_for_nothing(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maps of a stored document are copied to the device once."""
    step = random_step(chunk, 300)
    want = checked_selection(TopK(3), step, 40)
    monkeypatch.setattr(selection, "is_queued", lies_there)
    monkeypatch.setattr(scoring, "scoring_kernel", lambda name, device: PlainScorer())
    with SimulatedDevice() as device:
        there = moved(step, DEVICE)
        first = checked_selection(TopK(3), there, 40)
        before = device.waits
        second = checked_selection(TopK(3), there, 40)
        assert device.waits == before, (device.reads, device.copies)
        assert lies_there(second)
        assert torch.equal(first, second)
        assert torch.equal(second.cpu(), want)


def moved(step: Step, device: torch.device) -> Step:
    """The step with its queries and a copy of its store on another device."""
    keys, values = (x.to(device) for x in step.store.span(0, len(step.store)))
    store = MemoryStore(step.store.heads, step.store.dim, keys.dtype, device)
    store.append(keys, values)
    for _, features in step.store.feature_blocks(0, step.store.reduced):
        store.append_features(features.to(device))
    return replace(step, queries=step.queries.to(device), store=store)


GPU = torch.device("cuda", 0)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [FLOAT, HALF, BRAIN])
@pytest.mark.parametrize(
    ("chunk", "middle", "rank"), [(1, 5000, 48), (7, 63, 100), (512, 40000, 128)]
)
def test_scores_on_a_gpu(chunk: int, middle: int, rank: int, dtype: torch.dtype) -> None:
    q, k = torch.randn(6, chunk, 64).to(dtype), torch.randn(2, middle, 64).to(dtype)
    maps = Linear(torch.randn(128, rank) / 8, torch.randn(128, rank) / 8)
    step = build_step(q, k, low=4, after=6, projection=maps, rope=build_rope(64))
    # Both on the GPU: the processor's queries, rounded to bfloat16, differ in some last bits.
    there = moved(step, GPU)
    want = fused(there, PlainScorer())
    got = SumScore().scores(replace(there, scoring="triton"))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("chunk", [1, 64])
def test_selection_on_a_gpu_waits_for_nothing(chunk: int) -> None:
    q, k = torch.randn(6, chunk, 8).to(BRAIN), torch.randn(2, 40000, 8).to(BRAIN)
    maps = Linear(torch.randn(16, 8), torch.randn(16, 8))
    step = replace(moved(build_step(q, k, low=4, after=6, projection=maps), GPU), scoring="triton")
    first = checked_selection(TopK(3), step, 500)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        second = checked_selection(TopK(3), step, 500)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert torch.equal(first, second)
    assert first.shape == (500,)

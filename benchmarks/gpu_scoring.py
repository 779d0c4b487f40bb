"""How long a chunk's selection takes in one layer: scores and the k best, by every way of scoring.

    python benchmarks/gpu_scoring.py --middles 128k,512k,1M --chunks 1,512 --ranks 128,256,512
    python benchmarks/gpu_scoring.py --sweep --middles 1M --chunks 512 --ranks 128

Random queries of 32 heads and random reduced keys, in segments as in a store. One row for each
size: milliseconds (medians) of `tiled` and of the kernels' two passes, of the k best, and of the
product of queries and keys alone in the keys' type, which is written in pieces, not whole: twice
that is the floor of two passes. Beside them the most memory that each way takes, the largest
difference of scores, and the share of the k best that both ways select. `--sweep` times other tiles
of the kernels instead. `--device cpu` shows that it works: the kernels' algorithm in plain torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import torch
from common import append_line, named_device, tokens
from device_timing import seconds
from torch import Tensor

from esa_cli.attention import scoring
from esa_cli.attention.compression import Linear
from esa_cli.attention.fused_scoring import fused_scores
from esa_cli.attention.kernels import scorer_operands
from esa_cli.attention.kernels.plain_scorer import PlainScorer
from esa_cli.attention.kernels.scorer_operands import ScoringKernel, Tiles
from esa_cli.attention.selection import proximity, top_k
from esa_cli.attention.step import Step
from esa_cli.storage.memory_store import MemoryStore

HEADS, GROUPS, DIM = 32, 8, 128
SELECTED, EPSILON = 2048, 3
PIECE = 1 << 17
"""Tokens of a piece of the product alone: 512 queries in bfloat16 take 128 MB."""
TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--middles", default="128k,512k,1M", help="M, as 128k,1M")
    parser.add_argument("--chunks", default="1,512", help="C")
    parser.add_argument("--ranks", default="128,256,512", help="R")
    parser.add_argument("--dtype", choices=TYPES, default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--sweep", action="store_true", help="time tiles of the kernels")
    parser.add_argument("--out", default="", help="append rows to this file of JSON lines")
    args = parser.parse_args()
    device, name = named_device(args.device)
    facts = {"device": name, "dtype": args.dtype, "torch": torch.__version__}
    sizes = (args.middles.split(","), args.chunks.split(","), args.ranks.split(","))
    for middle, chunk, rank in product(*(map(tokens, one) for one in sizes)):
        step = random_step(middle, chunk, rank, TYPES[args.dtype], device)
        size = {"M": middle, "C": chunk, "R": rank}
        rows = swept(step, args.runs) if args.sweep else [measured(step, args.runs)]
        for row in rows:
            print(json.dumps(facts | size | row), flush=True)
            append_line(args.out, facts | size | row)


def random_step(
    middle: int, chunk: int, rank: int, dtype: torch.dtype, device: torch.device
) -> Step:
    """A step whose store has reduced keys alone."""
    torch.manual_seed(0)
    folded = GROUPS * DIM
    store = MemoryStore(GROUPS, DIM, dtype, device)
    for start in range(0, middle, PIECE):
        count = min(PIECE, middle - start)
        store.append_features(torch.randn(count, rank, device=device).to(dtype))
    maps = Linear(*(torch.randn(folded, rank, device=device) / folded for _ in range(2)))
    return Step(
        layer=0, start=middle, queries=torch.randn(HEADS, chunk, DIM, device=device).to(dtype),
        store=store, low=0, high=middle, local=0, distance=0, scale=1.0, rope=None,  # type: ignore[arg-type]
        scorer=scoring.SumScore().scores, projection=maps, scoring="tiled",
    )  # fmt: skip


def kernel_of(step: Step) -> ScoringKernel:
    """The Triton kernels where they run; else their algorithm in plain torch."""
    device = step.queries.device
    found = scoring.scoring_kernel("auto", device)
    return found or PlainScorer()


def measured(step: Step, runs: int) -> dict[str, Any]:
    kernel, k = kernel_of(step), min(SELECTED, step.middle)
    ways: dict[str, Callable[[], Tensor]] = {
        "tiled": step.scores,
        "fused": lambda: fused_scores(step.sum_operands(False), step.middle, kernel),
    }
    found = {name: way() for name, way in ways.items()}
    same = [set(top_k(proximity(scores, EPSILON), k).tolist()) for scores in found.values()]
    row: dict[str, Any] = {"kernel": type(kernel).__name__}
    for name, way in ways.items():
        row[f"{name}_ms"] = milliseconds(way, runs, step.queries.device)
        row[f"{name}_mb"] = peak_mb(way, step.queries.device)
    scores = found["fused"]
    select = lambda: top_k(proximity(scores, EPSILON), k)  # noqa: E731
    row["top_k_ms"] = milliseconds(select, runs, step.queries.device)
    row["product_ms"] = milliseconds(lambda: product_alone(step), runs, step.queries.device)
    blocks = [keys for _, keys in step.store.feature_blocks(0, step.middle, PIECE)]
    flops = 2 * step.queries.shape[1] * step.middle * blocks[0].shape[1]
    passes = 1 if step.queries.shape[1] == 1 else 2
    row["keys_mb"] = round(sum(keys.nbytes for keys in blocks) / 1e6, 1)
    row["fused_tflop_s"] = round(passes * flops / row["fused_ms"] / 1e9, 2)
    row["difference"] = float((found["fused"] - found["tiled"]).abs().amax())
    row["same_share"] = round(len(same[0] & same[1]) / k, 4)
    return row


def product_alone(step: Step) -> Tensor:
    """Queries times keys, in the keys' type; the last piece."""
    out = torch.empty(0)
    for block in step.sum_operands(False).blocks(PIECE):
        out = block.queries.to(block.keys.dtype) @ block.keys.T
    return out


def milliseconds(way: Callable[[], Tensor], runs: int, device: torch.device) -> float:
    return round(1000 * seconds(way, device, runs), 4)


def peak_mb(way: Callable[[], Tensor], device: torch.device) -> float | None:
    """The most memory that a way takes beside what there was; None where torch does not know."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    way()
    return round((torch.cuda.max_memory_allocated(device) - before) / 1e6, 1)


@contextmanager
def launched_with(tiles: Tiles, warps: int, stages: int) -> Iterator[None]:
    """The kernels with other tiles."""
    from esa_cli.attention.kernels import triton_scorer

    options = triton_scorer.kernel_options
    with (
        patch.object(scorer_operands, "tiles_for", lambda *given: tiles),
        patch.object(
            triton_scorer,
            "kernel_options",
            lambda group: options(group) | {"num_warps": warps, "num_stages": stages},
        ),
    ):
        yield


def swept(step: Step, runs: int) -> Iterator[dict[str, Any]]:
    """Rows of other tiles, of those that this GPU can run; the first is the default."""
    kernel = kernel_of(step)
    assert not isinstance(kernel, PlainScorer), "a sweep needs a GPU with Triton"
    way = lambda: fused_scores(step.sum_operands(False), step.middle, kernel)  # noqa: E731
    device = step.queries.device
    rank = next(step.sum_operands(False).blocks(PIECE)).keys.shape[1]
    default = scorer_operands.tiles_for(step.queries.shape[1], rank, step.store.dtype)
    yield {"tiles": "default", "fused_ms": milliseconds(way, runs, device)}
    choices = product(
        {default.queries, min(default.queries, 64)},
        (64, 128, 256),
        (32, 64, 128),
        (4, 8),
        (2, 3, 4),
    )
    for queries, keys, numbers, warps, stages in choices:
        tiles = replace(default, queries=queries, tokens=keys, numbers=numbers)
        row: dict[str, Any] = {"tiles": [queries, keys, numbers], "warps": warps, "stages": stages}
        try:
            with launched_with(tiles, warps, stages):
                row["fused_ms"] = milliseconds(way, runs, device)
        except Exception as error:  # too much shared memory, most often
            row["error"] = (str(error).splitlines() or [type(error).__name__])[0]
        yield row


if __name__ == "__main__":
    main()

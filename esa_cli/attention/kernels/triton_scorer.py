"""The scoring kernels of `scorer_tiles`, launched on a GPU or run by Triton's interpreter.

Not run on a GPU by this project: tested in the interpreter, and compiled for NVIDIA GPUs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import triton
from torch import Tensor

from esa_cli.attention.kernels import scorer_tiles
from esa_cli.attention.kernels.scorer_operands import KeyGroup

PARTIAL_MAXIMA = 256
"""Most programs that share a query's maximum: each writes one number for it."""


class TritonScorer:
    """Launches the kernels; see `ScoringKernel`."""

    def query_maxima(self, group: KeyGroup) -> Tensor:
        queries, blocks = group.queries, len(group.blocks)
        padded, tiles = queries.rounded.shape[0], queries.tiles
        most = max(1, PARTIAL_MAXIMA // blocks)
        splits = min(most, triton.cdiv(group.longest, tiles.tokens))
        partial = torch.empty(blocks * splits, padded, device=queries.rounded.device)
        grid = padded // tiles.queries, splits, blocks
        with _device_of(queries.rounded):
            scorer_tiles.query_maxima[grid](
                *_operands(group), partial, *_sizes(group), **kernel_options(group)
            )
        return partial.amax(dim=0)[: queries.chunk]

    def chunk_maxima(self, group: KeyGroup, maxima: Tensor, out: Tensor) -> None:
        grid = triton.cdiv(group.longest, group.queries.tiles.tokens), len(group.blocks)
        padded = group.queries.pad_maxima(maxima)
        with _device_of(out):
            scorer_tiles.chunk_maxima[grid](
                *_operands(group), padded, out, *_sizes(group), **kernel_options(group)
            )


def _device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Triton launches on the current device, whatever its arguments are on."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def _operands(group: KeyGroup) -> tuple[Tensor, Tensor, Tensor]:
    rounded, scales = group.queries.rounded, group.queries.scales
    return rounded, rounded if scales is None else scales, group.table


def _sizes(group: KeyGroup) -> tuple[int, int, int, int, int]:
    """blocks, C', R', R, row stride."""
    padded, width = group.queries.rounded.shape
    return len(group.blocks), padded, width, group.queries.rank, group.blocks[0].stride(0)


def kernel_options(group: KeyGroup) -> dict[str, Any]:
    """What a kernel is compiled for, by name."""
    queries, tiles = group.queries, group.queries.tiles
    step = group.blocks[0].stride(0) * group.blocks[0].element_size()
    aligned = step % 16 == 0 and all(block.data_ptr() % 16 == 0 for block in group.blocks)
    half = queries.rounded.dtype != torch.float32
    return {
        "QUERIES": tiles.queries,
        "TOKENS": tiles.tokens,
        "NUMBERS": tiles.numbers,
        "WHOLE": queries.rounded.shape[1] == tiles.numbers,
        "EVEN": queries.filled,
        "ALIGNED": aligned,
        "SCALED": queries.scales is not None,
        "PRECISION": "ieee",
        "WIDEN": not queries.rounded.is_cuda and half,
        "num_warps": 8 if tiles.queries == (128 if half else 64) else 4,
        "num_stages": 2,
    }

"""Token importance F_s(m; C), Eqs. (3)-(4), by a kernel in two passes over M.

Pass one has each query's maximum, pass two each token's score; products are computed in both, so
that memory is M numbers beside the keys. `SumScore` chooses between this and tiles of torch's
products, which are the reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice

import torch
from torch import Tensor

from esa_cli.attention.kernels.scorer_operands import (
    TYPES,
    KeyGroup,
    ScoringKernel,
    TileQueries,
    tile_queries,
)
from esa_cli.attention.sum_operands import SumOperands
from esa_cli.errors import UsageError

SCORING = ("auto", "tiled", "triton")
"""The setting `scoring`: `tiled` is torch's products, `auto` Triton where it runs."""
OLDEST = (3, 4)
"""The oldest version of Triton with which the kernels were compiled."""
GROUP_BYTES = 64 << 20
"""Most bytes of keys in one launch: more are kept on the device only where they are stored."""
GROUP_BLOCKS = 256


def fused_scores(operands: SumOperands, middle: int, kernel: ScoringKernel) -> Tensor:
    """(M,) float32 of `SumScore`.

    Queries are rounded to the keys' dtype, to what the model gave each head's; products and sums
    are float32.
    """
    chunk = operands.folded.shape[0]
    groups = _groups_of(operands)
    out = torch.empty(middle, device=operands.folded.device)
    if not middle:
        return out
    if chunk == 1:
        # A maximum over one query is its score: one pass, and the maximum of M scores.
        for group in groups():
            kernel.chunk_maxima(group, out.new_zeros(1), out)
        return out.sub_(out.amax())
    maxima = out.new_full((chunk,), float("-inf"))
    first = groups()
    kept = list(islice(first, 2))
    for group in chain(kept, first):
        maxima = torch.maximum(maxima, kernel.query_maxima(group))
    for group in kept if len(kept) < 2 else groups():
        kernel.chunk_maxima(group, maxima, out)
    return out


def _groups_of(operands: SumOperands) -> Callable[[], Iterator[KeyGroup]]:
    """A function that yields all of M in groups; queries are padded and rounded once."""
    known: dict[tuple[int, torch.dtype], TileQueries] = {}
    most = max(256, GROUP_BYTES // (4 * operands.folded.shape[1]))

    def group_of(queries: Tensor, keys: list[Tensor], offsets: list[int]) -> KeyGroup:
        kind = id(queries), keys[0].dtype
        if kind not in known:
            known[kind] = tile_queries(queries, keys[0].dtype)
        return KeyGroup(known[kind], keys, offsets, operands.tables)

    def groups() -> Iterator[KeyGroup]:
        # A store has dozens of blocks, in each layer and for each token: little is done for one.
        blocks: list[Tensor] = []
        offsets: list[int] = []
        queries, size = operands.folded, 0
        kind: tuple[object, ...] = ()
        for offset, its_queries, keys in operands.blocks(most):
            block = _readable(keys)
            nbytes, its_kind = block.nbytes, (block.stride(), block.dtype)
            if blocks and (
                size + nbytes > GROUP_BYTES
                or len(blocks) == GROUP_BLOCKS
                or its_queries is not queries
                or its_kind != kind
            ):
                yield group_of(queries, blocks, offsets)
                blocks, offsets, size = [], [], 0
            blocks.append(block)
            offsets.append(offset)
            queries, kind, size = its_queries, its_kind, size + nbytes
        if blocks:
            yield group_of(queries, blocks, offsets)

    return groups


def _readable(keys: Tensor) -> Tensor:
    """Keys (n, R) as a kernel can read them: the numbers of a key next to each other."""
    if keys.dtype not in TYPES:
        keys = keys.float()
    return keys if keys.stride(1) == 1 else keys.contiguous()


def installed() -> bool:
    """Whether a Triton that compiles the kernels is installed; torch's CUDA builds bring one."""
    if find_spec("triton") is None:
        return False
    try:
        found = import_module("triton").__version__
    except (ImportError, OSError, RuntimeError):
        return False
    return tuple(int(part) for part in found.split(".")[:2]) >= OLDEST


def interpreted() -> bool:
    """Whether Triton's interpreter runs kernels on the processor, as in tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def usable(device: torch.device) -> bool:
    """Whether the Triton kernels run there: on NVIDIA GPUs from Ampere (compute capability 8) on,
    and on processors where Triton's interpreter is on, which reads no addresses of a GPU."""
    if interpreted() or device.type == "cpu":
        return interpreted() and device.type == "cpu" and installed()
    if device.type != "cuda" or torch.version.hip is not None or not installed():
        return False
    return torch.cuda.get_device_capability(device)[0] >= 8


def scoring_kernel(name: str, device: torch.device) -> ScoringKernel | None:
    """The kernel called `name` for tensors on `device`; None: tiles of torch's products.

    Raises:
        UsageError: the name is unknown, or its kernel cannot run there.
    """
    if name not in SCORING:
        raise UsageError(f"unknown scoring {name!r}", f"known: {', '.join(SCORING)}")
    if name == "triton" and not installed():
        wanted = ".".join(map(str, OLDEST))
        raise UsageError(
            f"scoring 'triton' needs triton {wanted} or later", "pip install 'esa-cli[triton]'"
        )
    if name == "triton" and not usable(device):
        raise UsageError(f"scoring 'triton' cannot run on {device.type}", "try --set scoring=auto")
    if name == "tiled" or (name == "auto" and (device.type == "cpu" or not usable(device))):
        return None
    from esa_cli.attention.kernels.triton_scorer import TritonScorer

    return TritonScorer()

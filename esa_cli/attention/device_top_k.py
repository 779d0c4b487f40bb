"""Top-k on a GPU without waiting for it: no count is read back to the processor."""

from __future__ import annotations

import torch
from torch import Tensor


def is_queued(x: Tensor) -> bool:
    """Whether operations on x are queued on a device, so that reading a value waits for it."""
    return x.is_cuda


def top_k_on_device(scores: Tensor, k: int) -> Tensor:
    """Ascending indices (k,) of the k largest of scores (M,); among equals the earliest come first.

    Each score becomes a 64-bit integer of its own: the bits of a float32, in the order of the
    numbers, and below them its place from the end. torch.topk then has no ties to choose among.

    Args:
        scores: of at most 32 bits, M below 2^32. k: from 1 to M.
    """
    # Adding zero makes a zero of -0.0, whose bits would come below those of 0.0.
    bits = (scores.float() + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    last = scores.shape[0] - 1
    places = torch.arange(last, -1, -1, device=scores.device)
    best = ((ordered << 32) | places).topk(k, sorted=False).values
    return (last - (best & 0xFFFFFFFF)).sort().values

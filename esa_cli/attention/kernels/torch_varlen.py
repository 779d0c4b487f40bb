"""torch's public attention for sequences of several lengths: flash attention that returns its
log-sum-exp and takes fewer key heads than query heads. Not yet run on a GPU by this project."""

from __future__ import annotations

from functools import cache
from inspect import signature

import torch
from torch import Tensor

from esa_cli.attention.kernels import torch_cuda
from esa_cli.attention.kernels.gpu_limits import fits_flash

WANTED = {"return_aux", "scale", "window_size", "enable_gqa"}


@cache
def installed() -> bool:
    """Whether torch has it with the arguments that are wanted, and has flash attention."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    known = signature(varlen_attn).parameters
    return {*known} >= WANTED and torch.backends.cuda.is_flash_attention_available()


def usable(q: Tensor) -> bool:
    return fits_flash(q) and installed()


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """See `reference.attend`; also with C < N, causal ends with the last key."""
    heads, count, _ = q.shape
    if count == 1 and heads == k.shape[0]:
        # It splits the keys of a single query between multiprocessors only if heads share them.
        return torch_cuda.attend(q, k, v, False, scale)
    window = (-1, 0) if causal else (-1, -1)
    return _attend(q, k, v, _ends(k.shape[1], q), scale, window)


def attend_first(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """See `reference.attend_first`: one sequence that ends before the last key."""
    return _attend(q, k, v, ends, scale, (-1, -1))


def _attend(
    q: Tensor, k: Tensor, v: Tensor, ends: Tensor, scale: float, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    result = varlen_attn(
        q.transpose(0, 1),
        k.transpose(0, 1),
        v.transpose(0, 1),
        _ends(q.shape[1], q),
        ends,
        q.shape[1],
        k.shape[1],
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=window,
        enable_gqa=True,
    )
    # Its docstring has the lse as (C, H); the operator returns (H, C).
    return result[0].transpose(0, 1), result[1].float()


def _ends(count: int, like: Tensor) -> Tensor:
    """[0, count], made on the device: a copy from the host would wait for it."""
    return torch.arange(0, count + 1, count, dtype=torch.int32, device=like.device)

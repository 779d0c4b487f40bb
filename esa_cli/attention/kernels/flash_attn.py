"""Adapter to flash-attn 4, the extra `flash`: by name only, as it was never run on a GPU here.

It takes (batch, tokens, heads, D), with fewer key heads than query heads, and returns the output
likewise and the log-sum-exp (batch, heads, tokens).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

from esa_cli.attention.kernels.torch_cuda import capability, fits_flash


@cache
def flash_attn_func() -> Callable[..., Any] | None:
    """The package's function; None where the package is missing or was built for another torch."""
    try:
        function: Callable[..., Any] = import_module("flash_attn.cute").flash_attn_func
    except Exception:  # Just-in-time packages fail to load in many ways.
        return None
    return function


def usable(q: Tensor) -> bool:
    """Whether it runs q (H, C, D): on Hopper and Blackwell; the latter with D to 128, or 256."""
    if not fits_flash(q) or not 9 <= capability(q.device) <= 11:
        return False
    if capability(q.device) >= 10 and 128 < q.shape[-1] < 256:
        return False
    return flash_attn_func() is not None


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """See `reference.attend`; also with C < N, causal ends with the last key."""
    function = flash_attn_func()
    assert function is not None, "chosen only where it is installed"
    batch = (x.transpose(0, 1)[None] for x in (q, k, v))
    out, lse, *_ = function(
        *batch, softmax_scale=scale, causal=causal, softcap=cap, return_lse=True
    )
    return out[0].transpose(0, 1), lse[0].float()

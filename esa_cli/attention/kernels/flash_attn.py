"""Adapter to flash-attn 2; docs/extras.md says how to install it. The tests replace the package:
they have no GPU."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def installed() -> bool:
    """Whether flash-attn 2 is installed and loads; built for another torch, it does not. Version 4
    has a package of the same name without this function."""
    if find_spec("flash_attn") is None:
        return False
    try:
        return hasattr(import_module("flash_attn"), "flash_attn_func")
    except (ImportError, OSError, RuntimeError):
        return False


def usable(q: Tensor) -> bool:
    half = q.dtype in (torch.float16, torch.bfloat16)
    return q.device.type == "cuda" and half and installed()


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """See `reference.attend`. flash-attn wants (batch, tokens, heads, D), unfolded."""
    from flash_attn import flash_attn_func

    out, lse, _ = flash_attn_func(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        softmax_scale=scale,
        causal=causal,
        return_attn_probs=True,
    )
    return out[0].transpose(0, 1), lse[0].float()

"""torch's flex attention, compiled with triton, for a soft cap of the logits. Not yet run on a GPU
by this project; the tests run it uncompiled on processors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.kernels.gpu_limits import capability

NARROWEST = 16
"""Fewest dimensions of a head that triton's products take."""

VARIANTS = 256
"""Most compiled forms. torch's limit of 8 is passed by one model's chunks and tokens, with and
without gradients; behind it, flex attention writes out all logits."""

Logits = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""What becomes of a logit, of its batch, head, query and key."""


@cache
def installed() -> bool:
    """Whether torch has it with auxiliary outputs, and triton is installed."""
    try:
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError:
        return False
    return "return_aux" in signature(flex_attention).parameters and bool(find_spec("triton"))


def usable(q: Tensor) -> bool:
    on_gpu = q.device.type == "cuda" and capability(q.device) >= 8
    return on_gpu and q.shape[-1] >= NARROWEST and installed()


@cache
def compiled() -> Callable[..., Any]:
    """Flex attention, compiled at the first call and once more for changing numbers of tokens.

    With `dynamic=True` the cap and the scale would be read from the device in each call.
    """
    import torch._dynamo as dynamo
    from torch.nn.attention.flex_attention import flex_attention

    limits: Any = dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, VARIANTS)
    return torch.compile(flex_attention)


@cache
def changed_logits(cap: float, causal: bool) -> Logits:
    """One function for each cap: another would be compiled anew."""

    def change(logit: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap:
            logit = cap * torch.tanh(logit / cap)
        return torch.where(query >= key, logit, -torch.inf) if causal else logit

    return change


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """See `reference.attend`; causal needs C = N. Query groups are folded as on the CPU."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    heads, count, dim = q.shape
    groups = k.shape[0]
    if causal:
        assert count == k.shape[1], "causal attention is for a chunk with itself"
        query = q
    else:
        query = q.reshape(groups, heads // groups * count, dim)
    function: Any = compiled() if q.device.type == "cuda" else flex_attention
    out, aux = function(
        query[None],
        k[None],
        v[None],
        score_mod=changed_logits(cap, causal),
        scale=scale,
        enable_gqa=causal,
        return_aux=AuxRequest(lse=True),
    )
    return out.reshape(heads, count, dim), aux.lse.reshape(heads, count).float()

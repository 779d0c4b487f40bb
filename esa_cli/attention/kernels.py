"""Attention with its log-sum-exp: four kernels, and the choice of one by name or by the tensors.

A kernel takes q (H, C, D), k and v (G, N, D), query head h reading key head h // (H / G), and
returns out (H, C, D) in the dtype of q and lse (H, C) in float32, the log of the softmax's
denominator. Causal attention is for a chunk with itself, C = N. A soft cap of 0 is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.algebra import soft_capped
from esa_cli.attention.rope import Rope
from esa_cli.attention.step import Positions
from esa_cli.errors import UsageError

AT_ONCE = 128
"""Most queries in a block of `attend_within`."""

Output = tuple[Tensor, Tensor]
"""Output (H, C, D) and log-sum-exp (H, C)."""


def reference(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, cap: float = 0.0,
    seen: Tensor | None = None,
) -> Output:  # fmt: skip
    """softmax(scale * q k^T) v in plain float32 operations; other kernels are tested against it.
    Without keys, outputs are 0 and log-sum-exps -inf.

    Args:
        causal: query i sees the first N - C + i + 1 keys (the last query sees all of them).
        cap: soft cap of the logits; 0: none. seen: (C, N) bool, the keys that each query sees.
    """
    keys, values = (x.repeat_interleave(len(q) // len(k), dim=0).float() for x in (k, v))
    logits = soft_capped(q.float() @ keys.transpose(1, 2) * scale, cap)
    if causal:
        c, n = logits.shape[1:]
        seen = torch.ones(c, n, dtype=torch.bool, device=q.device).tril(n - c)
    if seen is not None:
        logits = logits.masked_fill(~seen, float("-inf"))
    lse = logits.logsumexp(dim=-1)
    weights = torch.nan_to_num(torch.exp(logits - lse[..., None]), nan=0.0)
    return (weights @ values).to(q.dtype), lse


def _grouped(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> list[Tensor]:
    """Queries, keys and values of as many heads, each with a batch axis, for torch's operators.
    Without a mask a group's H / G query heads are laid end to end, and keys are never repeated."""
    (heads, count, dim), groups = q.shape, k.shape[0]
    if not causal:
        return [q.reshape(1, groups, heads // groups * count, dim), k[None], v[None]]
    assert count == k.shape[1], "causal attention is for a chunk with itself"
    repeat = heads // groups
    return [q[None], *(x[:, None].expand(-1, repeat, -1, -1).flatten(0, 1)[None] for x in (k, v))]


def torch_cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Output:
    """torch's fused CPU attention."""
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = fused(*_grouped(q, k, v, causal), 0.0, causal, scale=scale)
    return out[0].reshape(q.shape), lse[0].reshape(q.shape[:2]).float()


def torch_cuda(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Output:
    """torch's flash attention in half precision, else its memory-efficient one, on a GPU."""
    query, keys, values = _grouped(q, k, v, causal)
    if _fits_flash(q):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out, lse, *_ = flash(query, keys, values, 0.0, causal, False, scale=scale)
    else:
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        out, lse, *_ = efficient(query, keys, values, None, True, 0.0, causal, scale=scale)
    # The memory-efficient operator pads the lse to a multiple of its block.
    return out[0].reshape(q.shape), lse[0, :, : query.shape[2]].reshape(q.shape[:2]).float()


def _fits_flash(q: Tensor) -> bool:
    """Whether flash attention takes q (H, C, D): in half precision, D up to 256, since Ampere."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    new = torch.cuda.get_device_capability(q.device) >= (8, 0)
    return half and new and q.shape[-1] <= 256 and q.shape[-1] % 8 == 0


@cache
def load_flash_attn() -> Callable[..., Any] | None:
    """Imports flash-attn 4's function; None: it is missing, or built for another torch."""
    try:
        function: Callable[..., Any] = import_module("flash_attn.cute").flash_attn_func
    except Exception:  # Just-in-time packages fail to load in many ways.
        return None
    return function


def flash_attn(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, cap: float = 0.0
) -> Output:
    """flash-attn 4, the extra `flash`, for Hopper and data-centre Blackwell in half precision. It
    takes (batch, tokens, heads, D) and returns lse (batch, heads, tokens)."""
    function = load_flash_attn()
    if function is None or not _fits_flash(q):
        raise UsageError(
            "kernel 'flash-attn' needs flash-attn 4, half precision, and heads of at most 256",
            "pip install 'esa-cli[flash]', or try --set kernel=auto",
        )
    batch = (x.transpose(0, 1)[None] for x in (q, k, v))
    options = {"softmax_scale": scale, "causal": causal, "softcap": cap, "return_lse": True}
    out, lse, *_ = function(*batch, **options)
    return out[0].transpose(0, 1), lse[0].float()


class Kernel(NamedTuple):
    """Computes attention on a type of device, or any (None); `caps`: also with soft caps;
    `by_name`: only if it is named, as it was never measured here."""

    attend: Callable[..., Output]
    device: str | None
    caps: bool = False
    by_name: bool = False

    def runs_on(self, device: str) -> bool:
        """Whether the kernel runs on a type of device."""
        return self.device in (None, device) and not (self.by_name and load_flash_attn() is None)


KERNELS: dict[str, Kernel] = {
    "torch-cuda": Kernel(torch_cuda, "cuda"),
    "torch-cpu": Kernel(torch_cpu, "cpu"),
    "reference": Kernel(reference, None, caps=True),
    "flash-attn": Kernel(flash_attn, "cuda", caps=True, by_name=True),
}
"""In order of preference."""


def choose(q: Tensor, name: str = "auto", cap: float = 0.0) -> str:
    """Returns the name of the kernel that computes attention of queries like q. Raises UsageError:
    the named one is unknown, cannot run on this device, or computes no soft cap."""
    usable = [
        key
        for key, kernel in KERNELS.items()
        if kernel.runs_on(q.device.type) and (kernel.caps or not cap)
    ]
    if name == "auto":
        return next(key for key in usable if not KERNELS[key].by_name)
    if name not in KERNELS:
        raise UsageError(f"unknown kernel {name!r}", f"known: auto, {', '.join(KERNELS)}")
    if name not in usable:
        where = q.device.type + (" with the model's soft cap of logits" if cap else "")
        raise UsageError(f"kernel {name!r} cannot run on {where}", "try --set kernel=auto")
    return name


def available() -> dict[str, bool]:
    """Whether this machine can run each kernel, for `esa doctor`."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return {key: any(map(kernel.runs_on, devices)) for key, kernel in KERNELS.items()}


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, kernel: str = "auto",
    cap: float = 0.0,
) -> Output:  # fmt: skip
    """softmax(scale * q k^T) v and its log-sum-exp, by the named kernel."""
    if not k.shape[1]:  # flash attention returns +inf there
        kernel = "reference"
    capped = {"cap": cap} if cap else {}
    return KERNELS[choose(q, kernel, cap)].attend(q, k, v, causal, scale, **capped)


def attend_within(
    q: Tensor, k: Tensor, v: Tensor, at: Positions, limit: int, rope: Rope, scale: float,
    cap: float = 0.0,
) -> Output:  # fmt: skip
    """Causal attention at distances min(query - key, limit), for ReRoPE.

    Logits within the limit come from true positions, the others from queries at `limit` and keys
    at 0. Source: Su, "Rectified Rotary Position Embeddings", 2023.

    Args:
        q, k, v: unrotated. at: positions (C,) and (N,) of queries and keys. limit: in tokens.
    """
    query, key = at.query.to(q.device), at.key.to(q.device)
    keys, values = (x.repeat_interleave(len(q) // len(k), dim=0).float() for x in (k, v))
    inside = rope.rotate(keys, key).transpose(1, 2)
    outside = (keys * rope.gain(keys)).transpose(1, 2)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=q.device)
    for start in range(0, q.shape[1], AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        block, position = q[:, rows].float(), query[rows]
        distance = position[:, None] - key[None]
        far = rope.rotate(block, torch.full_like(position, limit)) @ outside
        logits = torch.where(distance < limit, rope.rotate(block, position) @ inside, far) * scale
        logits = soft_capped(logits, cap).masked_fill_(distance < 0, float("-inf"))
        lse[:, rows] = logits.logsumexp(dim=-1)
        out[:, rows] = (logits.sub_(lse[:, rows, None]).exp_() @ values).to(q.dtype)
    return out, lse

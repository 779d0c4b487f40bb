"""Computes attention by one of four kernels, which also return the log-sum-exp of the logits.

A kernel takes queries q (H, C, D), keys k and values v (G, N, D), where query head h attends to the
keys of key head h // (H / G). A kernel returns out (H, C, D) in the dtype of q and lse (H, C) in
float32, the log of the softmax's denominator. Causal attention needs as many queries as keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.algebra import apply_soft_cap
from esa_cli.attention.rope import Rope
from esa_cli.attention.step import Positions
from esa_cli.errors import UsageError

AT_ONCE = 128
"""The largest number of queries in a block of `attend_with_capped_distance`."""

Output = tuple[Tensor, Tensor]
"""Output (H, C, D) and log-sum-exp (H, C)."""


def compute_reference_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, soft_cap: float = 0.0,
    visible_mask: Tensor | None = None,
) -> Output:  # fmt: skip
    """Computes softmax(scale * q k^T) v in plain float32 operations, with which tests compare other
    kernels. If there are no keys, the outputs are 0 and the log-sum-exps are -inf.

    Args:
        causal: query i sees the first N - C + i + 1 keys (the last query sees all of them).
        soft_cap: soft cap of the logits; 0 stands for none.
        visible_mask: bool (C, N), which says which keys each query sees."""
    keys, values = (x.repeat_interleave(len(q) // len(k), dim=0).float() for x in (k, v))
    logits = apply_soft_cap(q.float() @ keys.transpose(1, 2) * scale, soft_cap)
    if causal:
        c, n = logits.shape[1:]
        visible_mask = torch.ones(c, n, dtype=torch.bool, device=q.device).tril(n - c)
    if visible_mask is not None:
        logits = logits.masked_fill(~visible_mask, float("-inf"))
    lse = logits.logsumexp(dim=-1)
    weights = torch.nan_to_num(torch.exp(logits - lse[..., None]), nan=0.0)
    return (weights @ values).to(q.dtype), lse


def _reshape_to_equal_head_counts(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> list[Tensor]:
    """Reshapes queries, keys and values to equal head counts and a batch axis, as torch needs them.
    Unless causal, query heads that share a key head become one with more queries."""
    (heads, count, dim), groups = q.shape, k.shape[0]
    if not causal:
        return [q.reshape(1, groups, heads // groups * count, dim), k[None], v[None]]
    assert count == k.shape[1], "causal attention is for a chunk with itself"
    repeat = heads // groups
    return [q[None], *(x[:, None].expand(-1, repeat, -1, -1).flatten(0, 1)[None] for x in (k, v))]


def attend_by_torch_cpu(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Output:
    fused = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = fused(*_reshape_to_equal_head_counts(q, k, v, causal), 0.0, causal, scale=scale)
    return out[0].reshape(q.shape), lse[0].reshape(q.shape[:2]).float()


def attend_by_torch_cuda(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> Output:
    """Computes attention on a GPU by the flash or the memory-efficient operator of torch."""
    query, keys, values = _reshape_to_equal_head_counts(q, k, v, causal)
    if _supports_flash_attention(q):
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        out, lse, *_ = flash(query, keys, values, 0.0, causal, False, scale=scale)
    else:
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        out, lse, *_ = efficient(query, keys, values, None, True, 0.0, causal, scale=scale)
    # The memory-efficient operator pads the lse to a multiple of its block.
    return out[0].reshape(q.shape), lse[0, :, : query.shape[2]].reshape(q.shape[:2]).float()


def _supports_flash_attention(q: Tensor) -> bool:
    """Whether flash attention supports the head dimension, the dtype and the GPU of queries."""
    half = q.dtype in (torch.float16, torch.bfloat16)
    new = torch.cuda.get_device_capability(q.device) >= (8, 0)
    return half and new and q.shape[-1] <= 256 and q.shape[-1] % 8 == 0


@cache
def import_flash_attn_function() -> Callable[..., Any] | None:
    """Imports flash-attn 4's function; returns None if flash-attn is missing or does not load."""
    try:
        function: Callable[..., Any] = import_module("flash_attn.cute").flash_attn_func
    except Exception:  # Just-in-time packages fail to load in many ways.
        return None
    return function


def attend_by_flash_attn(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, soft_cap: float = 0.0
) -> Output:
    """Computes attention in half precision by flash-attn 4 on Hopper or data-centre Blackwell GPUs.
    The package takes tensors (batch, tokens, heads, D) and returns lse (batch, heads, tokens)."""
    function = import_flash_attn_function()
    if function is None or not _supports_flash_attention(q):
        raise UsageError(
            "kernel 'flash-attn' needs flash-attn 4, half precision and a head dimension up to 256",
            "run pip install 'esa-cli[flash]', or use another kernel by --set kernel=auto",
        )
    batch = (x.transpose(0, 1)[None] for x in (q, k, v))
    options = {"softmax_scale": scale, "causal": causal, "softcap": soft_cap, "return_lse": True}
    out, lse, *_ = function(*batch, **options)
    return out[0].transpose(0, 1), lse[0].float()


class Kernel(NamedTuple):
    """An attention kernel, with the device and the options that the kernel supports."""

    attend: Callable[..., Output]
    device: str | None  # type of the device that the kernel runs on; None stands for every device
    supports_soft_cap: bool = False
    only_by_name: bool = False  # whether `auto` never chooses it, as esa has not measured it

    def runs_on_device(self, device_type: str) -> bool:
        missing = self.only_by_name and import_flash_attn_function() is None
        return self.device in (None, device_type) and not missing


KERNELS: dict[str, Kernel] = {
    "torch-cuda": Kernel(attend_by_torch_cuda, "cuda"),
    "torch-cpu": Kernel(attend_by_torch_cpu, "cpu"),
    "reference": Kernel(compute_reference_attention, None, supports_soft_cap=True),
    "flash-attn": Kernel(attend_by_flash_attn, "cuda", supports_soft_cap=True, only_by_name=True),
}
"""All attention kernels by name, in order of preference."""


def choose_kernel_name(q: Tensor, wanted_name: str = "auto", soft_cap: float = 0.0) -> str:
    """Returns `wanted_name`, or for `auto` the name of the best kernel for queries q. Raises
    UsageError: the named kernel is unknown, cannot run on this device, or computes no soft cap."""
    runnable = {key: one for key, one in KERNELS.items() if one.runs_on_device(q.device.type)}
    usable = [key for key, one in runnable.items() if one.supports_soft_cap or not soft_cap]
    if (name := wanted_name) == "auto":
        return next(key for key in usable if not KERNELS[key].only_by_name)
    if name not in KERNELS:
        hint = f"use one of the kernels auto, {', '.join(KERNELS)}"
        raise UsageError(f"unknown kernel {name!r}", hint)
    if name not in usable:
        where = q.device.type + (" with the model's soft cap of logits" if soft_cap else "")
        raise UsageError(f"kernel {name!r} cannot run on {where}", "try --set kernel=auto")
    return name


def list_kernel_availability() -> dict[str, bool]:
    """Returns, for the name of each kernel, whether this machine can run the kernel."""
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    return {key: any(map(kernel.runs_on_device, devices)) for key, kernel in KERNELS.items()}


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, kernel: str = "auto",
    soft_cap: float = 0.0,
) -> Output:  # fmt: skip
    """Computes softmax(scale * q k^T) v, and the log-sum-exp of the logits, by the named kernel."""
    if not k.shape[1]:  # flash attention returns +inf there
        kernel = "reference"
    capped = {"soft_cap": soft_cap} if soft_cap else {}
    return KERNELS[choose_kernel_name(q, kernel, soft_cap)].attend(q, k, v, causal, scale, **capped)


def attend_with_capped_distance(
    q: Tensor, k: Tensor, v: Tensor, positions: Positions, max_distance: int, rope: Rope,
    scale: float, soft_cap: float = 0.0,
) -> Output:  # fmt: skip
    """Computes causal attention at distances min(query - key, `max_distance`), as ReRoPE does.

    Keys nearer than `max_distance` keep their positions; for farther keys, queries are rotated to
    `max_distance` and keys to 0 (Su, "Rectified Rotary Position Embeddings", 2023).

    Args:
        q, k, v: unrotated. positions: of the queries (C,) and of the keys (N,)."""
    query, key = positions.query.to(q.device), positions.key.to(q.device)
    keys, values = (x.repeat_interleave(len(q) // len(k), dim=0).float() for x in (k, v))
    inside = rope.rotate(keys, key).transpose(1, 2)
    outside = (keys * rope.compute_rotation_scale(keys)).transpose(1, 2)
    out, lse = torch.empty_like(q), torch.empty(q.shape[:2], device=q.device)
    for start in range(0, q.shape[1], AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        block, position = q[:, rows].float(), query[rows]
        distance = position[:, None] - key[None]
        far = rope.rotate(block, torch.full_like(position, max_distance)) @ outside
        near = rope.rotate(block, position) @ inside
        logits = torch.where(distance < max_distance, near, far) * scale
        logits = apply_soft_cap(logits, soft_cap).masked_fill_(distance < 0, float("-inf"))
        lse[:, rows] = logits.logsumexp(dim=-1)
        out[:, rows] = (logits.sub_(lse[:, rows, None]).exp_() @ values).to(q.dtype)
    return out, lse

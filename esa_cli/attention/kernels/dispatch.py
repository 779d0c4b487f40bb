"""The choice of an attention kernel: by name, or the first that can run the given tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.kernels import flash_attn, reference, torch_cpu, torch_cuda
from esa_cli.errors import UsageError

KernelFunction = Callable[..., tuple[Tensor, Tensor]]
"""(q, k, v, causal, scale), and `cap=` where the kernel computes soft caps."""


class Kernel(NamedTuple):
    attend: KernelFunction
    usable: Callable[[Tensor], bool]
    caps: bool = False
    """Whether it computes soft caps."""


KERNELS: dict[str, Kernel] = {
    "torch-cuda": Kernel(torch_cuda.attend, torch_cuda.usable),
    "flash-attn": Kernel(flash_attn.attend, flash_attn.usable, caps=True),
    "torch-cpu": Kernel(torch_cpu.attend, torch_cpu.usable),
    "reference": Kernel(reference.attend, lambda q: True, caps=True),
}
"""In order of preference."""
BY_NAME = ("flash-attn",)
"""Kernels that `auto` leaves out, because they were never run where they are meant to run."""


def choose(q: Tensor, name: str = "auto", cap: float = 0.0) -> str:
    """The name of the kernel for queries like q, and a soft cap of the logits where it is not 0.

    Raises:
        UsageError: the kernel is unknown, cannot run on this device and dtype, or computes no soft
            cap.
    """
    if name == "auto":
        return next(
            key
            for key, kernel in KERNELS.items()
            if key not in BY_NAME and (kernel.caps or not cap) and kernel.usable(q)
        )
    if name not in KERNELS:
        raise UsageError(f"unknown kernel {name!r}", f"known: auto, {', '.join(KERNELS)}")
    if not KERNELS[name].usable(q):
        where = f"{q.device.type} in {str(q.dtype).removeprefix('torch.')}"
        raise UsageError(f"kernel {name!r} cannot run on {where}", "try --set kernel=auto")
    if cap and not KERNELS[name].caps:
        raise UsageError(
            f"kernel {name!r} computes no soft cap of logits, which this model has",
            "try --set kernel=auto",
        )
    return name


def available() -> dict[str, bool]:
    """Which kernels this machine can run, for `esa doctor`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    probe = torch.empty(1, 1, 64, device=device, dtype=torch.bfloat16)
    on_cpu = torch.empty(1, 1, 64)
    return {key: kernel.usable(probe) or kernel.usable(on_cpu) for key, kernel in KERNELS.items()}


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    scale: float,
    kernel: str = "auto",
    cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """softmax(scale * q k^T) v and its log-sum-exp.

    Args:
        q: (H, C, D). k, v: (G, N, D). causal needs C = N.
        cap: soft cap of the logits; 0: none. See `reference.attend`.

    Returns:
        out (H, C, D), lse (H, C) float32.
    """
    if not k.shape[1]:  # flash attention returns +inf there.
        kernel = "reference"
    chosen = KERNELS[choose(q, kernel, cap)]
    if cap:
        return chosen.attend(q, k, v, causal, scale, cap=cap)
    return chosen.attend(q, k, v, causal, scale)

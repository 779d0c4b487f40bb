"""The choice of an attention kernel: by name, or the first that can run the given tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from esa_cli.attention.kernels import reference
from esa_cli.attention.kernels import torch_cpu as cpu
from esa_cli.attention.kernels import torch_cuda as cuda
from esa_cli.attention.kernels import torch_flex as flex
from esa_cli.attention.kernels import torch_varlen as varlen
from esa_cli.attention.kernels.flash_attn import VERSIONS
from esa_cli.errors import UsageError

KernelFunction = Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]


class Kernel(NamedTuple):
    attend: KernelFunction
    usable: Callable[[Tensor], bool]


KERNELS: dict[str, Kernel] = {
    **{name: Kernel(one.attend, one.usable) for name, one in VERSIONS.items()},
    "torch-varlen": Kernel(varlen.attend, varlen.usable),
    "torch-cuda": Kernel(cuda.attend, cuda.usable),
    "torch-flex": Kernel(flex.attend, flex.usable),
    "torch-cpu": Kernel(cpu.attend, cpu.usable),
    "reference": Kernel(reference.attend, lambda q: True),
}
"""In order of preference."""


def choose(q: Tensor, name: str = "auto") -> str:
    """The name of the kernel for queries like q.

    Raises:
        UsageError: the kernel is unknown, or cannot run on this device and dtype.
    """
    if name == "auto":
        return next(key for key, kernel in KERNELS.items() if kernel.usable(q))
    if name not in KERNELS:
        raise UsageError(f"unknown kernel {name!r}", f"known: auto, {', '.join(KERNELS)}")
    if not KERNELS[name].usable(q):
        where = f"{q.device.type} in {str(q.dtype).removeprefix('torch.')}"
        raise UsageError(f"kernel {name!r} cannot run on {where}", "try --set kernel=auto")
    return name


def available() -> dict[str, bool]:
    """Which kernels this machine can run, for `esa doctor`."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    probe = torch.empty(1, 1, 64, device=device, dtype=torch.bfloat16)
    on_cpu = torch.empty(1, 1, 64)
    return {key: kernel.usable(probe) or kernel.usable(on_cpu) for key, kernel in KERNELS.items()}


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, kernel: str = "auto"
) -> tuple[Tensor, Tensor]:
    """softmax(scale * q k^T) v and its log-sum-exp.

    Args:
        q: (H, C, D). k, v: (G, N, D). causal needs C = N.

    Returns:
        out (H, C, D), lse (H, C) float32.
    """
    if not k.shape[1]:  # flash attention returns +inf there.
        kernel = "reference"
    return KERNELS[choose(q, kernel)].attend(q, k, v, causal, scale)

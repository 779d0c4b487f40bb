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

KernelFunction = Callable[..., tuple[Tensor, Tensor]]
"""(q, k, v, causal, scale), and `cap=` where the kernel computes soft caps."""


class Kernel(NamedTuple):
    attend: KernelFunction
    usable: Callable[[Tensor], bool]
    caps: bool = False
    """Whether it computes soft caps."""
    first: KernelFunction | None = None
    """`attend_first` (q, k, v, ends, scale), for keys whose number the device alone knows."""


KERNELS: dict[str, Kernel] = {
    **{name: Kernel(one.attend, one.usable, caps=True) for name, one in VERSIONS.items()},
    "torch-varlen": Kernel(varlen.attend, varlen.usable, first=varlen.attend_first),
    "torch-cuda": Kernel(cuda.attend, cuda.usable, first=cuda.attend_first),
    "torch-flex": Kernel(flex.attend, flex.usable, caps=True),
    "torch-cpu": Kernel(cpu.attend, cpu.usable, first=cpu.attend_first),
    "reference": Kernel(reference.attend, lambda q: True, True, reference.attend_first),
}
"""In order of preference."""


def choose(q: Tensor, name: str = "auto", cap: float = 0.0) -> str:
    """The name of the kernel for queries like q, and a soft cap of the logits where it is not 0.

    Raises:
        UsageError: the kernel is unknown, cannot run on this device and dtype, or computes no soft
            cap.
    """
    if name == "auto":
        return next(
            key for key, kernel in KERNELS.items() if kernel.usable(q) and (kernel.caps or not cap)
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


def first_keys_kernel(q: Tensor, name: str = "auto", cap: float = 0.0) -> KernelFunction | None:
    """`attend_first` of the kernel `name`, or for `auto` of the first that has it and can run; as
    `choose`, but None where there is none. With a soft cap it takes `cap=`."""
    named = KERNELS if name == "auto" else {name: KERNELS[name]}
    runs = (one for one in named.values() if one.usable(q) and (one.caps or not cap))
    return next((one.first for one in runs if one.first is not None), None)


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

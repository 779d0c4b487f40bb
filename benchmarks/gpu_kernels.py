"""Times of all attention kernels of a device beside its own rates; a part of `gpu.py`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from device_timing import seconds

from esa_cli.attention.kernels import KERNELS, attend
from esa_cli.attention.kernels import compute_reference_attention as plain

SIZES = [
    # queries, keys, causal
    (512, 512, True),
    (512, 4096, False),
    (512, 8192, False),
    (1, 8192, False),
    (1, 131072, False),
]
Row = dict[str, Any]


def ceilings(device: torch.device, large: bool) -> Row:
    """The device's own rates: copying, bytes read and written; a matrix product in bfloat16."""
    size = 8192 if large else 256
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in "ab")
    block = torch.empty((1 << 30) if large else (1 << 20), dtype=torch.uint8, device=device)
    other = torch.empty_like(block)
    return {
        "part": "ceilings",
        "matrix_tflops": 2 * size**3 / seconds(lambda: a @ b, device) / 1e12,
        "copy_gb_per_s": 2 * block.numel() / seconds(lambda: other.copy_(block), device) / 1e9,
    }


def kernel_rows(device: torch.device, heads: int, groups: int, dim: int) -> Iterator[Row]:
    """Times and errors of every kernel that can run, at the sizes of `SIZES`."""
    for count, length, causal in SIZES:
        q = torch.randn(heads, count, dim, device=device, dtype=torch.bfloat16)
        k, v = (torch.randn(groups, length, dim, device=device, dtype=torch.bfloat16) for _ in "kv")
        for name, kernel in KERNELS.items():
            if kernel.runs_on_device(device.type) and (
                name != "reference" or device.type != "cuda"
            ):
                row: Row = {"part": "kernels", "kernel": name, "queries": count, "keys": length}
                try:
                    yield row | kernel_row(name, q, k, v, causal)
                except Exception as error:  # one kernel must not hide the others
                    yield row | {"failed": f"{type(error).__name__}: {str(error)[:160]}"}


def kernel_row(name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Row:
    """Time, rates and errors of one kernel; the errors against plain operations."""
    scale = q.shape[2] ** -0.5
    want, want_lse = plain(q, k, v, causal, scale)
    run = partial(attend, q, k, v, causal=causal, scale=scale, kernel=name)
    out, lse = run()
    error = (out.float() - want.float()).norm() / want.float().norm()
    took = seconds(run, q.device)
    work = 4 * q.numel() * k.shape[1] / (2 if causal else 1)
    return {
        "causal": causal, "ms": took * 1e3, "tflops": work / took / 1e12,
        "gb_per_s": (k.nbytes + v.nbytes) / took / 1e9,
        "error": float(error), "lse_error": float((lse - want_lse).abs().max()),
    }  # fmt: skip

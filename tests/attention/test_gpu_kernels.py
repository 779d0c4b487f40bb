"""Every kernel that can run on this machine's GPU against the reference: `pytest -m gpu`."""

from __future__ import annotations

import pytest
import torch
from kernel_cases import draw

from esa_cli.attention.algebra import fuse_attention
from esa_cli.attention.kernels import KERNELS, attend, list_kernel_availability
from esa_cli.errors import UsageError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
ON_GPU = [name for name in KERNELS if name != "torch-cpu"]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.004, torch.float32: 2e-3}
"""Of outputs and log-sum-exps; float32 may be multiplied as TF32."""
RATIOS = [(4, 4), (8, 2), (8, 1), (6, 2)]
"""H and G."""
WIDTHS = [64, 96, 128, 256]
SIZES = [(1, 1000, False), (7, 333, False), (256, 1024, False), (1, 1, True), (200, 200, True)]
"""Queries, keys, and whether attention is causal."""

Part = tuple[torch.Tensor, torch.Tensor]


def run(kernel: str, tensors: tuple[torch.Tensor, ...], causal: bool, cap: float = 0.0) -> Part:
    """Skips the test where the kernel cannot run."""
    q, k, v = tensors
    try:
        return attend(q, k, v, causal=causal, scale=0.1, kernel=kernel, soft_cap=cap)
    except UsageError as error:
        pytest.skip(error.message)


def on_gpu(dtype: torch.dtype, *sizes: int) -> tuple[torch.Tensor, ...]:
    return tuple(x.to("cuda", dtype) for x in draw(*sizes))


def close(got: Part, want: Part, tolerance: float) -> None:
    torch.testing.assert_close(got[0].float(), want[0].float(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got[1], want[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", ON_GPU)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "groups"), RATIOS)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernel_is_the_reference(
    kernel: str, dtype: torch.dtype, heads: int, groups: int, width: int
) -> None:
    for chunk, keys, causal in SIZES:
        tensors = on_gpu(dtype, heads, groups, chunk, keys, width)
        got = run(kernel, tensors, causal)
        assert (got[0].dtype, got[1].dtype) == (dtype, torch.float32)
        assert got[0].device == tensors[0].device
        close(got, run("reference", tensors, causal), TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", [name for name in ON_GPU if KERNELS[name].supports_soft_cap])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [128, 256])
def test_soft_cap(kernel: str, dtype: torch.dtype, width: int) -> None:
    for chunk, keys, causal in SIZES:
        tensors = on_gpu(dtype, 8, 2, chunk, keys, width)
        got = run(kernel, tensors, causal, 2.0)
        close(got, run("reference", tensors, causal, 2.0), TOLERANCE[dtype])


@pytest.mark.parametrize("kernel", ON_GPU)
def test_fusion_of_parts_is_the_whole(kernel: str) -> None:
    q, k, v = on_gpu(torch.float16, 8, 2, 33, 500, 128)
    parts = [run(kernel, (q, k[:, at], v[:, at]), False) for at in (slice(200), slice(200, 500))]
    close(fuse_attention(parts), run("reference", (q, k, v), False), 0.004)


def test_torchs_public_kernel_is_there() -> None:
    assert all(runs for name, runs in list_kernel_availability().items() if name != "flash-attn")

"""Kernels and their fusion against loops.

Nothing here runs on a GPU. The flash-attn and CUDA adapters are called with stand-ins for the
foreign functions, which shows that tensors go in and come out in the layout those functions
document; what the real ones compute is not tested.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import reference
import torch

from esa_cli.attention.kernels import KERNELS, attend, available, choose, fuse
from esa_cli.attention.kernels import flash_attn as flash
from esa_cli.attention.kernels import torch_cuda as cuda
from esa_cli.errors import UsageError
from esa_cli.storage.memory_store import MemoryStore

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
GROUPS = [(2, 2), (6, 2), (8, 1)]
HERE = ["torch-cpu", "reference", "auto"]
DIM = 8


def draw(heads: int, groups: int, chunk: int, keys: int) -> Tensors:
    return (
        torch.randn(heads, chunk, DIM) * 2,
        torch.randn(groups, keys, DIM),
        torch.randn(groups, keys, DIM),
    )


def in_loops(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    lists = reference.plain(q), reference.plain(k), reference.plain(v)
    out, lse = reference.attend(*lists, causal, scale)
    return torch.tensor(out).reshape(q.shape), torch.tensor(lse)


def close(
    got: tuple[torch.Tensor, torch.Tensor],
    want: tuple[torch.Tensor, torch.Tensor],
    tolerance: float = 2e-6,
) -> None:
    torch.testing.assert_close(got[0].float(), want[0].float(), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got[1], want[1].float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize(("heads", "groups"), GROUPS)
@pytest.mark.parametrize(
    ("chunk", "keys", "causal"),
    [
        (1, 1, False),
        (1, 33, False),
        (7, 20, False),
        (33, 20, False),
        (33, 33, False),
        (1, 1, True),
        (2, 2, True),
        (33, 33, True),
    ],
)
def test_kernel_matches_loops(
    kernel: str, heads: int, groups: int, chunk: int, keys: int, causal: bool
) -> None:
    q, k, v = draw(heads, groups, chunk, keys)
    got = attend(q, k, v, causal=causal, scale=0.3, kernel=kernel)
    assert got[0].shape == (heads, chunk, DIM)
    assert got[1].dtype == torch.float32
    close(got, in_loops(q, k, v, causal, 0.3))


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("causal", [False, True])
def test_strided_queries_keys_and_values(kernel: str, causal: bool) -> None:
    """As they come: queries transposed by the host, keys and values as views of a store."""
    store = MemoryStore(2, DIM, torch.float32, torch.device("cpu"))
    store.append(torch.randn(2, 40, DIM), torch.randn(2, 40, DIM))
    k, v = store.span(11, 31)
    q = torch.randn(1, 20, 6, DIM).transpose(1, 2)[0]
    assert not q.is_contiguous()
    assert not k.is_contiguous()
    close(
        attend(q, k, v, causal=causal, scale=0.35, kernel=kernel),
        in_loops(q, k, v, causal, 0.35),
    )


@pytest.mark.parametrize("kernel", HERE)
@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16(kernel: str, causal: bool) -> None:
    q, k, v = (x.bfloat16() for x in draw(6, 2, 24, 24))
    got = attend(q, k, v, causal=causal, scale=0.3, kernel=kernel)
    assert got[0].dtype == torch.bfloat16
    assert got[1].dtype == torch.float32
    want = in_loops(q, k, v, causal, 0.3)
    torch.testing.assert_close(got[0].double(), want[0].double(), rtol=0.02, atol=0.02)
    torch.testing.assert_close(got[1].double(), want[1].double(), rtol=0.01, atol=0.02)


@pytest.mark.parametrize("chunk", [1, 3, 20])
def test_reference_causal_ends_with_the_last_key(chunk: int) -> None:
    q, k, v = draw(6, 2, chunk, 20)
    got = attend(q, k, v, causal=True, scale=0.3, kernel="reference")
    close(got, in_loops(q, k, v, True, 0.3))


def test_reference_without_keys() -> None:
    q, k, v = draw(6, 2, 4, 0)
    out, lse = attend(q, k, v, causal=False, scale=0.3, kernel="reference")
    assert torch.equal(out, torch.zeros(6, 4, DIM))
    assert torch.equal(lse, torch.full((6, 4), -torch.inf))
    some = attend(*draw(6, 2, 4, 5), causal=False, scale=0.3, kernel="reference")
    close(fuse([(out, lse), some]), some)
    close(fuse([some, (out, lse)]), some)


@pytest.mark.parametrize("cuts", [(5,), (1,), (19,), (3, 11), (1, 19)])
@pytest.mark.parametrize("kernel", ["torch-cpu", "reference"])
def test_fusion_is_one_softmax_over_the_union(cuts: tuple[int, ...], kernel: str) -> None:
    q, k, v = draw(6, 2, 4, 20)
    parts = []
    for low, high in zip((0, *cuts), (*cuts, 20), strict=True):
        part = attend(q, k[:, low:high], v[:, low:high], causal=False, scale=0.3, kernel=kernel)
        parts.append(part)
    close(fuse(parts), in_loops(q, k, v, False, 0.3))


def test_fusion_of_one_part_is_that_part() -> None:
    q, k, v = draw(2, 2, 3, 4)
    part = attend(q, k, v, causal=False, scale=0.3)
    close(fuse([part]), part, tolerance=0)


@pytest.mark.parametrize("sizes", [(1e4, -1e4), (-1e4, 1e4), (1e4, 1e4), (-1e4, -1e4)])
@pytest.mark.parametrize("third", [None, 1e4, -1e4, 0.0])
def test_fusion_is_stable(sizes: tuple[float, float], third: float | None) -> None:
    """Logits of ten thousand, where the exp(lse) of Algorithm 1 would overflow or vanish."""
    wanted = [*sizes] if third is None else [*sizes, third]
    q = torch.zeros(2, 3, DIM)
    q[..., 0] = 1.0
    k = torch.zeros(2, 4 * len(wanted), DIM)
    for i, size in enumerate(wanted):
        k[:, 4 * i : 4 * i + 4, 0] = size + torch.tensor([0.0, 1.0, 2.0, 3.0])
    v = torch.randn(2, 4 * len(wanted), DIM)
    parts = []
    for i in range(len(wanted)):
        at = slice(4 * i, 4 * i + 4)
        parts.append(attend(q, k[:, at], v[:, at], causal=False, scale=1.0))
    out, lse = fuse(parts)
    assert torch.isfinite(out).all()
    close((out, lse), in_loops(q, k, v, False, 1.0), tolerance=2e-3)


def test_fusion_keeps_the_parts_and_their_type() -> None:
    q, k, v = (x.bfloat16() for x in draw(2, 2, 3, 8))
    parts = [
        attend(q, k[:, :5], v[:, :5], causal=False, scale=0.3),
        attend(q, k[:, 5:], v[:, 5:], causal=False, scale=0.3),
    ]
    before = [(out.clone(), lse.clone()) for out, lse in parts]
    assert fuse(parts)[0].dtype == torch.bfloat16
    for (out, lse), (old_out, old_lse) in zip(parts, before, strict=True):
        assert torch.equal(out, old_out)
        assert torch.equal(lse, old_lse)


def test_choose() -> None:
    q = torch.zeros(1, 1, DIM)
    assert choose(q) == "torch-cpu"
    for name in ("torch-cpu", "reference"):
        assert choose(q, name) == name
        assert available()[name]
    assert set(available()) == set(KERNELS)


def test_unknown_kernel() -> None:
    with pytest.raises(UsageError, match="unknown kernel 'fast'") as caught:
        choose(torch.zeros(1, 1, DIM), "fast")
    assert "torch-cpu" in caught.value.hint


@pytest.mark.parametrize("name", ["flash-attn", "torch-cuda"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernel_that_cannot_run_on_the_cpu(name: str, dtype: torch.dtype) -> None:
    q = torch.zeros(1, 1, DIM, dtype=dtype)
    with pytest.raises(UsageError, match=f"'{name}' cannot run on cpu"):
        choose(q, name)
    with pytest.raises(UsageError):
        attend(q, q, q, causal=False, scale=1.0, kernel=name)


def on(device: str, dtype: torch.dtype) -> torch.Tensor:
    """What `usable` looks at of a tensor."""
    return SimpleNamespace(device=SimpleNamespace(type=device), dtype=dtype)  # type: ignore[return-value]


def test_flash_needs_cuda_half_precision_and_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[object] = [object()]
    monkeypatch.setattr(flash, "installed", lambda: installed[0] is not None)
    assert flash.usable(on("cuda", torch.bfloat16))
    assert flash.usable(on("cuda", torch.float16))
    assert not flash.usable(on("cuda", torch.float32))
    assert not flash.usable(on("cpu", torch.bfloat16))
    installed[0] = None
    assert not flash.usable(on("cuda", torch.bfloat16))
    assert choose(on("cuda", torch.bfloat16)) == "torch-cuda"


def test_flash_is_not_a_package_that_shares_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 4 is `flash_attn.cute`, in a package without the functions of version 2."""
    found = ModuleType("flash_attn")
    monkeypatch.setattr(flash, "find_spec", lambda name: object())
    monkeypatch.setattr(flash, "import_module", lambda name: found)
    assert not flash.installed.__wrapped__()
    found.flash_attn_func = print  # type: ignore[attr-defined]
    assert flash.installed.__wrapped__()


@pytest.mark.parametrize(("heads", "groups"), GROUPS)
@pytest.mark.parametrize(("chunk", "keys", "causal"), [(1, 9, False), (5, 9, False), (9, 9, True)])
def test_flash_adapter_layout(
    monkeypatch: pytest.MonkeyPatch, heads: int, groups: int, chunk: int, keys: int, causal: bool
) -> None:
    """A stand-in `flash_attn_func` with the documented layout; not a run on a GPU.

    flash-attn takes (batch, tokens, heads, D) and returns out likewise, lse (batch, heads, tokens)
    in float32, and a third value nobody needs.
    """

    def flash_attn_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        return_attn_probs: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        assert q.shape == (1, chunk, heads, DIM)
        assert k.shape == v.shape == (1, keys, groups, DIM)
        assert return_attn_probs
        assert dropout_p == 0.0
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        assert softmax_scale is not None
        tokens_last = (x[0].transpose(0, 1) for x in (q, k, v))
        out, lse = in_loops(*tokens_last, causal, softmax_scale)
        return out.transpose(0, 1)[None].to(q.dtype), lse[None].float(), None

    fake = ModuleType("flash_attn")
    fake.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", fake)
    q, k, v = draw(heads, groups, chunk, keys)
    got = flash.attend(q, k, v, causal, 0.3)
    assert got[0].shape == q.shape
    close(got, in_loops(q, k, v, causal, 0.3))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("heads", "groups"), GROUPS)
@pytest.mark.parametrize(("chunk", "keys", "causal"), [(1, 9, False), (5, 9, False), (9, 9, True)])
def test_cuda_adapter_layout(
    monkeypatch: pytest.MonkeyPatch,
    half: bool,
    heads: int,
    groups: int,
    chunk: int,
    keys: int,
    causal: bool,
) -> None:
    """Stand-ins for the two aten operators; not a run on a GPU.

    Both take (batch, heads, tokens, D) with as many key heads as query heads; the memory-efficient
    one returns its lse padded to a multiple of 32 tokens.
    """

    def check(*tensors: torch.Tensor) -> None:
        query, keys_, values = tensors
        assert query.ndim == 4
        assert query.shape[:2] == keys_.shape[:2] == values.shape[:2]

    def efficient(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_bias: None,
        compute_log_sumexp: bool,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        check(query, key, value)
        assert query.dtype == torch.float32
        assert attn_bias is None
        assert compute_log_sumexp
        assert scale is not None
        out, lse = in_loops(query[0], key[0], value[0], is_causal, scale)
        padded = torch.full((lse.shape[0], -(-lse.shape[1] // 32) * 32), torch.inf)
        padded[:, : lse.shape[1]] = lse
        return out.float()[None], padded[None], 0, 0

    def fused(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        return_debug_mask: bool = False,
        *,
        scale: float | None = None,
    ) -> tuple[object, ...]:
        check(query, key, value)
        assert query.dtype == torch.bfloat16
        assert not return_debug_mask
        assert scale is not None
        out, lse = in_loops(query[0], key[0], value[0], is_causal, scale)
        return out.to(query.dtype)[None], lse.float()[None], None, None, 0, 0, 0, 0, None

    operators = SimpleNamespace(
        _scaled_dot_product_efficient_attention=efficient,
        _scaled_dot_product_flash_attention=fused,
    )
    stand_in = SimpleNamespace(
        Tensor=torch.Tensor, float32=torch.float32, ops=SimpleNamespace(aten=operators)
    )
    monkeypatch.setattr(cuda, "torch", stand_in)
    q, k, v = draw(heads, groups, chunk, keys)
    if half:
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    got = cuda.attend(q, k, v, causal, 0.3)
    assert got[0].shape == q.shape
    close(got, in_loops(q, k, v, causal, 0.3), tolerance=0.01 if half else 2e-6)

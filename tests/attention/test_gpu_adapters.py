"""Kernels of GPUs, called with stand-ins for the foreign functions, or uncompiled on processors.

A stand-in takes what the real function's signature takes: torch's own is inspected, those of
flash-attn 2.8.3, 3 (August 2026) and 4.0.0b36 are written down here. It checks layout and types,
and computes in loops. What the real ones compute is tested by `test_gpu_kernels.py`, on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_cases import GROUPS, close, draw, in_loops
from torch.nn import functional
from torch.nn.attention import flex_attention as torchs_flex
from torch.nn.attention import varlen as torchs_varlen

from esa_cli.attention.kernels import choose, dispatch, flash_attn, gpu_limits, reference
from esa_cli.attention.kernels import torch_cuda as cuda
from esa_cli.attention.kernels import torch_flex as flex
from esa_cli.attention.kernels import torch_varlen as varlen
from esa_cli.errors import UsageError

SIZES = [(1, 9, False), (5, 9, False), (9, 9, True), (1, 1, True)]
"""Queries, keys, and whether attention is causal."""
PARAMETERS = {
    "flash-attn": "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes "
    "deterministic return_attn_probs",
    "flash-attn-3": "q k v softmax_scale causal qv q_descale k_descale v_descale window_size "
    "attention_chunk softcap num_splits pack_gqa deterministic sm_margin return_attn_probs",
    "flash-attn-4": "q k v qv gather_kv_indices softmax_scale causal window_size learnable_sink "
    "softcap num_splits pack_gqa deterministic score_mod score_mod_bwd mask_mod aux_tensors "
    "aux_scalars block_sparse_tensors block_sparse_tensors_bwd return_lse gather_bwd_recompute_p "
    "gather_bwd_token_chunk",
}
"""Of each package's `flash_attn_func`."""
VARLEN = signature(torchs_varlen.varlen_attn)


def on(device: str, dtype: torch.dtype, width: int = 64) -> torch.Tensor:
    """What `usable` looks at of a tensor."""
    return SimpleNamespace(  # type: ignore[return-value]
        device=SimpleNamespace(type=device), dtype=dtype, shape=(1, 1, width)
    )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the major compute capability of every GPU."""

    def of(major: int) -> None:
        for module in (gpu_limits, flash_attn, flex):
            monkeypatch.setattr(module, "capability", lambda device: major)

    of(9)
    monkeypatch.setattr(varlen, "installed", lambda: True)
    monkeypatch.setattr(flex, "installed", lambda: True)
    return of


def install(monkeypatch: pytest.MonkeyPatch, *versions: str) -> None:
    """Makes these versions of flash-attn as if they were installed, and no others."""
    modules = {flash_attn.VERSIONS[name].module for name in versions}
    monkeypatch.setattr(
        flash_attn, "attention_of", lambda module, wanted: print if module in modules else None
    )


def test_the_first_that_can_run_is_taken(
    monkeypatch: pytest.MonkeyPatch, gpu: Callable[[int], None]
) -> None:
    install(monkeypatch)
    half = on("cuda", torch.bfloat16)
    assert choose(half) == "torch-varlen"
    assert choose(on("cuda", torch.float32)) == "torch-cuda"
    assert choose(on("cuda", torch.float16, 320)) == "torch-cuda"
    assert choose(on("cuda", torch.float16, 36)) == "torch-cuda"
    install(monkeypatch, *PARAMETERS)
    assert [choose(half), choose(half, "flash-attn")] == ["flash-attn-3", "flash-attn"]
    gpu(10)
    assert choose(half) == "flash-attn-4"
    assert choose(on("cuda", torch.float16, 192)) == "flash-attn"
    gpu(12)
    assert choose(half) == "flash-attn"
    gpu(7)
    assert choose(on("cuda", torch.float16)) == "torch-cuda"
    monkeypatch.setattr(varlen, "installed", lambda: False)
    install(monkeypatch)
    gpu(8)
    assert choose(half) == "torch-cuda"


def test_a_soft_cap_needs_a_kernel_that_has_it(
    monkeypatch: pytest.MonkeyPatch, gpu: Callable[[int], None]
) -> None:
    half = on("cuda", torch.bfloat16)
    install(monkeypatch, "flash-attn")
    assert choose(half, cap=50.0) == "flash-attn"
    assert choose(on("cuda", torch.float32), cap=50.0) == "torch-flex"
    install(monkeypatch)
    assert choose(half, cap=50.0) == "torch-flex"
    monkeypatch.setattr(flex, "installed", lambda: False)
    assert choose(half, cap=50.0) == "reference"
    with pytest.raises(UsageError, match="no soft cap"):
        choose(half, "torch-varlen", cap=50.0)


def test_no_kernel_of_a_gpu_runs_elsewhere(
    monkeypatch: pytest.MonkeyPatch, gpu: Callable[[int], None]
) -> None:
    install(monkeypatch, *PARAMETERS)
    for name, kernel in dispatch.KERNELS.items():
        assert kernel.usable(on("mps", torch.bfloat16)) == (name == "reference")
    assert choose(on("cpu", torch.bfloat16)) == "torch-cpu"


def test_flash_attn_is_told_by_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 4 has a package of version 2's name; old ones lack arguments; some do not load."""
    attention_of = flash_attn.attention_of.__wrapped__
    found = ModuleType("flash_attn")
    monkeypatch.setattr(flash_attn, "find_spec", lambda name: object())
    monkeypatch.setattr(flash_attn, "import_module", lambda name: found)
    assert attention_of("flash_attn", ("causal",)) is None
    found.flash_attn_func = lambda q, k, v, causal: None  # type: ignore[attr-defined]
    assert attention_of("flash_attn", ("causal", "softcap")) is None
    assert attention_of("flash_attn", ("causal",)) is found.flash_attn_func

    def broken(name: str) -> ModuleType:
        raise OSError("undefined symbol")

    monkeypatch.setattr(flash_attn, "import_module", broken)
    assert attention_of("flash_attn", ("causal",)) is None
    monkeypatch.setattr(flash_attn, "find_spec", lambda name: None)
    assert attention_of("flash_attn", ("causal",)) is None


def flash_attn_func(name: str) -> Callable[..., Any]:
    """A stand-in for a version's function."""
    names = PARAMETERS[name].split()
    known = Signature(
        [Parameter(one, Parameter.POSITIONAL_OR_KEYWORD, default=None) for one in names]
    )

    def stand_in(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = known.bind(*args, **kwargs).arguments
        q, k, v = (given[one] for one in "qkv")
        assert q.ndim == k.ndim == v.ndim == 4
        assert q.shape[0] == k.shape[0] == 1
        assert k.shape == v.shape
        assert q.shape[2] % k.shape[2] == 0
        assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
        assert given.get("num_splits", 1) == (0 if name == "flash-attn-3" else 1)
        asked = "return_lse" if name == "flash-attn-4" else "return_attn_probs"
        assert given[asked] is True
        rows = (x[0].transpose(0, 1) for x in (q, k, v))
        scale, cap = given["softmax_scale"], given["softcap"]
        out, lse = reference.attend(*rows, given["causal"], scale, cap)
        result = out.transpose(0, 1)[None].to(q.dtype), lse[None].float()
        return (*result, None) if name == "flash-attn" else result

    stand_in.__signature__ = known  # type: ignore[attr-defined]
    return stand_in


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize(("heads", "groups"), GROUPS)
@pytest.mark.parametrize(("chunk", "keys", "causal"), SIZES)
def test_flash_attn_adapters(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    heads: int,
    groups: int,
    chunk: int,
    keys: int,
    causal: bool,
) -> None:
    version = flash_attn.VERSIONS[name]
    fake = ModuleType(version.module)
    fake.flash_attn_func = flash_attn_func(name)  # type: ignore[attr-defined]
    fake.__spec__ = object()  # type: ignore[assignment]
    if "." in version.module:
        monkeypatch.setitem(sys.modules, "flash_attn", ModuleType("flash_attn"))
    monkeypatch.setitem(sys.modules, version.module, fake)
    monkeypatch.setattr(flash_attn, "attention_of", flash_attn.attention_of.__wrapped__)
    q, k, v = draw(heads, groups, chunk, keys)
    got = version.attend(q, k, v, causal, 0.3)
    assert got[0].shape == q.shape
    close(got, in_loops(q, k, v, causal, 0.3))
    close(version.attend(q, k, v, causal, 0.3, 2.0), reference.attend(q, k, v, causal, 0.3, 2.0))


def checked_varlen(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A stand-in for `varlen_attn`; the lse is (H, C), as torch's fake of the operator has it."""
    given = VARLEN.bind(*args, **kwargs).arguments
    q, k, v = (given[one] for one in ("query", "key", "value"))
    assert q.ndim == k.ndim == v.ndim == 3
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1
    for name, largest, x in (("cu_seq_q", "max_q", q), ("cu_seq_k", "max_k", k)):
        assert given[name].dtype == torch.int32
        assert given[name].is_contiguous()
        assert given[largest] == x.shape[0] >= given[name][1]
    assert given["cu_seq_q"].tolist() == [0, q.shape[0]]
    start, stop = given["cu_seq_k"].tolist()
    k, v = k[start:stop], v[start:stop]
    assert given["return_aux"].lse
    assert given["enable_gqa"] or q.shape[1] == k.shape[1]
    causal = {(-1, 0): True, (-1, -1): False}[given["window_size"]]
    out, lse = in_loops(*(x.transpose(0, 1) for x in (q, k, v)), causal, given["scale"])
    return out.transpose(0, 1).to(q.dtype), lse.float()


@pytest.mark.parametrize(("heads", "groups"), GROUPS)
@pytest.mark.parametrize(("chunk", "keys", "causal"), [*SIZES, (4, 9, True)])
def test_varlen_adapter(
    monkeypatch: pytest.MonkeyPatch, heads: int, groups: int, chunk: int, keys: int, causal: bool
) -> None:
    monkeypatch.setattr(torchs_varlen, "varlen_attn", checked_varlen)
    alone: list[tuple[torch.Size, bool]] = []

    def private(q: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        alone.append((q.shape, rest[2]))
        return in_loops(q, *rest)

    monkeypatch.setattr(cuda, "attend", private)
    q, k, v = draw(heads, groups, chunk, keys)
    got = varlen.attend(q, k, v, causal, 0.3)
    assert got[0].shape == q.shape
    close((got[0], got[1].float()), in_loops(q, k, v, causal, 0.3))
    single = chunk == 1 and heads == groups
    assert alone == ([(q.shape, False)] if single else [])


@pytest.mark.parametrize(("heads", "groups"), GROUPS)
def test_adapters_of_the_first_keys(
    monkeypatch: pytest.MonkeyPatch, heads: int, groups: int
) -> None:
    def efficient(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, scale: float
    ) -> Any:
        mask, with_lse, dropout, causal = rest
        assert q.shape[:2] == k.shape[:2] == v.shape[:2]
        assert mask.shape == (*q.shape[:3], k.shape[2])
        assert mask.dtype == q.dtype
        assert (with_lse, dropout, causal) == (True, 0.0, False)
        logits = q @ k.transpose(2, 3) * scale + mask
        lse = functional.pad(logits.logsumexp(-1), (0, -logits.shape[2] % 32), value=torch.inf)
        return logits.softmax(-1) @ v, lse, 0, 0

    operators = SimpleNamespace(_scaled_dot_product_efficient_attention=efficient)
    monkeypatch.setattr(cuda, "torch", SimpleNamespace(ops=SimpleNamespace(aten=operators)))
    monkeypatch.setattr(torchs_varlen, "varlen_attn", checked_varlen)
    q, k, v = draw(heads, groups, 1, 48)
    for count in (1, 17, 48):
        want = reference.attend(q, k[:, :count], v[:, :count], False, 0.3)
        for module in (cuda, varlen):
            got = module.attend_first(q, k, v, torch.tensor([0, count]).int(), 0.3)
            assert (got[0].shape, got[1].shape) == (q.shape, (heads, 1))
            close(got, want)


def test_the_kernel_of_the_first_keys(
    monkeypatch: pytest.MonkeyPatch, gpu: Callable[[int], None]
) -> None:
    """The packages of flash-attn are passed over, where none is named."""
    install(monkeypatch, *PARAMETERS)
    half, single = on("cuda", torch.bfloat16), on("cuda", torch.float32)
    assert dispatch.first_keys_kernel(half) is varlen.attend_first
    assert dispatch.first_keys_kernel(single) is cuda.attend_first
    assert dispatch.first_keys_kernel(half, cap=50.0) is reference.attend_first
    assert dispatch.first_keys_kernel(half, "torch-cuda") is cuda.attend_first
    assert dispatch.first_keys_kernel(half, "flash-attn-3") is None
    assert dispatch.first_keys_kernel(half, "torch-varlen", cap=50.0) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_varlen_of_this_torch_without_data(dtype: torch.dtype, causal: bool) -> None:
    """The real function on meta tensors: it takes the arguments, and the lse is (H, C)."""
    q, k, v = (x.to("meta", dtype) for x in draw(6, 2, 5, 5 if causal else 9))
    out, lse = varlen.attend(q, k, v, causal, 0.3)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert (lse.shape, lse.dtype) == ((6, 5), torch.float32)
    out, lse = varlen.attend_first(q[:, :1], k, v, torch.empty(2, device="meta").int(), 0.3)
    assert (out.shape, lse.shape) == ((6, 1, q.shape[2]), (6, 1))


def test_varlen_of_this_torch_has_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    assert varlen.installed.__wrapped__()
    monkeypatch.setattr(torchs_varlen, "varlen_attn", lambda query, key, value, is_causal: None)
    assert not varlen.installed.__wrapped__()
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert not varlen.installed.__wrapped__()


def test_flex_of_this_torch_has_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "find_spec", lambda name: object())
    assert flex.installed.__wrapped__()
    monkeypatch.setattr(flex, "find_spec", lambda name: None)
    assert not flex.installed.__wrapped__()


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flex attention in plain operations."""
    monkeypatch.setattr(torchs_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.mark.parametrize(("heads", "groups"), GROUPS)
@pytest.mark.parametrize(("chunk", "keys", "causal"), SIZES)
@pytest.mark.usefixtures("uncompiled")
def test_flex_adapter(heads: int, groups: int, chunk: int, keys: int, causal: bool) -> None:
    """torch's own function, on the processor."""
    q, k, v = draw(heads, groups, chunk, keys)
    close(flex.attend(q, k, v, causal, 0.3), in_loops(q, k, v, causal, 0.3))
    close(flex.attend(q, k, v, causal, 0.3, 2.0), reference.attend(q, k, v, causal, 0.3, 2.0))


@pytest.mark.parametrize("causal", [False, True])
def test_flex_is_traced_at_most_twice_for_many_numbers_of_tokens(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    """With numbers of tokens that change, and the cap as a constant of the code."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    traced = torch.compile(torchs_flex.flex_attention, backend=backend, fullgraph=True)
    monkeypatch.setattr(torchs_flex, "flex_attention", traced)
    for chunk, keys in ((2, 9), (5, 17), (7, 40), (64, 64), (33, 12)):
        q, k, v = draw(6, 2, chunk, chunk if causal else keys, 16)
        with torch.no_grad():
            flex.attend(q, k, v, causal, 0.3, 50.0)
    torch._dynamo.reset()
    assert len(graphs) == 2
    for graph in graphs:
        assert "50.0" in "".join(part.code for part in graph.modules() if hasattr(part, "code"))
        kinds = [
            node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"
        ]
        assert all(isinstance(one, torch.SymInt) or one.ndim == 4 for one in kinds)


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
    monkeypatch.setattr(cuda, "fits_flash", lambda q: half)
    q, k, v = draw(heads, groups, chunk, keys)
    if half:
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()
    got = cuda.attend(q, k, v, causal, 0.3)
    assert got[0].shape == q.shape
    close(got, in_loops(q, k, v, causal, 0.3), tolerance=0.01 if half else 2e-6)


def test_flex_stays_compiled_in_many_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another type and causality are compiled each; torch stops at 8 by default, here at 2."""
    limits, forms, real = torch._dynamo.config, [], torch.compile

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        forms.append(graph)
        return graph.forward

    monkeypatch.setattr(limits, "recompile_limit", 2)
    monkeypatch.setattr(torch, "compile", lambda function: real(function, backend=backend))
    torch._dynamo.reset()
    function = flex.compiled.__wrapped__()
    for dtype in (torch.float32, torch.bfloat16):
        q, k, v = (x[None].to(dtype) for x in draw(2, 2, 5, 5, 16))
        for causal in (True, False):
            function(q, k, v, score_mod=flex.changed_logits(50.0, causal), scale=0.3)
    torch._dynamo.reset()
    assert len(forms) == 4

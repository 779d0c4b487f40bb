"""Quantised checkpoints as they are published, and the plain weights that they store.

The numbers and the scales are drawn; the weight is what their format says they mean, computed
element by element or in whole integers of Python, not as `unpacking` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Stored = tuple[dict[str, Tensor], Tensor]
"""Tensors by the ends of their names, and the weight."""


def words(numbers: Tensor, bits: int) -> Tensor:
    """Rows (R, N) of integers as rows of 32-bit words, without gaps, lowest first."""
    size = -(-numbers.shape[1] * bits // 32) * 4
    rows = []
    for row in numbers.tolist():
        whole = sum(number << (bits * at) for at, number in enumerate(row))
        rows.append(torch.frombuffer(bytearray(whole.to_bytes(size, "little")), dtype=torch.int32))
    return torch.stack(rows)


def spread(scale: Tensor, shape: tuple[int, ...], block: tuple[int, int]) -> Tensor:
    """The scale of each element of a weight."""
    rows, columns = (torch.arange(n) // b for n, b in zip(shape, block, strict=True))
    return scale[rows][:, columns]


def small(shape: tuple[int, ...], scale: float = 0.01) -> Tensor:
    return scale * (0.5 + torch.rand(shape))


def fp8(shape: tuple[int, ...]) -> Tensor:
    return (20 * torch.randn(shape)).to(torch.float8_e4m3fn)


def fp4(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Numbers of 4 bits, two in a byte, and what they are."""
    bits = torch.randint(0, 16, shape)
    sign, exponent, half = 1 - 2 * (bits >> 3), (bits >> 1) & 3, (bits & 1) / 2
    value = sign * torch.where(exponent == 0, half, 2.0 ** (exponent - 1) * (1 + half))
    return (bits[..., ::2] + 16 * bits[..., 1::2]).to(torch.uint8), value


def powers(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Exponents in bytes, and the scales that they are."""
    exponents = torch.randint(-6, -2, shape)
    return (exponents + 127).to(torch.uint8), 2.0**exponents


def fp8_blocks(shape: tuple[int, ...]) -> Stored:
    numbers, scale = fp8(shape), small((-(-shape[0] // 128), -(-shape[1] // 128)))
    return {"weight": numbers, "weight_scale_inv": scale}, numbers.float() * spread(
        scale, shape, (128, 128)
    )


def fp8_tensor(shape: tuple[int, ...], end: str = "weight_scale_inv") -> Stored:
    numbers, scale = fp8(shape), small(())
    other = {"weight_scale_inv": "activation_scale", "weight_scale": "input_scale"}[end]
    return {"weight": numbers, end: scale, other: small(())}, numbers.float() * scale


def fp8_powers(shape: tuple[int, ...]) -> Stored:
    numbers, (stored, scale) = fp8(shape), powers((shape[0], shape[1] // 32))
    weight = numbers.float() * spread(scale, shape, (1, 32))
    return {"weight": numbers, "weight_scale_inv": stored}, weight


def fp8_rows(shape: tuple[int, ...]) -> Stored:
    numbers, scale = fp8(shape), small((shape[0], 1)).bfloat16()
    return {"weight": numbers, "weight_scale": scale}, numbers.float() * scale.float()


def int8_rows(shape: tuple[int, ...]) -> Stored:
    numbers, scale = torch.randint(-128, 128, shape), small((shape[0], 1), 0.002)
    zeros = torch.randint(-9, 9, (shape[0], 1))
    weight = (numbers - zeros) * scale
    stored = {"weight": numbers.to(torch.int8), "weight_scale": scale}
    return stored | {"weight_zero_point": zeros.to(torch.int8)}, weight


def integers(shape: tuple[int, ...], bits: int = 4, zeros: bool = False) -> Stored:
    """compressed-tensors' `pack-quantized`, in groups of 32."""
    numbers, scale = torch.randint(0, 2**bits, shape), small((shape[0], shape[1] // 32), 0.02)
    zero = torch.full_like(scale, 2 ** (bits - 1)).int()
    stored = {"weight_packed": words(numbers, bits), "weight_scale": scale}
    stored["weight_shape"] = torch.tensor(shape)
    if zeros:
        zero = torch.randint(0, 2**bits, scale.shape)
        stored["weight_zero_point"] = words(zero.T, bits).T.contiguous()
    weight = (numbers - spread(zero, shape, (1, 32))) * spread(scale, shape, (1, 32))
    return stored, weight


def nvfp4(shape: tuple[int, ...], modelopt: bool = False) -> Stored:
    stored, value = fp4(shape)
    scale, whole = fp8((shape[0], shape[1] // 16)).abs().float() + 1, small(())
    scale = scale.to(torch.float8_e4m3fn)
    weight = value * spread(scale.float(), shape, (1, 16)) * whole / 4
    if modelopt:
        return {"weight": stored, "weight_scale": scale, "weight_scale_2": whole / 4}, weight
    return {
        "weight_packed": stored,
        "weight_scale": scale,
        "weight_global_scale": (4 / whole)[None],
    }, weight


def gptq(
    shape: tuple[int, ...], bits: int = 4, first: bool = True, shuffled: bool = True
) -> Stored:
    """In groups of 32 inputs, which `act order` has shuffled; `first`: format, with one less."""
    groups = (torch.randperm if shuffled else torch.arange)(shape[1]) // 32
    numbers = torch.randint(0, 2**bits, shape)
    zeros = torch.randint(0, 2**bits, (shape[1] // 32, shape[0]))
    scale = small(zeros.shape, 0.02).half()
    weight = (numbers - zeros[groups].T) * scale.float()[groups].T
    return {
        "qweight": words(numbers, bits).T.contiguous(),
        "qzeros": words((zeros - int(first)) % 2**bits, bits),
        "scales": scale,
        **({"g_idx": groups.int()} if shuffled else {}),
    }, weight


def awq(shape: tuple[int, ...]) -> Stored:
    """The `gemm` layout in groups of 32: eight outputs of a word are first the even ones."""
    order = torch.arange(shape[0]).view(-1, 8)[:, [0, 2, 4, 6, 1, 3, 5, 7]].flatten()
    numbers = torch.randint(0, 16, shape)
    zeros = torch.randint(0, 16, (shape[1] // 32, shape[0]))
    scale = small(zeros.shape, 0.02).half()
    every = torch.arange(shape[1]) // 32
    weight = (numbers - zeros[every].T) * scale.float()[every].T
    return {
        "qweight": words(numbers.T[:, order], 4),
        "qzeros": words(zeros[:, order], 4),
        "scales": scale,
    }, weight


def expert_blocks(shape: tuple[int, ...]) -> Stored:
    """gpt-oss' experts (E, I, O), stored as (E, O, I/32, 16) and (E, O, I/32)."""
    experts, inputs, outputs = shape
    numbers, value = fp4((experts, outputs, inputs // 32, 32))
    stored, scale = powers((experts, outputs, inputs // 32))
    weight = (value * scale[..., None]).flatten(2).transpose(1, 2).contiguous()
    return {"_blocks": numbers, "_scales": stored}, weight


@dataclass(frozen=True)
class PackedKind:
    """A format: its `quantization_config`, and what draws a weight of a shape."""

    settings: dict[str, Any]
    draw: Callable[[tuple[int, ...]], Stored]


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


_INTEGERS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
PACKED: dict[str, PackedKind] = {
    "fp8 blocks": PackedKind(_FP8 | {"weight_block_size": [128, 128]}, fp8_blocks),
    "fp8 tensor": PackedKind(
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        fp8_tensor,
    ),
    "mxfp8": PackedKind(
        {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}, fp8_powers
    ),
    "fbgemm": PackedKind({"quant_method": "fbgemm_fp8"}, fp8_rows),
    "compressed fp8": PackedKind(_compressed("float-quantized", strategy="channel"), fp8_rows),
    "compressed int8": PackedKind(_compressed("int-quantized", type="int"), int8_rows),
    "compressed int4": PackedKind(_compressed("pack-quantized", **_INTEGERS), integers),
    "compressed zeros": PackedKind(
        _compressed("pack-quantized", **_INTEGERS | {"num_bits": 3, "symmetric": False}),
        lambda shape: integers(shape, 3, zeros=True),
    ),
    "compressed nvfp4": PackedKind(_compressed("nvfp4-pack-quantized", num_bits=4), nvfp4),
    "modelopt nvfp4": PackedKind(
        {"quant_method": "modelopt", "quant_algo": "NVFP4"}, lambda shape: nvfp4(shape, True)
    ),
    "modelopt fp8": PackedKind(
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        lambda shape: fp8_tensor(shape, "weight_scale"),
    ),
    "gptq": PackedKind({"quant_method": "gptq", "bits": 4, "group_size": 32}, gptq),
    "gptq 8 bits": PackedKind(
        {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"},
        lambda shape: gptq(shape, 8, first=False),
    ),
    "auto-round": PackedKind(
        {"quant_method": "auto-round", "bits": 2, "packing_format": "auto_round"},
        lambda shape: gptq(shape, 2, first=False, shuffled=False),
    ),
    "awq": PackedKind({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq),
    "mxfp4": PackedKind({"quant_method": "mxfp4"}, expert_blocks),
}


def quantise(folder: Path, kind: str) -> None:
    """Draws the matrices of a saved model anew: the folder gets them packed, and `folder/plain` the
    weights that they store."""
    from safetensors.torch import load_file, save_file

    packed, path = PACKED[kind], folder / "model.safetensors"
    plain, stored = load_file(path), dict[str, Tensor]()
    for name, weight in plain.items():
        chosen = ("experts.gate_up_proj", "experts.down_proj")
        whole = kind == "fp8 blocks" or not any(size % 32 for size in weight.shape)
        if not (whole and name.endswith(chosen if kind == "mxfp4" else ("_proj.weight",))):
            stored[name] = weight
            continue
        parts, drawn = packed.draw(tuple(weight.shape))
        begin = name if kind == "mxfp4" else name.removesuffix("weight")
        stored |= {begin + end: one.contiguous() for end, one in parts.items()}
        plain[name] = drawn.float().contiguous()
    (folder / "plain").mkdir()
    for other in folder.glob("*.json"):
        (folder / "plain" / other.name).write_bytes(other.read_bytes())
    save_file(plain, folder / "plain" / "model.safetensors", {"format": "pt"})
    save_file(stored, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config["quantization_config"] = packed.settings
    (folder / "config.json").write_text(json.dumps(config), "utf-8")

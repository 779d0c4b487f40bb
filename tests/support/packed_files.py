"""Quantised checkpoints as they are published, and the plain weights that they store.

The numbers and the scales are drawn; the weight is what their format says they mean, computed
element by element.
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


def fp8_tensor(shape: tuple[int, ...]) -> Stored:
    numbers, scale = fp8(shape), small(())
    stored = {"weight": numbers, "weight_scale_inv": scale, "activation_scale": small(())}
    return stored, numbers.float() * scale


def fp8_powers(shape: tuple[int, ...]) -> Stored:
    numbers, (stored, scale) = fp8(shape), powers((shape[0], shape[1] // 32))
    weight = numbers.float() * spread(scale, shape, (1, 32))
    return {"weight": numbers, "weight_scale_inv": stored}, weight


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

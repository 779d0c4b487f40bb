"""Weights computed from the numbers of few bits and the scales that a checkpoint stores.

Everything is computed in float32 and rounded once, to the type that is asked for. The bits are laid
out as the packages that write them do: fp8 by blocks (DeepSeek-V3, arXiv 2412.19437, section 3.3),
MXFP4 (OCP Microscaling Formats 1.0), NVFP4 (modelopt, compressed-tensors), integers (GPTQ, AWQ,
compressed-tensors). Activations are not rounded, as kernels for such weights may do.

Letters: a weight W is (O, I): outputs, inputs; with experts (E, O, I).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import pad

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import stored_weights, weight_files
from esa_cli.models.loading.packed_layouts import QuantisedWeight, plain_weights

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The numbers that 4 bits are in MXFP4 and NVFP4."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where AWQ's `gemm` layout has each of the eight outputs of a word."""
AS_THEY_ARE = ("gptq_v2", "auto_round", "auto_round:gptqmodel")
"""Formats of GPTQ that store zeros so; the others store one less."""
BIASED = 127
"""Subtracted from an exponent of 8 bits (E8M0)."""
ROWS_AT_ONCE = 1 << 22
"""Numbers whose bits are spread at once, in 8 bytes each."""

Parts = Mapping[str, Tensor]
Settings = Mapping[str, Any]


def fours(packed: Tensor) -> Tensor:
    """Floats (..., 2 N) of bytes (..., N): the low four bits of a byte are the first number."""
    each = torch.arange(256)
    table = torch.tensor(E2M1)[torch.stack((each & 15, each >> 4), -1)]
    return table[packed.int()].flatten(-2)


def integers(packed: Tensor, bits: int, count: int) -> Tensor:
    """Integers (R, count) in words (R, N) of 32 bits, without gaps, lowest bits first; of 8 or 16
    bits.

    Args:
        bits: of an integer, 1 to 8; one may begin in a word and end in the next.
    """
    if bits in (2, 4, 8):
        parts = packed.contiguous().view(torch.uint8)[..., None]
        shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
        numbers: Tensor = (parts >> shifts) & (2**bits - 1)
        return numbers.flatten(1)[:, :count]
    at = torch.arange(count) * bits
    first, shift = at // 32, at % 32
    second = (first + 1).clamp(max=packed.shape[1] - 1)
    out = torch.empty(len(packed), count, dtype=torch.int16)
    step = max(1, ROWS_AT_ONCE // count)
    for begin in range(0, len(packed), step):
        words = packed[begin : begin + step].long() & 0xFFFFFFFF
        both = (words[:, first] >> shift) | (words[:, second] << (32 - shift))
        out[begin : begin + step] = both & (2**bits - 1)
    return out


def grouped(
    numbers: Tensor, zeros: Tensor, scale: Tensor, index: Tensor | None, settings: Settings
) -> Tensor:
    """W of integers (O, I): less the zero of its group, times the scale; both (O, G).

    Args:
        index: (I) the group of each input; None: groups are of inputs that follow each other.
    """
    out = numbers.float()
    inputs, groups = out.shape[1], scale.shape[1]
    size = group_size(settings, inputs, groups)
    usual = torch.arange(inputs) // size
    if inputs % size == 0 and (index is None or torch.equal(index.long(), usual)):
        parts = out.view(len(out), groups, size)
        parts.sub_(zeros[..., None].float()).mul_(scale[..., None].float())
        return out
    each = usual if index is None else index.long()
    return out.sub_(zeros.float()[:, each]).mul_(scale.float()[:, each])


def group_size(settings: Settings, inputs: int, groups: int) -> int:
    """Inputs of a group; the last may have fewer."""
    weights = (one.get("weights") or {} for one in (settings.get("config_groups") or {}).values())
    for said in (one.get("group_size") for one in (settings, *weights)):
        if isinstance(said, int) and said > 0 and -(-inputs // said) == groups:
            return said
    return -(-inputs // groups)


def scaled(numbers: Tensor, scale: Tensor, block: tuple[int, int] | None = None) -> Tensor:
    """Numbers (..., O, I), each times its scale; a float tensor is changed in place.

    Args:
        scale: one; of each output (O) or (O, 1), of each expert (E), or of blocks (..., A, B).
            Bytes are exponents.
        block: (outputs, inputs) of a block, where those at the edge may be smaller; else all are
            alike.

    Raises:
        ModelError: blocks that are alike do not divide the weight.
    """
    out = numbers.float()
    factor = torch.exp2(scale.float() - BIASED) if scale.dtype == torch.uint8 else scale.float()
    if factor.numel() == 1:
        return out.mul_(factor.reshape(()))
    if factor.ndim < out.ndim:
        experts = out.ndim == 3 and factor.shape == out.shape[:1]
        factor = factor[:, None, None] if experts else factor[..., None]
    (rows, columns), (down, across) = out.shape[-2:], factor.shape[-2:]
    if block is None or (-(-rows // block[0]), -(-columns // block[1])) != (down, across):
        if rows % down or columns % across:
            raise ModelError(
                f"scales {tuple(scale.shape)} must divide a weight {tuple(out.shape)} into blocks",
                "its config.json must say how large blocks are (weight_block_size)",
            )
        block = rows // down, columns // across
    edge = (0, across * block[1] - columns, 0, down * block[0] - rows)
    whole = pad(out, edge) if any(edge) else out
    blocks = whole.view(*whole.shape[:-2], down, block[0], across, block[1])
    blocks *= factor[..., :, None, :, None]
    return whole[..., :rows, :columns]


def block_size(settings: Settings) -> tuple[int, int] | None:
    """(outputs, inputs) of a block of scales, by a checkpoint's settings."""
    groups = settings.get("config_groups") or {}
    found = [settings.get("weight_block_size")]
    found += [(one.get("weights") or {}).get("block_structure") for one in groups.values()]
    return next(
        ((one[0], one[1]) for one in found if isinstance(one, list) and len(one) == 2), None
    )


def _scaled(parts: Parts, settings: Settings) -> Tensor:
    """W of numbers (..., O, I) of 8 bits; those of a zero point are signed as they are."""
    numbers = parts[""]
    if "_zero_point" in parts:
        numbers = numbers.float() - parts["_zero_point"].float()
    scale = parts["_scale_inv"] if "_scale_inv" in parts else parts["_scale"]
    return scaled(numbers, scale, block_size(settings))


def _fp4(parts: Parts, settings: Settings) -> Tensor:
    """W of bytes (..., O, I/2) and scales (..., O, I/group). The second scale of compressed-tensors
    divides, that of modelopt multiplies."""
    out = scaled(fours(parts["_packed"] if "_packed" in parts else parts[""]), parts["_scale"])
    if "_global_scale" in parts:
        return scaled(out, 1 / parts["_global_scale"].float())
    return scaled(out, parts["_scale_2"]) if "_scale_2" in parts else out


def _experts(parts: Parts, settings: Settings) -> Tensor:
    """W of gpt-oss (E, I, O), of bytes (E, O, I/32, 16) and exponents (E, O, I/32)."""
    pairs = zip(parts["_blocks"], parts["_scales"], strict=True)
    return torch.stack([scaled(fours(numbers.flatten(1)), scale).T for numbers, scale in pairs])


def _integers(parts: Parts, settings: Settings) -> Tensor:
    """W of compressed-tensors, of words (O, N), scales (O, G) and perhaps zeros (O/pack, G)."""
    packed, scale = parts["_packed"], parts["_scale"]
    count = int(parts["_shape"][1])
    bits = packed.shape[1] * 32 // count
    zeros = torch.full_like(scale, 2 ** (bits - 1), dtype=torch.float)
    if "_zero_point" in parts:
        zeros = integers(parts["_zero_point"].T, bits, len(packed)).T
    index = parts.get("_g_idx")
    if index is not None and bool((index < 0).any()):  # not set
        index = None
    return grouped(integers(packed, bits, count), zeros, scale, index, settings)


def _gptq(parts: Parts, settings: Settings) -> Tensor:
    """W of GPTQ, of words (I/pack, O), or of AWQ, of words (I, O/pack); scales (G, O) and zeros
    (G, O/pack) of either."""
    packed, scale, zeros = parts[".qweight"], parts[".scales"], parts[".qzeros"]
    outputs = scale.shape[1]
    bits = zeros.shape[1] * 32 // outputs
    zero = integers(zeros, bits, outputs)
    if packed.shape[1] == outputs:
        numbers = integers(packed.T, bits, len(packed) * 32 // bits)
        said = {settings.get(name) for name in ("checkpoint_format", "format", "packing_format")}
        if not said.intersection(AS_THEY_ARE):
            zero = (zero + 1) % 2**bits
    else:
        order = torch.arange(outputs).view(-1, 8)[:, AWQ_ORDER].flatten()
        numbers, zero = integers(packed, bits, outputs)[:, order].T, zero[:, order]
    return grouped(numbers, zero.T, scale.T, parts.get(".g_idx"), settings)


RULES: dict[str, Callable[[Parts, Settings], Tensor]] = {
    "scaled": _scaled,
    "fp4": _fp4,
    "experts": _experts,
    "integers": _integers,
    "gptq": _gptq,
}
"""By `PackedLayout.rule`: tensors by their part of the name, and the checkpoint's settings -> W."""


class UnpackedWeight:
    """A weight that is computed when transformers asks for it with `[...]`, as it reads tensors.

    Args:
        files: open safetensors files by the names of tensors. settings: `quantization_config`.
    """

    def __init__(
        self,
        weight: QuantisedWeight,
        files: Mapping[str, Any],
        settings: Settings,
        dtype: torch.dtype,
    ) -> None:
        self.weight, self.files, self.settings, self.dtype = weight, files, settings, dtype

    def __getitem__(self, every: object) -> Tensor:
        """The whole weight."""
        parts = {
            part: self.files[stored.name].get_tensor(stored.name)
            for part, stored in self.weight.parts.items()
        }
        found = RULES[self.weight.layout.rule](parts, self.settings)
        return found.to(self.dtype).contiguous()


def unpacked_weights(folder: Path, settings: Settings, dtype: torch.dtype) -> dict[str, Any]:
    """What transformers takes for a state dict: the tensors of a folder, each read, or computed,
    when it is asked for. Raises ModelError: as `plain_weights`."""
    plain, packed = plain_weights(stored_weights(folder))
    files = dict[str, Any]()
    for path in weight_files(folder):
        file: Any = safe_open(path, "pt")
        files |= dict.fromkeys(file.keys(), file)
    found: dict[str, Any] = {one.name: files[one.name].get_slice(one.name) for one in plain}
    return found | {
        name: UnpackedWeight(one, files, settings, dtype) for name, one in packed.items()
    }

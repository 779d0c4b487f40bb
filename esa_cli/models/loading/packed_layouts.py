"""Which tensors of a checkpoint together store one quantised weight, by their names and types.

Every format stores numbers of few bits and, beside them, the scales that make them weights. Only
headers are looked at here; `unpacking` computes the weights.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from esa_cli.errors import ModelError
from esa_cli.models.files.checkpoint_files import StoredWeight

PLAIN = ("F64", "F32", "F16", "BF16")
"""Types in safetensors files that are made the type that is computed in."""


@dataclass(frozen=True)
class PackedLayout:
    """One way to store a weight W.

    Args:
        rule: of `unpacking.RULES`, that computes W.
        numbers: what the name of the tensor of its numbers has in place of `plain`.
        needed: what the names of the tensors beside it have there. optional: of others.
        plain: what W's own name ends with.
        types: of the tensor of numbers.
    """

    rule: str
    numbers: str
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()
    plain: str = ""
    types: tuple[str, ...] = ("U8",)


_EIGHT = ("F8_E4M3", "F8_E5M2", "I8")
LAYOUTS = (
    PackedLayout("scaled", "", ("_scale_inv",), types=_EIGHT),  # fp8, mxfp8
    PackedLayout("fp4", "", ("_scale", "_scale_2")),  # NVFP4 of modelopt
    PackedLayout(
        "scaled", "", ("_scale",), ("_zero_point",), types=_EIGHT
    ),  # W8A8; FP8 of modelopt
    PackedLayout("fp4", "_packed", ("_scale", "_global_scale")),  # NVFP4 of compressed-tensors
    PackedLayout("fp4", "_packed", ("_scale",)),  # its MXFP4
    PackedLayout(
        "integers", "_packed", ("_scale", "_shape"), ("_zero_point", "_g_idx"), types=("I32",)
    ),
    PackedLayout("experts", "_blocks", ("_scales",)),  # MXFP4 of gpt-oss
    PackedLayout("gptq", ".qweight", (".scales", ".qzeros"), (".g_idx",), ".weight", ("I32",)),
)
"""In order of preference: the first whose tensors are all there."""

_NUMBERS = re.compile(r"(weight|qweight|_packed|_blocks|\.compressed|\.bitmask)$")
_OF_INPUTS = ".pre_quant_scale"
"""Ends the name of factors by which modelopt multiplies the inputs of a matrix."""


class QuantisedWeight(NamedTuple):
    """A weight by its plain name, and the tensors that store it, by what their names have in place
    of its end."""

    name: str
    layout: PackedLayout
    parts: Mapping[str, StoredWeight]

    def count(self, settings: Mapping[str, Any]) -> int:
        """Numbers of the weight.

        Args:
            settings: the checkpoint's `quantization_config`. Where integers of several sizes are
                in it, all are counted as the smallest.
        """
        *rows, last = self.parts[self.layout.numbers].shape
        if self.layout.rule == "integers":
            groups = (settings.get("config_groups") or {}).values()
            bits = [int((one.get("weights") or {}).get("num_bits", 4)) for one in groups]
            return math.prod(rows) * (last * 32 // min(bits, default=4))
        if self.layout.rule == "gptq":
            zeros, scales = self.parts[".qzeros"], self.parts[".scales"]
            return math.prod(rows) * last * scales.shape[1] // zeros.shape[1]
        return math.prod(rows) * last * (1 if self.layout.rule == "scaled" else 2)


def packed_weights(weights: Iterable[StoredWeight]) -> dict[str, QuantisedWeight]:
    """The quantised weights among the tensors of a checkpoint, by their plain names."""
    known = {one.name: one for one in weights}
    found = dict[str, QuantisedWeight]()
    for name, stored in known.items():
        for layout in LAYOUTS:
            if stored.kind not in layout.types or not name.endswith(layout.numbers):
                continue
            begin = name.removesuffix(layout.numbers)
            if all(begin + one in known for one in layout.needed):
                names = (layout.numbers, *layout.needed, *layout.optional)
                parts = {one: known[begin + one] for one in names if begin + one in known}
                found[begin + layout.plain] = QuantisedWeight(begin + layout.plain, layout, parts)
                break
    return found


def plain_weights(
    weights: Iterable[StoredWeight],
) -> tuple[list[StoredWeight], dict[str, QuantisedWeight]]:
    """The tensors of a checkpoint that store themselves, and its quantised weights.

    Raises:
        ModelError: a tensor has numbers of few bits, and nothing beside it says what they mean:
            transformers would take them for weights.
    """
    weights = list(weights)
    packed = packed_weights(weights)
    parts = {part.name for one in packed.values() for part in one.parts.values()}
    rest = [one for one in weights if one.name not in parts]
    scaled = bool(packed) or any(one.name.endswith("_scale") for one in rest)
    for one in rest:
        small = one.kind.startswith("F8")
        if scaled if small else _is_strange(one):
            raise ModelError(
                f"the tensor {one.name} is stored as {one.kind} in a layout that esa does not know",
                "use the model's plain weights, or a GGUF file",
            )
    return rest, packed


def _is_strange(one: StoredWeight) -> bool:
    """Whether a tensor of no 8-bit floats must be more than its numbers."""
    numbers = one.kind not in PLAIN and _NUMBERS.search(one.name)
    return bool(numbers) or one.name.endswith(_OF_INPUTS)

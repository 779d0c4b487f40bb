"""Quantised weights: of plain files while a model is loaded, and of files that are quantised.

torchao and bitsandbytes quantise the matrices of the layers while a model is loaded; embeddings,
norms, the head and the experts of mixtures stay as they are. transformers loads quantised files,
and keeps their weights quantised or dequantises them.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files.checkpoint_files import (
    StoredWeight,
    language_weights,
    read_config,
    weight_files,
)

_PLAIN_INSTEAD = "use the model's plain weights, or a GGUF file"


class Quantization(NamedTuple):
    """A way to quantise weights while a model is loaded: the package, which the extra of this name
    installs; `bytes` of a weight with its share of the scales; the package's `kind` of
    configuration (torchao) and `options`; types of torch devices that compute with such weights."""

    package: str
    bytes: float
    kind: str
    options: dict[str, Any]
    devices: tuple[str, ...] = ("cpu", "cuda")


# The only form of torchao's int4 whose kernel comes with torch.
_INT4: dict[str, Any] = {"group_size": 128, "int4_packing_format": "tile_packed_to_4d"}
_NF4: dict[str, Any] = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
QUANTIZATIONS = {
    "int8": Quantization("torchao", 1.01, "Int8WeightOnlyConfig", {}),
    "fp8": Quantization("torchao", 1.01, "Float8WeightOnlyConfig", {}),
    "int4": Quantization("torchao", 0.54, "Int4WeightOnlyConfig", _INT4, ("cuda",)),
    "nf4": Quantization("bitsandbytes", 0.57, "", _NF4),
    "llm-int8": Quantization("bitsandbytes", 1.01, "", {"load_in_8bit": True}),
}
"""By their names as --dtype."""


def packing_config(name: str, dtype: Any) -> Any:
    """Returns transformers' configuration that quantises weights for computation in a type."""
    import transformers

    way = QUANTIZATIONS[name]
    if way.package == "torchao":
        kind = getattr(importlib.import_module("torchao.quantization"), way.kind)
        return transformers.TorchAoConfig(kind(**way.options))
    untyped: Any = transformers.BitsAndBytesConfig
    return untyped(bnb_4bit_compute_dtype=dtype, **way.options)


def packing_of(dtype: str) -> str:
    """Returns --dtype where that quantises weights, else ""."""
    return dtype if dtype in QUANTIZATIONS else ""


def packed_bytes(way: str, size: int) -> float:
    """Returns the bytes of a weight quantised in a `way`, or `size` without one."""
    return QUANTIZATIONS[way].bytes if way else size


def check_quantization(name: str, device: str) -> None:
    """Raises UsageError when weights cannot be quantised in this way on a device of
    `choose_device`, or the package is missing."""
    way, kind = QUANTIZATIONS[name], device.partition(":")[0]
    if kind not in way.devices:
        message = f"weights in {name} need a device of the kind {' or '.join(way.devices)}"
        hint = "take bfloat16 or float16, or a way that docs/models.md has for this device"
        raise UsageError(f"{message}, got {kind}", hint)
    if importlib.util.find_spec(way.package) is None:
        message = f"weights in {name} need {way.package}, which is not installed"
        raise UsageError(message, f"pip install 'esa-cli[{way.package}]'")


_MODULES = {
    **dict.fromkeys(("fp8", "mxfp8", "mxfp4"), "transformers"),
    "compressed-tensors": "compressed_tensors",
    "bitsandbytes": "bitsandbytes",
    "torchao": "torchao",
}
"""Methods of quantised files that are loaded on a CPU -> the module that this needs."""
_KEPT = ("bitsandbytes", "torchao")
"""Methods whose weights stay quantised on a CPU, and extras of esa-cli."""


def find_quantization_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `quantization_config` of a config.json, or {}."""
    for part in (config, config.get("text_config")):
        settings = part.get("quantization_config") if isinstance(part, Mapping) else None
        if settings and isinstance(settings, dict):
            return settings
    return {}


def quantization_in(config: Mapping[str, Any]) -> str:
    """Returns the method by which a config.json says that its weights are quantised, or ""."""
    if not (settings := find_quantization_config(config)):
        return ""
    method = settings.get("quant_method")
    if not method and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        return "bitsandbytes"
    return str(getattr(method, "value", method) or "an unknown method")


def stays_quantised(config: Mapping[str, Any], place: str) -> bool:
    """Whether weights of quantised files stay quantised on a device of `choose_device`."""
    method = quantization_in(config)
    return bool(method) and (place.startswith("cuda") or method in _KEPT)


def stored_as(config: dict[str, Any], place: str, way: str, dtype: str) -> str:
    """Returns in words what becomes of quantised files on a device, or "" for plain ones. `way` is
    of `QUANTIZATIONS` or ""; `dtype` the name of the computation's type."""
    if not (method := quantization_in(config)):
        return ""
    kept = not way and stays_quantised(config, place)
    return f"quantised by {method}, {'kept so' if kept else f'dequantised to {dtype}'}"


def check_loadable_format(config: Mapping[str, Any], place: str, ref: str) -> None:
    """Raises ModelError when quantised files cannot be loaded on a device of `choose_device`."""
    method = quantization_in(config)
    if not method or place.startswith("cuda"):  # there transformers says what is missing
        return
    module = _MODULES.get(method, "")
    if not module:
        message = f"{ref} is quantised by {method}, which esa does not load on {place}"
        raise ModelError(message, _PLAIN_INSTEAD)
    if importlib.util.find_spec(module) is None:
        message = f"{ref} is quantised by {method}, which needs {module}, not installed here"
        package = f"'esa-cli[{method}]'" if method in _KEPT else method
        raise ModelError(message, f"pip install {package}; or {_PLAIN_INSTEAD}")


# -- Sizes

_FLOATS = ("F64", "F32", "F16", "BF16")
"""Types in safetensors files that become the type of the computation."""
_NUMBERS = re.compile(r"(weight|qweight|_packed|_blocks|\.compressed|\.bitmask)$")
_BESIDE = re.compile(r"(scales?|scale_inv|scale_2|zero_point|shape|g_idx)$")
"""Ends of names of tensors that are stored beside the numbers of a quantised weight."""
_SCALES = ("weight_scale_inv", "scale", "qscale_weight")


def check_weight_types(weights: Iterable[StoredWeight], settings: Mapping[str, Any]) -> None:
    """Raises ModelError where a tensor has numbers of few bits and no scales, or blocks that do not
    divide it: transformers 5.23 would silently load wrong weights."""
    shapes = {weight.name: weight.shape for weight in weights}
    scaled, block = any(map(_BESIDE.search, shapes)), settings.get("weight_block_size")
    for name, kind, shape in weights:
        few = kind not in _FLOATS and _NUMBERS.search(name)
        wrong = bool(few and not settings and (scaled or not kind.startswith("F8")))
        if settings.get("quant_method") in ("fp8", "mxfp8") and kind.startswith("F8"):
            names = (name.removesuffix("weight") + end for end in _SCALES)
            scales = next((shapes[scale] for scale in names if scale in shapes), None)
            wrong = name.endswith("weight") and scales is None
            if scales and len(scales) > 1 and isinstance(block, (list, tuple)):
                sides = zip(shape[-2:], scales[-2:], block, strict=True)
                wrong |= any(count > 1 and size != count * width for size, count, width in sides)
        if wrong:
            message = f"{name} {shape} is stored as {kind}, which its files do not explain"
            raise ModelError(message, _PLAIN_INSTEAD)


def bytes_needed(folder: Path, size: int, way: str = "", kept: bool = False) -> int:
    """Returns the bytes of a folder's weights in memory, with numbers of `size` bytes, quantised in
    a `way` of `QUANTIZATIONS`, or `kept` as quantised files have them; else dequantised."""
    weights, settings = language_weights(folder), find_quantization_config(read_config(folder))
    check_weight_types(weights, settings)
    if kept:
        return sum(path.stat().st_size for path in weight_files(folder))
    total = 0.0
    for name, kind, shape in weights:
        count = math.prod(shape)
        if kind in _FLOATS or (kind.startswith("F8") and not settings):
            matrix = len(shape) == 2 and ".layers." in name
            total += count * (packed_bytes(way, size) if matrix else size)
        elif not _BESIDE.search(name):
            packed = {"U8": 2, "I32": 32 // (_bits(settings) or 8)}.get(kind, 1)
            total += count * packed * size
    return int(total)


def _bits(settings: Mapping[str, Any]) -> int:
    """Returns the bits of a weight by the settings of quantised files, or 0 if these lack them."""
    text = str(settings).lower()
    bits = [int(count) for count in re.findall(r"'(?:n|num_)?bits': (\d+)", text)]
    if "'load_in_4bit': true" in text or "int4" in text:
        bits.append(4)
    return min(bits, default=0)


def kept_bytes(config: Mapping[str, Any]) -> float:
    """Returns about how many bytes a weight that stays quantised takes, with its scales."""
    bits = {"fp8": 8, "mxfp8": 8, "mxfp4": 4}.get(quantization_in(config))
    return (bits or _bits(find_quantization_config(config)) or 8) / 8 + 0.05


def rearrange_weights(model: Any) -> None:
    """Makes bitsandbytes rearrange weights for the CPU now instead of at their first use: the
    fingerprint of a model must not change."""
    import torch

    if quantization_in(model.config.to_dict()) == "bitsandbytes":
        with torch.no_grad():
            model.eval()(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))

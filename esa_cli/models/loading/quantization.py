"""Quantised weights: of plain files while a model is loaded, and of files that are quantised.

torchao and bitsandbytes quantise the matrices of the layers while a model is loaded; embeddings,
norms, the head and the experts of mixtures stay as they are. Files that are quantised are loaded
by transformers, which keeps their weights so or dequantises them; see `FORMATS`.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files.checkpoint_files import StoredWeight, read_config
from esa_cli.models.loading.text_part import language_weights

PLAIN_INSTEAD = "use the model's plain weights, or a GGUF file"


@dataclass(frozen=True)
class Quantization:
    """One way to quantise weights.

    Args:
        package: that does it, and the extra that installs it.
        bytes: of a quantised weight, with its share of the scales.
        config: transformers' configuration, for a type to compute in.
        devices: types of torch devices that can compute with such weights.
    """

    package: str
    bytes: float
    config: Callable[[Any], Any]
    devices: tuple[str, ...] = ("cpu", "cuda")


def _torchao(name: str, **options: Any) -> Callable[[Any], Any]:
    def config(dtype: Any) -> Any:
        from transformers import TorchAoConfig

        kind = getattr(importlib.import_module("torchao.quantization"), name)
        return TorchAoConfig(kind(**options))

    return config


def _bitsandbytes(**options: Any) -> Callable[[Any], Any]:
    def config(dtype: Any) -> Any:
        from transformers import BitsAndBytesConfig

        untyped: Any = BitsAndBytesConfig
        return untyped(bnb_4bit_compute_dtype=dtype, **options)

    return config


# The only form of torchao's int4 whose kernel comes with torch.
_INT4 = _torchao("Int4WeightOnlyConfig", group_size=128, int4_packing_format="tile_packed_to_4d")
_NF4 = _bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4")
QUANTIZATIONS: dict[str, Quantization] = {
    "int8": Quantization("torchao", 1.01, _torchao("Int8WeightOnlyConfig")),
    "fp8": Quantization("torchao", 1.01, _torchao("Float8WeightOnlyConfig")),
    "int4": Quantization("torchao", 0.54, _INT4, ("cuda",)),
    "nf4": Quantization("bitsandbytes", 0.57, _NF4),
    "llm-int8": Quantization("bitsandbytes", 1.01, _bitsandbytes(load_in_8bit=True)),
}
"""By the name that `dtype` has for it. int4 of torchao is stored in 8 bits on a CPU."""


def packing_of(dtype: str) -> str:
    """The way that the option's value quantises weights; "": it does not."""
    return dtype if dtype in QUANTIZATIONS else ""


def packed_bytes(way: str, size: int) -> float:
    """Bytes of a weight; `size` where nothing quantises it."""
    return QUANTIZATIONS[way].bytes if way else size


def check_quantization(name: str, device: str) -> None:
    """Raises UsageError when weights cannot be quantised so on a device of `choose_device`, or the
    package is missing."""
    way, kind = QUANTIZATIONS[name], _kind(device)
    if kind not in way.devices:
        raise UsageError(
            f"weights in {name} need a device of the kind {' or '.join(way.devices)}, got {kind}",
            "take bfloat16 or float16, or a way that docs/models.md has for this device",
        )
    if not _installed(way.package):
        raise UsageError(
            f"weights in {name} need {way.package}, which is not installed",
            f"pip install 'esa-cli[{way.package}]'",
        )


FORMATS: dict[str, tuple[str, str]] = {
    "fp8": ("", ""),
    "mxfp8": ("", ""),
    "mxfp4": ("", ""),
    "compressed-tensors": ("compressed_tensors", "compressed-tensors"),
    "bitsandbytes": ("bitsandbytes", "'esa-cli[bitsandbytes]'"),
    "torchao": ("torchao", "'esa-cli[torchao]'"),
}
"""What is imported to load files of a `quant_method` on a CPU, and the package that it comes with.
On a CUDA device transformers loads what it can, and says itself what is missing."""
_KEPT = ("bitsandbytes", "torchao")
"""Methods whose weights stay quantised on a CPU; those of the others are dequantised."""
_BITS = {"fp8": 8, "mxfp8": 8, "mxfp4": 4, "bitnet": 2}


def settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `quantization_config` of a config.json; {}: it has none."""
    for part in (config, config.get("text_config")):
        settings = part.get("quantization_config") if isinstance(part, Mapping) else None
        if settings and isinstance(settings, dict):
            return settings
    return {}


def quantization_in(config: Mapping[str, Any]) -> str:
    """The method by which a config.json says its weights are quantised; "": they are not."""
    if not (settings := settings_in(config)):
        return ""
    method = settings.get("quant_method")
    if not method and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        return "bitsandbytes"
    return str(getattr(method, "value", method) or "an unknown method")


def stays_quantised(config: Mapping[str, Any], place: str) -> bool:
    """Whether a model's weights stay in memory as quantised files have them, on a device of
    `choose_device`; else they are plain, or are dequantised."""
    method = quantization_in(config)
    return bool(method) and (_kind(place) == "cuda" or method in _KEPT)


def stored_as(config: dict[str, Any], place: str, way: str, dtype: str) -> str:
    """What becomes of the weights of quantised files on a device, in words; "": they are plain.
    `way` is of `QUANTIZATIONS` or ""; `dtype` the name of the type of the computation."""
    method = quantization_in(config)
    if not method:
        return ""
    kept = not way and stays_quantised(config, place)
    return f"quantised by {method}, {'kept so' if kept else f'dequantised to {dtype}'}"


def check_loadable_format(config: Mapping[str, Any], place: str, ref: str) -> None:
    """Raises ModelError when a model's files, by its config.json, are quantised in a way that
    cannot be loaded on a device of `choose_device`."""
    method = quantization_in(config)
    if not method or _kind(place) == "cuda":
        return
    if method not in FORMATS:
        message = f"{ref} is quantised by {method}, which esa does not load on {place}"
        raise ModelError(message, PLAIN_INSTEAD)
    module, package = FORMATS[method]
    if module and not _installed(module):
        raise ModelError(
            f"{ref} is quantised by {method}, and {module}, which loads that, is not installed",
            f"pip install {package}; or {PLAIN_INSTEAD}",
        )


def _kind(place: str) -> str:
    return place.partition(":")[0]


def _installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


FLOATS = ("F64", "F32", "F16", "BF16")
"""Types in safetensors files that become the type that is computed in."""
_WIDTHS = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
"""Bytes of a number of other types; the rest have one."""
_NUMBERS = re.compile(r"(weight|qweight|_packed|_blocks|\.compressed|\.bitmask)$")
_BESIDE = re.compile(r"(scales?|scale_inv|scale_2|zero_point|shape|g_idx)$")
"""Ends of the names of tensors that are stored beside the numbers of a quantised weight."""
_SCALES_OF_FP8 = ("weight_scale_inv", "scale", "qscale_weight")


def check_types(weights: Iterable[StoredWeight], settings: Mapping[str, Any]) -> None:
    """Raises ModelError where a tensor has numbers of few bits and no scales, or blocks that do not
    divide it: transformers 5.23 would load wrong weights and say nothing."""
    shapes = {weight.name: weight.shape for weight in weights}
    scaled = any(_BESIDE.search(name) for name in shapes)
    for name, kind, shape in weights:
        wrong = name.endswith(".pre_quant_scale")
        if not settings and kind not in FLOATS and _NUMBERS.search(name):
            wrong |= scaled or not kind.startswith("F8")
        if settings.get("quant_method") in ("fp8", "mxfp8") and kind.startswith("F8"):
            begin = name.removesuffix("weight")
            scales = [shapes[begin + end] for end in _SCALES_OF_FP8 if begin + end in shapes]
            wrong |= name != begin and not scales
            block = settings.get("weight_block_size")
            if scales and len(scales[0]) > 1 and isinstance(block, (list, tuple)):
                each = zip(shape[-2:], scales[0][-2:], block, strict=True)
                wrong |= any(count > 1 and size != count * width for size, count, width in each)
        if wrong:
            raise ModelError(
                f"the tensor {name} {shape} is stored as {kind}, and its files do not say what it "
                "means, or its blocks do not divide it",
                PLAIN_INSTEAD,
            )


def bytes_needed(folder: Path, size: int, way: str = "", kept: bool = False) -> int:
    """Bytes of a folder's weights in memory, with numbers of `size` bytes, quantised in a `way` of
    `QUANTIZATIONS`, or `kept` as quantised files have them; else these are dequantised. Raises
    ModelError, as `language_weights` and `check_types`."""
    weights, settings = language_weights(folder), settings_in(read_config(folder))
    check_types(weights, settings)
    total = 0.0
    for name, kind, shape in weights:
        count = math.prod(shape)
        if kind in FLOATS or (kind.startswith("F8") and not settings):
            matrix = len(shape) == 2 and ".layers." in name
            total += count * (packed_bytes(way, size) if matrix else size)
        elif kept:
            total += count * _WIDTHS.get(kind, 1)
        elif not _BESIDE.search(name):
            per = {"U8": 2, "I32": 32 // (_bits(settings) or 8)}.get(kind, 1)
            total += count * per * size
    return int(total)


def _bits(settings: Mapping[str, Any]) -> int:
    """Bits of a weight, as a checkpoint's settings say; 0: they do not."""
    groups = (settings.get("config_groups") or {}).values()
    values = [settings.get("bits"), settings.get("nbits")]
    values += [(group.get("weights") or {}).get("num_bits") for group in groups]
    if settings.get("load_in_4bit") or "int4" in str(settings.get("quant_type")).lower():
        values.append(4)
    return min((bits for bits in values if isinstance(bits, int) and bits > 0), default=0)


def kept_bytes(config: Mapping[str, Any]) -> float:
    """Bytes of a weight that stays quantised, with its share of the scales; about, as this depends
    on the size of groups."""
    bits = _BITS.get(quantization_in(config)) or _bits(settings_in(config)) or 8
    return bits / 8 + 0.05


def settle(model: Any) -> None:
    """Has bitsandbytes rearrange weights for the CPU, which it does when they are first used:
    a model has one fingerprint, before and after."""
    import torch

    if quantization_in(model.config.to_dict()) == "bitsandbytes":
        with torch.no_grad():
            model.eval()(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))

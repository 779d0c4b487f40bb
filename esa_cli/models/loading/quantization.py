"""Quantises a model's weights at loading, and finds which quantised files can be loaded.

torchao and bitsandbytes quantise the matrices of the layers while a model is loaded; embeddings,
norms, the output head and mixture-of-experts weights stay unquantised. transformers loads files
with quantised weights, and either leaves the weights quantised or dequantises them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple

from esa_cli.errors import ModelError, UsageError
from esa_cli.models.files.checkpoint_files import (
    PLAIN_WEIGHTS_HINT,
    find_quantization_config,
    read_bits_per_weight,
)


class WeightQuantization(NamedTuple):
    """How weights are quantised while a model is loaded."""

    package: str  # the Python package that quantises
    bytes: float  # per weight, including the weight's share of the scales
    kind: str  # the name of a configuration class of torchao, or ""
    options: dict[str, Any]  # the arguments of the configuration
    devices: tuple[str, ...] = ("cpu", "cuda")  # the device types that can compute with the weights


# The only form of torchao's int4 whose kernel comes with torch.
_INT4: dict[str, Any] = {"group_size": 128, "int4_packing_format": "tile_packed_to_4d"}
_NF4: dict[str, Any] = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
QUANTIZATIONS = {
    "int8": WeightQuantization("torchao", 1.01, "Int8WeightOnlyConfig", {}),
    "fp8": WeightQuantization("torchao", 1.01, "Float8WeightOnlyConfig", {}),
    "int4": WeightQuantization("torchao", 0.54, "Int4WeightOnlyConfig", _INT4, ("cuda",)),
    "nf4": WeightQuantization("bitsandbytes", 0.57, "", _NF4),
    "llm-int8": WeightQuantization("bitsandbytes", 1.01, "", {"load_in_8bit": True}),
}
"""The ways to quantise weights, by the value of --dtype that selects each."""


def make_quantization_config(quantise_as: str, dtype: Any) -> Any:
    """Makes transformers' configuration for a name in `QUANTIZATIONS`, to compute in `dtype`."""
    import transformers

    way = QUANTIZATIONS[quantise_as]
    if way.package == "torchao":
        kind = getattr(importlib.import_module("torchao.quantization"), way.kind)
        return transformers.TorchAoConfig(kind(**way.options))
    untyped: Any = transformers.BitsAndBytesConfig
    return untyped(bnb_4bit_compute_dtype=dtype, **way.options)


def get_bytes_per_weight(quantise_as: str, unquantised_bytes: int) -> float:
    """Returns the bytes of one weight, quantised as `quantise_as`, or unquantised if this is ""."""
    return QUANTIZATIONS[quantise_as].bytes if quantise_as else unquantised_bytes


def check_quantization_available(quantise_as: str, device: str) -> None:
    """Raises UsageError if a device, or a missing package, cannot quantise weights in this way."""
    way, kind = QUANTIZATIONS[quantise_as], device.partition(":")[0]
    if kind not in way.devices:
        message = f"--dtype {quantise_as} needs a device of the type {' or '.join(way.devices)}"
        hint = "use bfloat16, float16 or a quantisation that docs/models.md lists for this device"
        raise UsageError(f"{message}, got {kind}", hint)
    if importlib.util.find_spec(way.package) is None:
        message = f"--dtype {quantise_as} needs the package {way.package}, which is not installed"
        raise UsageError(message, f"pip install 'esa-cli[{way.package}]'")


_MODULES = {
    **dict.fromkeys(("fp8", "mxfp8", "mxfp4"), "transformers"),
    "compressed-tensors": "compressed_tensors",
    "bitsandbytes": "bitsandbytes",
    "torchao": "torchao",
}
"""Maps quantisation methods that can be loaded on a CPU to the Python module each needs."""
_STAY_QUANTISED = ("bitsandbytes", "torchao")
"""Methods whose weights stay quantised on a CPU; esa-cli has an extra of the same name for each."""


def read_quantization_method(config: Mapping[str, Any]) -> str:
    """Returns the quantisation method of the weights according to config.json, or "" for none."""
    if not (settings := find_quantization_config(config)):
        return ""
    method = settings.get("quant_method")
    if not method and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        return "bitsandbytes"
    return str(getattr(method, "value", method) or "an unknown method")


def weights_stay_quantised(config: Mapping[str, Any], device: str) -> bool:
    """Whether a model's weights are stored quantised, and stay quantised on a torch device."""
    method = read_quantization_method(config)
    return bool(method) and (device.startswith("cuda") or method in _STAY_QUANTISED)


def describe_quantization(
    config: dict[str, Any], device: str, quantise_as: str, dtype_name: str
) -> str:
    """Returns, for example, "quantised by fp8, dequantised to bfloat16", or "" if not quantised."""
    if not (method := read_quantization_method(config)):
        return ""
    kept = not quantise_as and weights_stay_quantised(config, device)
    return f"quantised by {method}, {'stays quantised' if kept else f'dequantised to {dtype_name}'}"


def check_quantised_files_loadable(config: Mapping[str, Any], device: str, model_name: str) -> None:
    """Raises ModelError if a model's quantised files cannot be loaded onto a torch device."""
    method = read_quantization_method(config)
    if not method or device.startswith("cuda"):  # there transformers says what is missing
        return
    module = _MODULES.get(method, "")
    if not module:
        message = f"{model_name} is quantised by {method}, which esa cannot load on {device}"
        raise ModelError(message, PLAIN_WEIGHTS_HINT)
    if importlib.util.find_spec(module) is None:
        message = f"{model_name} is quantised by {method}, which needs the missing module {module}"
        package = f"'esa-cli[{method}]'" if method in _STAY_QUANTISED else method
        hint = f"install the missing package by pip install {package}, or {PLAIN_WEIGHTS_HINT}"
        raise ModelError(message, hint)


def estimate_bytes_per_quantised_weight(config: Mapping[str, Any]) -> float:
    """Estimates the bytes of one weight of a quantised model, including its share of the scales."""
    bits = {"fp8": 8, "mxfp8": 8, "mxfp4": 4}.get(read_quantization_method(config))
    return (bits or read_bits_per_weight(find_quantization_config(config)) or 8) / 8 + 0.05


def rearrange_bitsandbytes_weights(model: Any) -> None:
    """Rearranges weights before the first forward call, so that the fingerprint stays."""
    import torch

    if read_quantization_method(model.config.to_dict()) == "bitsandbytes":
        with torch.no_grad():
            model.eval()(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))

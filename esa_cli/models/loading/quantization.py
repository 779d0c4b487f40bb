"""Weights that torchao or bitsandbytes packs while a model is loaded.

Of a model that is packed here the matrices of the layers are, and embeddings, norms and the head
are not. Mixtures of experts keep their experts as they are: neither package packs these.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli.errors import ModelError, UsageError, first_line
from esa_cli.models.files.checkpoint_files import read_config
from esa_cli.models.loading.packed_formats import (
    FORMATS,
    PLAIN_INSTEAD,
    quantization_in,
    settings_in,
)
from esa_cli.models.loading.packed_layouts import PLAIN, plain_weights
from esa_cli.models.loading.text_part import language_weights


@dataclass(frozen=True)
class Quantization:
    """One way to pack weights.

    Args:
        package: that does it, and the extra that installs it.
        bytes: of a packed weight, with its share of the scales.
        config: transformers' configuration, for a type to compute in.
        devices: types of torch devices that can compute with such weights.
    """

    package: str
    bytes: float
    config: Callable[[Any], Any]
    devices: tuple[str, ...] = ("cpu", "cuda")


def _int8(dtype: Any) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Int8WeightOnlyConfig())


def _fp8(dtype: Any) -> Any:
    from torchao.quantization import Float8WeightOnlyConfig
    from transformers import TorchAoConfig

    return TorchAoConfig(Float8WeightOnlyConfig())


def _int4(dtype: Any) -> Any:
    from torchao.quantization import Int4WeightOnlyConfig
    from transformers import TorchAoConfig

    # The only form of it whose kernel comes with torch.
    packing: Any = "tile_packed_to_4d"
    return TorchAoConfig(Int4WeightOnlyConfig(group_size=128, int4_packing_format=packing))


def _nf4(dtype: Any) -> Any:
    from transformers import BitsAndBytesConfig

    config: Any = BitsAndBytesConfig
    return config(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)


def _llm_int8(dtype: Any) -> Any:
    from transformers import BitsAndBytesConfig

    config: Any = BitsAndBytesConfig
    return config(load_in_8bit=True)


WIDTHS = {"I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2}
"""Bytes of a number of types that are not made the one that is computed in; others have one."""

QUANTIZATIONS: dict[str, Quantization] = {
    "int8": Quantization("torchao", 1.01, _int8),
    "fp8": Quantization("torchao", 1.01, _fp8),
    "int4": Quantization("torchao", 0.54, _int4, ("cuda",)),
    "nf4": Quantization("bitsandbytes", 0.57, _nf4),
    "llm-int8": Quantization("bitsandbytes", 1.01, _llm_int8),
}
"""By the name that `dtype` has for it. int4 of torchao is stored in 8 bits on a processor."""


def packing_of(dtype: str) -> str:
    """What the option's value packs weights by; "": by nothing."""
    return dtype if dtype in QUANTIZATIONS else ""


def packed_bytes(packing: str, size: int) -> float:
    """Bytes of a weight; `size` where nothing packs it."""
    return QUANTIZATIONS[packing].bytes if packing else size


def check_quantization(name: str, device: str) -> None:
    """Raises UsageError when weights cannot be packed so on this device, or the package is missing.

    Args:
        name: of `QUANTIZATIONS`. device: of `choose_device`.
    """
    way = QUANTIZATIONS[name]
    kind = "cuda" if device == "balanced" else device.partition(":")[0]
    if kind not in way.devices:
        other = [one for one, found in QUANTIZATIONS.items() if kind in found.devices]
        raise UsageError(
            f"weights in {name} need a device of the kind {' or '.join(way.devices)}, got {kind}",
            f"take one of {', '.join(other)}" if other else "take bfloat16 or float16",
        )
    if importlib.util.find_spec(way.package) is None:
        raise UsageError(
            f"weights in {name} need {way.package}, which is not installed",
            f"pip install 'esa-cli[{way.package}]'",
        )


def bytes_needed(folder: Path, size: int, packing: str = "", kept: bool = False) -> int:
    """Bytes of a folder's weights in memory. Raises ModelError, as `language_weights` and
    `plain_weights`.

    Args:
        size: of a number of the type that is computed in. packing: of `QUANTIZATIONS`; "": none.
        kept: whether quantised files stay as they are; else their weights are unpacked.
    """
    weights = language_weights(folder)
    plain, unpacked = (weights, {}) if kept else plain_weights(weights)
    settings = settings_in(read_config(folder))
    total = sum(
        one.count(settings) * _bytes_of(name, True, size, packing) for name, one in unpacked.items()
    )
    for name, kind, shape in plain:
        count = math.prod(shape)
        if kind in PLAIN or (kind.startswith("F8") and not kept):
            total += count * _bytes_of(name, len(shape) == 2, size, packing)
        else:
            total += count * WIDTHS.get(kind, 1)
    return int(total)


def _bytes_of(name: str, matrix: bool, size: int, packing: str) -> float:
    packs = packing and matrix and ".layers." in name
    return packed_bytes(packing, size) if packs else size


def settle(model: Any) -> None:
    """Has bitsandbytes rearrange weights for the processor, which it does when they are first used:
    a model has one fingerprint, before and after."""
    import torch

    if quantization_in(model.config.to_dict()) == "bitsandbytes":
        with torch.no_grad():
            model.eval()(input_ids=torch.zeros(1, 1, dtype=torch.long, device=model.device))


def check_unpacked(name: str, config: Mapping[str, Any], ref: str) -> None:
    """Raises UsageError when weights are to be packed that are packed already, and that esa cannot
    unpack."""
    method = quantization_in(config)
    if method and not FORMATS[method].unpacked:
        raise UsageError(
            f"{ref} is quantised by {method} already, and its weights cannot be made {name}",
            "leave --dtype out, or use the model's plain weights",
        )


def packing_error(ref: str, config: Mapping[str, Any], error: Exception) -> ModelError | None:
    """What to say when a model with packed weights cannot be loaded; None: it has none."""
    method = quantization_in(config)
    if not method:
        return None
    if isinstance(error, ImportError):
        return ModelError(
            f"{ref} is quantised by {method}, and what loads that is not installed: "
            f"{first_line(error)}",
            f"install it, or {PLAIN_INSTEAD}",
        )
    return ModelError(
        f"{ref} is quantised by {method} and cannot be loaded here: {first_line(error)}",
        PLAIN_INSTEAD,
    )

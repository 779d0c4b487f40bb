"""Formats of checkpoints whose files are quantised: what loads them, and on which devices.

esa computes the plain weights of the usual formats itself (`unpacking`), without another package.
Where a package and the device can compute with the weights as they are stored, they are kept so.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from esa_cli.errors import ModelError

PLAIN_INSTEAD = "use the model's plain weights, or a GGUF file"


@dataclass(frozen=True)
class PackedFormat:
    """The formats of one `quant_method`.

    Args:
        unpacked: whether esa can compute the plain weights.
        packages: what transformers needs to keep the weights as they are, as pip names them.
        modules: by which these are imported.
        devices: types of torch devices that compute with such weights; none: nothing does here.
        capability: the least of a CUDA device.
        bits: of a weight; 0: `quantization_config` says.
        experts_alone: whether only the experts of mixtures are quantised.
    """

    unpacked: bool = False
    packages: str = ""
    modules: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    capability: tuple[int, int] = (0, 0)
    bits: int = 0
    experts_alone: bool = False


_ANY = ("cpu", "cuda", "mps")
_KERNELS = ("kernels", ("kernels",), ("cuda",))
_GPTQ = ("gptqmodel optimum", ("gptqmodel", "optimum"), ("cuda",))
FORMATS: dict[str, PackedFormat] = {
    "fp8": PackedFormat(True, *_KERNELS, capability=(8, 9), bits=8),
    "mxfp8": PackedFormat(True, *_KERNELS, capability=(8, 9), bits=8),
    "mxfp4": PackedFormat(True, *_KERNELS, capability=(7, 5), bits=4, experts_alone=True),
    "gptq": PackedFormat(True, *_GPTQ),
    "awq": PackedFormat(True, *_GPTQ),
    "auto-round": PackedFormat(True, "auto-round", ("auto_round",), ("cuda",)),
    "compressed-tensors": PackedFormat(True),
    "fbgemm_fp8": PackedFormat(True),
    "modelopt": PackedFormat(True),
    "bitsandbytes": PackedFormat(False, "'esa-cli[bitsandbytes]'", ("bitsandbytes",), _ANY),
    "torchao": PackedFormat(False, "'esa-cli[torchao]'", ("torchao",), _ANY),
    "bitnet": PackedFormat(devices=("cpu", "cuda"), bits=2),
    "gemma": PackedFormat(devices=_ANY, bits=4),
    "metal": PackedFormat(False, "kernels", ("kernels",), ("mps",)),
    "hqq": PackedFormat(False, "hqq", ("hqq",), ("cuda",)),
    "quanto": PackedFormat(False, "optimum-quanto", ("optimum.quanto",), _ANY),
    "aqlm": PackedFormat(False, "'aqlm[gpu,cpu]'", ("aqlm",), _ANY),
    "quark": PackedFormat(False, "amd-quark", ("quark",), _ANY),
    "sinq": PackedFormat(False, "sinq", ("sinq",), _ANY),
    "vptq": PackedFormat(False, "vptq", ("vptq",), ("cuda",)),
    "spqr": PackedFormat(False, "'spqr_quant[gpu]'", ("spqr_quant",), ("cuda",)),
    "eetq": PackedFormat(False, *_KERNELS, bits=8),
    "higgs": PackedFormat(
        False, "flute-kernel fast_hadamard_transform", ("flute", "fast_hadamard_transform"),
        ("cuda",), bits=4,
    ),
    "fp_quant": PackedFormat(False, "fp_quant", ("fp_quant",), ("cuda",), (10, 0), bits=4),
}  # fmt: skip
"""By `quant_method`. What transformers 5.23 can quantise with but not load is not here."""


def quantization_in(config: Mapping[str, Any]) -> str:
    """What a config.json says its weights are packed by; "": they are not."""
    found = settings_in(config)
    if not found:
        return ""
    method = found.get("quant_method")
    if not method and (found.get("load_in_4bit") or found.get("load_in_8bit")):
        return "bitsandbytes"
    if not method and ("quant_algo" in found or "quantization" in found):
        return "modelopt"
    return str(getattr(method, "value", method) or "an unknown method")


def settings_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `quantization_config` of a config.json; {}: it has none."""
    text = config.get("text_config")
    found = config.get("quantization_config") or (
        text.get("quantization_config") if isinstance(text, dict) else None
    )
    return found if isinstance(found, dict) else {}


def kept_format(config: Mapping[str, Any], place: str) -> PackedFormat | None:
    """The format of a model whose weights stay in memory as the files have them; None: they are
    plain, or are unpacked. Nothing is raised where they cannot be loaded.

    Args:
        place: of `choose_device`.
    """
    found = FORMATS.get(quantization_in(config))
    if found is None:
        return None
    kept = not found.unpacked or not (_device_lacks(found, place) or _missing(found))
    return found if kept else None


def stored_as(config: dict[str, Any], place: str, packing: str, dtype: str) -> str:
    """What becomes of the weights of quantised files, in words; "": they are plain.

    Args:
        config: of config.json. place: of `choose_device`.
        packing: of `QUANTIZATIONS`; "": none. dtype: its name, or of what is computed in.
    """
    method = quantization_in(config)
    if not method:
        return ""
    kept = not packing and kept_format(config, place) is not None
    return f"quantised by {method}, {'kept so' if kept else f'unpacked to {dtype}'}"


def check_loadable_format(config: Mapping[str, Any], place: str, ref: str) -> None:
    """Raises ModelError when a model's files are quantised in a way that cannot be loaded here.

    Args:
        config: of config.json. place: of `choose_device`.
    """
    method = quantization_in(config)
    found = FORMATS.get(method)
    if not method or (found is not None and kept_format(config, place) is None):
        _check_variant(method, settings_in(config), ref)
    elif found is None:
        raise ModelError(
            f"{ref} is quantised by {method}, which neither esa nor transformers loads",
            PLAIN_INSTEAD,
        )
    elif lacks := _device_lacks(found, place):
        raise ModelError(f"{ref} is quantised by {method}, which needs {lacks}", PLAIN_INSTEAD)
    elif missing := _missing(found):
        raise ModelError(
            f"{ref} is quantised by {method}, and what loads that is not installed: {missing}",
            f"pip install {found.packages}; or {PLAIN_INSTEAD}",
        )


_VARIANTS: dict[str, tuple[str, str]] = {
    "gptq": ("checkpoint_format", "gptq gptq_v2"),
    "awq": ("version", "gemm"),
    "auto-round": (
        "packing_format",
        "auto_round:auto_gptq auto_round auto_round:gptqmodel auto_round:auto_awq",
    ),
    "modelopt": ("quant_algo", "fp8 nvfp4 w4a16_nvfp4 nvfp4_w4a16 mixed_precision"),
    "compressed-tensors": (
        "format",
        "dense int-quantized float-quantized naive-quantized pack-quantized mixed-precision "
        "nvfp4-pack-quantized mxfp4-pack-quantized mxfp8-quantized",
    ),
}
"""Formats of which esa can unpack some variants -> the setting that names one, and those."""


def _check_variant(method: str, settings: Mapping[str, Any], ref: str) -> None:
    """Raises ModelError when the weights are in a variant of a format that esa cannot unpack."""
    name, known = _VARIANTS.get(method, ("", ""))
    for one in (settings, *(settings.get("config_groups") or {}).values()):
        variant = str(one.get(name) or "").lower()
        if variant and variant not in known.split():
            raise ModelError(
                f"{ref} is quantised by {method} with {name} '{variant}', which esa cannot unpack",
                PLAIN_INSTEAD,
            )
    if settings.get("transform_config"):
        raise ModelError(
            f"{ref} is quantised by {method} with transforms of activations (transform_config), "
            "which esa does not compute",
            PLAIN_INSTEAD,
        )


def _device_lacks(wanted: PackedFormat, place: str) -> str:
    """What a device must be and is not; "": it is."""
    kind = "cuda" if place == "balanced" else place.partition(":")[0]
    if kind not in wanted.devices:
        return f"a device of the kind {' or '.join(wanted.devices)}, not {kind}"
    if kind == "cuda" and wanted.capability > (0, 0):
        import torch

        has = torch.cuda.get_device_capability(None if place == "balanced" else place)
        if has < wanted.capability:
            least, own = (".".join(map(str, one)) for one in (wanted.capability, has))
            return f"a CUDA GPU of compute capability {least} or more, and this one has {own}"
    return ""


def _missing(wanted: PackedFormat) -> str:
    """The packages that are not installed, by the names of their modules."""
    return ", ".join(one for one in wanted.modules if not _installed(one))


def _installed(module: str) -> bool:
    if module == "kernels":  # transformers takes some versions of it only
        from transformers.utils.import_utils import is_kernels_available

        return bool(is_kernels_available())
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


def kept_bytes(found: PackedFormat, config: Mapping[str, Any]) -> float:
    """Bytes of a weight that stays quantised, with its share of the scales; about, as this depends
    on the size of groups."""
    settings = settings_in(config)
    said = settings.get("bits") or settings.get("nbits")
    if not isinstance(said, int):
        four = settings.get("load_in_4bit") or "int4" in str(settings.get("quant_type")).lower()
        said = 4 if four else 8
    return (found.bits or said) / 8 + 0.05

"""Loads a model and its tokenizer from a local folder into memory, after checking that the weights
fit. Weights are read from safetensors files only, and a model's own code is never run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError, UsageError, get_first_line
from esa_cli.models.files import checkpoint_files
from esa_cli.models.files.families import check_esa_supports_config
from esa_cli.models.files.model_reference import ModelRef, parse_reference
from esa_cli.models.files.prepared_models import fetch_model_folder
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.models.loading import quantization
from esa_cli.models.loading.quantization import QUANTIZATIONS
from esa_cli.models.tokenization.tokenizer import load_tokenizer
from esa_cli.storage import refuse_unknown_cache_name
from esa_cli.system.machine import format_size, is_out_of_memory_error, measure_available_memory
from esa_cli.system.progress import StageProgress, ignore_stage_progress

_SMALLER = "use a smaller model, close other programs, or try --dtype bfloat16 or int8"
DTYPES = ("auto", "float32", "bfloat16", "float16", *QUANTIZATIONS)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A language model in memory, with its tokenizer."""

    text_model: Any  # finds and reads passages, in eval mode
    tokenizer: Any
    ref: str  # the model reference
    folder: Path  # of the model's files
    dtype: Any  # the torch.dtype of the weights
    device: Any  # the torch.device of the weights
    cache: str = "auto"  # where KV caches are stored, one of `storage.CACHES`

    @property
    def model(self) -> Any:
        """The transformers model, which generates text and runs attention methods."""
        return self.text_model


def load(
    ref: str | ModelRef, *, device: str = "auto", dtype: str = "auto",
    progress: StageProgress | None = None, tokenizer: Any = None, cache: str = "auto",
) -> LoadedModel:  # fmt: skip
    """Loads a model into memory, after fetching and converting the model's files if necessary.

    Args:
        device: "auto" (the GPU if there is one, else the CPU), "cpu", "cuda", "cuda:1" or "mps".
        dtype: "auto" (see `choose_torch_dtype`), "float32", "bfloat16" or "float16"; or a name in
            `QUANTIZATIONS`, by which the layers' matrices are quantised.
        tokenizer: the result of `load_tokenizer`, if the tokenizer is loaded already.
        cache: one of `storage.CACHES`.

    Raises:
        UsageError: the dtype or device is unknown, or $ESA_MEMORY_LIMIT is not a size.
        ModelError: the model is missing, damaged, unreachable or not supported.
        ResourceError: there is not enough memory or disk space."""
    refuse_unknown_cache_name(cache)
    report, ref = progress or ignore_stage_progress, parse_reference(ref)
    folder = fetch_model_folder(ref, progress=progress)
    config = checkpoint_files.read_language_model_settings(folder)
    checkpoint_files.check_tokenizer_files_exist(folder)
    checkpoint_files.list_stored_weights(folder)  # damage is found before the slow imports
    report("import", 0, None)
    with quiet_transformers():  # all together, so that later ones are quick
        from transformers import AutoModelForCausalLM  # noqa: F401
    place = choose_torch_device(device)
    chosen, packing = choose_torch_dtype(dtype, place), dtype if dtype in QUANTIZATIONS else ""
    quantization.check_quantised_files_loadable(config, place, ref.name)
    method = quantization.read_quantization_method(config)
    if packing and method:
        message = f"{ref.name} is already quantised by {method}, so --dtype cannot be {packing}"
        raise UsageError(message, "omit --dtype, or choose the model's unquantised weights")
    kept = quantization.weights_stay_quantised(config, place)
    size, matrix = chosen.itemsize, quantization.get_bytes_per_weight(packing, chosen.itemsize)
    needed_bytes = checkpoint_files.compute_weight_bytes(folder, size, matrix, kept)
    check_weights_fit_memory(needed_bytes, place, ref)
    report("load", 0, None)
    tokenizer = tokenizer or load_tokenizer(folder)
    with convert_loading_errors(ref, config):
        model = load_pretrained(folder, place, chosen, quantise_as=packing, keep_quantised=kept)
    model = model.eval()
    if not (packing or kept):
        _check_weights_are_finite(model, ref)
    if not packing:
        checkpoint_files.cache_model_metadata("config", folder, model.config.to_dict)
    weight = next(model.parameters())
    return LoadedModel(
        text_model=model, tokenizer=tokenizer, ref=ref.text, folder=folder, dtype=weight.dtype,
        device=weight.device, cache=cache,
    )  # fmt: skip


@contextmanager
def convert_loading_errors(ref: ModelRef, config_settings: dict[str, Any]) -> Iterator[None]:
    """Silences transformers in the block, and turns errors into ModelError or ResourceError."""
    try:
        with quiet_transformers():
            yield
    except EsaError:
        raise
    except Exception as error:
        if is_out_of_memory_error(error) or "memory" in str(error).lower():
            raise ResourceError(f"not enough memory to load {ref.name}", _SMALLER) from error
        method = quantization.read_quantization_method(config_settings)
        kind = f"quantised by {method}" if method else f"of type '{config_settings['model_type']}'"
        raise ModelError(
            f"{ref.name}, which is {kind}, cannot be loaded here: {get_first_line(error)[:300]}",
            "fetch the model again, upgrade transformers, use unquantised weights, or choose "
            "another model (llama, qwen3, mistral, ...); esa never runs a model's own code",
        ) from error


def load_pretrained(
    folder: Path, device: str, dtype: Any, *, quantise_as: str, keep_quantised: bool
) -> Any:
    """Loads the model in a folder onto a torch device by transformers' `from_pretrained`, quantised
    as a name in `QUANTIZATIONS` says, or "" for no change. Stored quantised weights are dequantised
    unless `keep_quantised`. Raises ModelError: weights are missing, and errors of transformers."""
    from transformers import AutoModelForCausalLM

    options = checkpoint_files.make_from_pretrained_arguments(folder)
    if device != "cpu" or quantise_as:
        options["device_map"] = device
    if quantise_as:
        options["quantization_config"] = quantization.make_quantization_config(quantise_as, dtype)
    stored: dict[str, Any] = getattr(options["config"], "quantization_config", None) or {}
    dequantised = bool(stored) and not keep_quantised
    if dequantised:
        options["config"].quantization_config = {**stored, "dequantize": True}
    automatic: Any = AutoModelForCausalLM
    model, info = automatic.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, use_safetensors=True,
        trust_remote_code=False, local_files_only=True, **options,
    )  # fmt: skip
    if missing := sorted(info["missing_keys"]):
        message = f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}"
        raise ModelError(message, "fetch the model again, or install another transformers version")
    if dequantised:  # transformers leaves plain weights beside quantised ones as they are stored
        wide = {*(model._keep_in_fp32_modules_strict or ())}
        for name, weight in model.named_parameters():
            if weight.is_floating_point() and not wide.intersection(name.split(".")):
                weight.data = weight.data.to(dtype)
    quantization.rearrange_bitsandbytes_weights(model)
    return model


def _check_weights_are_finite(model: Any, ref: ModelRef) -> None:
    import torch

    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.sum(dtype=torch.float32).isfinite():
            message = f"the weights of {ref.name} must be finite, got NaN or infinity in {name}"
            raise ModelError(message, "fetch the model again, or load it with another --dtype")


def check_weights_fit_memory(weight_bytes: int, device: str, ref: ModelRef) -> None:
    """Raises ResourceError if a model's weights need more bytes than a torch device has free."""
    free = measure_available_memory(device)
    if weight_bytes > free:
        needs = f"needs {format_size(weight_bytes)} for its weights"
        message = f"{ref.name} {needs}, and {device} has {format_size(free)} available"
        raise ResourceError(message, _SMALLER)


def check_esa_supports_model(folder: Path) -> None:
    """Raises ModelError, before a long loading, if ESA cannot be attached to a folder's model."""
    try:
        config = checkpoint_files.read_language_model_config(folder)
    except ModelError:  # which `load` reports
        return
    check_esa_supports_config(config)


# -- Device and type


def choose_torch_device(device_option: str) -> str:
    """Returns the torch device for a value of --device. Raises UsageError: there is none."""
    import torch

    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    counts["cpu"] = 1
    if device_option == "auto":
        return next(kind for kind in counts if counts[kind])
    kind, _, index = device_option.partition(":")
    if kind not in counts or not (index or "0").isdecimal():
        raise UsageError(f"--device must be auto, cpu, cuda, cuda:N or mps, got '{device_option}'")
    if int(index or 0) >= counts[kind]:
        message = f"torch finds no device '{device_option}' on this machine"
        raise UsageError(message, "try --device cpu")
    return device_option


def choose_torch_dtype(dtype_option: str, device: str) -> Any:
    """Returns the torch.dtype for a value of --dtype and a torch device: for "auto" and quantised
    weights bfloat16 if the hardware supports it, else float16 on a GPU and float32 on a CPU."""
    import torch

    if dtype_option not in DTYPES:
        raise UsageError(f"--dtype must be one of {', '.join(DTYPES)}, got '{dtype_option}'")
    if dtype_option in QUANTIZATIONS:
        quantization.check_quantization_available(dtype_option, device)
    elif dtype_option != "auto":
        return getattr(torch, dtype_option)
    if device == "cpu":
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
        older: Any = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
        fast = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") or older()
        return torch.bfloat16 if fast else torch.float32
    if device == "mps":
        return torch.float16
    return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16

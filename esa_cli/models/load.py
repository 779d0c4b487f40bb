"""Loads a model and its tokenizer from a local folder into memory, ready to answer.

Weights come from safetensors only, and code that a model brings along is never run. It does not
know how much memory a question will need beyond the weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError, UsageError
from esa_cli.models.checkpoint_files import check_tokenizer, count_parameters, read_config
from esa_cli.models.model_reference import ModelRef, as_reference
from esa_cli.models.quiet_transformers import gc_paused, quiet_transformers
from esa_cli.models.resolve import resolve
from esa_cli.system.machine import available_memory, size_text
from esa_cli.system.progress import Progress, silent

DTYPES = ("auto", "float32", "bfloat16", "float16")
_SMALLER = "Use a smaller model, close other programs, or try --dtype bfloat16."


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory: `model` and `tokenizer` are transformers' own objects, in eval mode.

    `dtype` is a torch.dtype; `device` is the torch.device of the first weights (with the device
    "balanced", later layers may be on others).
    """

    model: Any
    tokenizer: Any
    ref: str
    folder: Path
    dtype: Any
    device: Any


def load(
    ref: str | ModelRef,
    *,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    offline: bool = False,
) -> LoadedModel:
    """Load a model, fetching and converting it first where that is needed.

    Args:
        ref: a model reference.
        device: "auto" (the GPU if there is one, else the processor), "cpu", "cuda", "cuda:1",
            "mps", or "balanced" to spread the layers over all GPUs.
        dtype: "auto" (see `choose_dtype`), "float32", "bfloat16" or "float16".
        progress: called with each stage, first before the slow imports; see `Progress`.
        offline: use only what is on this machine.

    Raises:
        UsageError: no such dtype or device, or $ESA_MEMORY_LIMIT is not a size.
        ModelError: the model is missing, broken, unreachable or not supported.
        ResourceError: not enough memory or disk.
    """
    report = progress or silent
    ref = as_reference(ref)
    folder = resolve(ref, progress=progress, offline=offline)
    config = read_config(folder)
    check_tokenizer(folder)
    parameters = count_parameters(folder)
    _import(report)
    place = choose_device(device)
    chosen = choose_dtype(dtype, place)
    _check_memory(parameters * chosen.itemsize, place, ref)
    report("load", 0, None)
    from esa_cli.models.inspection import offloaded

    model, tokenizer = _into_memory(ref, folder, config, place, chosen)
    if offloaded(model):
        raise ResourceError(
            f"{ref.name} does not fit: some of its weights found no room on {place}.", _SMALLER
        )
    weight = next(model.parameters())
    return LoadedModel(model, tokenizer, ref.text, folder, weight.dtype, weight.device)


def _import(report: Progress) -> None:
    """The slow imports, all together and with the collector off, so that later ones are quick."""
    report("import", 0, None)
    with gc_paused():
        import torch  # noqa: F401
        from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401


def _into_memory(
    ref: ModelRef, folder: Path, config: dict[str, Any], place: str, dtype: Any
) -> tuple[Any, Any]:
    """The model and its tokenizer, with the errors of transformers turned into esa's."""
    import torch

    try:
        with quiet_transformers(), gc_paused():
            tokenizer = _load_tokenizer(folder)
            model = _load_model(folder, place, dtype)
    except EsaError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ResourceError(f"Not enough memory to load {ref.name}.", _SMALLER) from error
    except Exception as error:
        raise _load_error(ref, config, error) from error
    return model, tokenizer


def _load_model(folder: Path, place: str, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {} if place == "cpu" else {"device_map": place}
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        **options,
    )
    return model.eval()


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except Exception as error:
        raise ModelError(
            f"The tokenizer in {folder} cannot be loaded: {_first_line(error)}",
            "Fetch the model again, or check that its tokenizer needs no code of its own.",
        ) from error


def choose_device(device: str) -> str:
    """The torch device string, or "balanced", for what the user asked. Raises UsageError."""
    import torch

    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if device == "balanced":
        kind, index = "cuda", None
    else:
        try:
            parsed = torch.device(device)
        except RuntimeError as error:
            raise UsageError(
                f"There is no device '{device}'.", "Choose auto, cpu, cuda, mps or balanced."
            ) from error
        kind, index = parsed.type, parsed.index
    if kind == "cuda" and (index or 0) >= torch.cuda.device_count():
        raise UsageError(f"This machine has no device '{device}' that torch can use.", "Try cpu.")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UsageError("This machine has no device 'mps' that torch can use.", "Try cpu.")
    if kind not in ("cpu", "cuda", "mps"):
        raise UsageError(f"esa does not run on '{device}'.", "Choose auto, cpu, cuda or mps.")
    return device


def choose_dtype(dtype: str, device: str) -> Any:
    """The torch.dtype for what the user asked, on a device `choose_device` returned.

    "auto" is bfloat16 where the hardware computes in it; else float16 on a GPU and float32 on a
    processor.
    """
    import torch

    if dtype not in DTYPES:
        raise UsageError(f"There is no dtype '{dtype}'.", f"Choose one of {', '.join(DTYPES)}.")
    if dtype != "auto":
        return getattr(torch, dtype)
    if device == "cpu":
        return torch.bfloat16 if _processor_has_bfloat16() else torch.float32
    if device == "mps":
        return torch.float16
    return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16


def _processor_has_bfloat16() -> bool:
    import torch

    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16")):
        return True
    asked = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(asked and asked())


def _check_memory(need: int, place: str, ref: ModelRef) -> None:
    """Raises ResourceError if the weights alone, in bytes, are more than may be used."""
    free = available_memory(place)
    if need > free:
        raise ResourceError(
            f"{ref.name} needs {size_text(need)} for its weights, and {place} has "
            f"{size_text(free)} available.",
            _SMALLER,
        )


def _load_error(ref: ModelRef, config: dict[str, Any], error: Exception) -> EsaError:
    kind = config["model_type"]
    text = str(error)
    if "memory" in text.lower() and isinstance(error, RuntimeError):
        return ResourceError(f"Not enough memory to load {ref.name}.", _SMALLER)
    if "trust_remote_code" in text or "auto_map" in text:
        return ModelError(
            f"{ref.name} brings its own Python code, and esa does not run code from a model.",
            "Choose a model that transformers supports by itself.",
        )
    if isinstance(error, (ValueError, KeyError)) and str(kind) in text:
        return ModelError(
            f"{ref.name} is of the kind '{kind}', which this transformers cannot load as a "
            "language model.",
            "Upgrade transformers, or choose another model (llama, qwen3, mistral, ...).",
        )
    return ModelError(
        f"{ref.name} cannot be loaded: {_first_line(error)}", "Remove it and fetch it again."
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]

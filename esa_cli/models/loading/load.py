"""Loading a model and its tokenizer from a local folder into memory, ready to answer.

Weights come from safetensors only, and code that a model brings along is never run. The memory
check covers the weights; `qa.planning` covers what a question needs beyond them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from esa_cli.errors import EsaError, ModelError, ResourceError, UsageError
from esa_cli.models.files.checkpoint_files import (
    check_tokenizer,
    one_line,
    read_config,
    stored_weights,
)
from esa_cli.models.files.families import check_supported, check_type
from esa_cli.models.files.model_reference import ModelRef, as_reference
from esa_cli.models.files.quiet_transformers import quiet_transformers
from esa_cli.models.files.settings_cache import cache_config, cached_config
from esa_cli.models.loading import quantization
from esa_cli.models.loading.resolve import resolve
from esa_cli.models.loading.text_part import (
    has_text_part,
    language_config,
    language_settings,
    reading_options,
)
from esa_cli.models.tokenization.tokenizer import load_plain_tokenizer, load_tokenizer
from esa_cli.storage import check_cache
from esa_cli.system.machine import available_memory, memory_ran_out, size_text
from esa_cli.system.progress import StageProgress, silent

SMALLER = "use a smaller model, close other programs, or try --dtype bfloat16 or int8"
DTYPES = ("auto", "float32", "bfloat16", "float16", *quantization.QUANTIZATIONS)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A model's tokenizer and where the model is from.

    Args:
        tokenizer: of transformers, or a `PlainTokenizer`.
        ref: the model's reference. folder: its local files.
        dtype: a torch.dtype. device: a torch.device.
        cache: where keys and values will be; one of `storage.CACHES`.
    """

    tokenizer: Any
    ref: str
    folder: Path
    dtype: Any
    device: Any
    cache: str = "auto"


@dataclass(frozen=True, kw_only=True)
class LoadedModel(_Source):
    """A model of transformers in memory, in eval mode."""

    model: Any

    @property
    def text_model(self) -> Any:
        """The model that finds and reads passages; see `DeferredModel`."""
        return self.model


def load(
    ref: str | ModelRef,
    *,
    device: str = "auto",
    dtype: str = "auto",
    progress: StageProgress | None = None,
    tokenizer: Any = None,
    cache: str = "auto",
) -> LoadedModel:
    """Loads a model, fetched and converted first where that is needed.

    Args:
        device: "auto" (the GPU if there is one, else the CPU), "cpu", "cuda", "cuda:1" or "mps".
        dtype: "auto" (see `choose_dtype`), "float32", "bfloat16" or "float16"; or one of
            `QUANTIZATIONS`, to which the layers' matrices are quantised.
        progress: called with each stage, first before the slow imports; see `StageProgress`.
        tokenizer: of `load_tokenizer`, if it was loaded before.
        cache: where keys and values of documents will be kept; one of `storage.CACHES`.

    Raises:
        UsageError: no such dtype or device, or $ESA_MEMORY_LIMIT is not a size.
        ModelError: the model is missing, broken, unreachable or not supported.
        ResourceError: not enough memory or disk.
    """
    check_cache(cache)
    report, ref = progress or silent, as_reference(ref)
    folder = resolve(ref, progress=progress)
    config = language_settings(folder)
    check_tokenizer(folder)
    stored_weights(folder)  # says what is wrong with the files before the slow imports
    report("import", 0, None)
    with quiet_transformers():  # all together, so that later ones are quick
        from transformers import AutoModelForCausalLM  # noqa: F401
    place = choose_device(device)
    chosen, packing = choose_dtype(dtype, place), quantization.packing_of(dtype)
    quantization.check_loadable_format(config, place, ref.name)
    method = quantization.quantization_in(config)
    if packing and method:
        raise UsageError(
            f"{ref.name} is quantised by {method} already and cannot be made {packing}",
            "leave --dtype out, or use the model's plain weights",
        )
    kept = quantization.stays_quantised(config, place)
    check_memory(quantization.bytes_needed(folder, chosen.itemsize, packing, kept), place, ref)
    report("load", 0, None)
    tokenizer = tokenizer or load_tokenizer(folder)
    read = partial(read_pretrained, folder, place, chosen, packing=packing, kept=kept)
    model = _into_memory(ref, config, read)
    if not (packing or kept):
        check_finite(model, ref)
    if not packing:
        cache_config(folder, model.config)
    weight = next(model.parameters())
    return LoadedModel(
        model=model, tokenizer=tokenizer, ref=ref.text, folder=folder, dtype=weight.dtype,
        device=weight.device, cache=cache,
    )  # fmt: skip


def read_pretrained(folder: Path, place: str, dtype: Any, *, packing: str, kept: bool) -> Any:
    """The model in a folder, on a device of `choose_device`, in a torch type. `packing` is of
    `QUANTIZATIONS` or ""; `kept`: the weights of quantised files stay as they are. Raises
    ModelError: the files lack some of the weights. Any other error: of transformers."""
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {} if place == "cpu" and not packing else {"device_map": place}
    if packing:
        options["quantization_config"] = quantization.QUANTIZATIONS[packing].config(dtype)
    options |= reading_options(folder) | {"dtype": dtype, "output_loading_info": True}
    dequantised = quantization.settings_in(read_config(folder)) and not kept
    if dequantised:
        config: Any = options.get("config") or language_config(folder)
        config.quantization_config = {**config.quantization_config, "dequantize": True}
        options["config"] = config
    automatic: Any = AutoModelForCausalLM
    model, info = automatic.from_pretrained(
        folder, use_safetensors=True, trust_remote_code=False, local_files_only=True, **options
    )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(
            f"{folder} lacks {len(missing)} of the model's weights, such as {missing[0]}",
            "fetch the model again; weights that were quantised may need another version of "
            "transformers",
        )
    if dequantised:
        _cast(model, dtype)
    quantization.settle(model)
    return model


def _cast(model: Any, dtype: Any) -> None:
    """Gives the weights that quantised files store plainly the type that is asked for, but for
    those that the model computes in float32; transformers leaves all as they are stored."""
    import torch

    wide = {*(model._keep_in_fp32_modules_strict or ())}
    if dtype == torch.float16:
        wide |= {*(model._keep_in_fp32_modules or ())}
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not wide.intersection(name.split(".")):
            weight.data = weight.data.to(dtype)


def check_finite(model: Any, ref: ModelRef) -> None:
    """Raises ModelError where a weight is NaN or infinite: all that is computed would be, too."""
    import torch

    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.sum(dtype=torch.float32).isfinite():
            raise ModelError(
                f"the weights of {ref.name} must be finite, got NaN or infinity in {name}",
                "fetch the model again; or they are beyond the numbers of this --dtype",
            )


def hindrance(config: Any) -> str:
    """Why ESA's methods cannot run in a model of this configuration; "": they can."""
    try:
        check_supported(config)
    except ModelError as error:
        return error.message
    return ""


def check_loadable(folder: Path) -> None:
    """Raises ModelError for a model that ESA cannot be attached to, before minutes of loading. A
    folder that transformers cannot read passes: `load` says what is wrong with it."""
    try:
        config = language_config(folder)
    except ModelError:
        return
    check_supported(config)


def runs_methods(folder: Path, whole: bool = True) -> bool:
    """Whether ESA's methods can run in the model of a folder: by its whole configuration, which
    transformers reads, or by its type alone, as that import takes seconds."""
    try:
        check_type(language_settings(folder).get("model_type"))
        if whole:
            check_loadable(folder)
    except ModelError:
        return False
    return True


def _into_memory(ref: ModelRef, config: dict[str, Any], read: Callable[[], Any]) -> Any:
    """The model that `read` loads, with the errors of transformers turned into esa's."""
    try:
        with quiet_transformers():
            model: Any = read()
    except EsaError:
        raise
    except Exception as error:
        if memory_ran_out(error) or "memory" in str(error).lower():
            raise ResourceError(f"not enough memory to load {ref.name}", SMALLER) from error
        method = quantization.quantization_in(config)
        kind = f"quantised by {method}" if method else f"of type '{config['model_type']}'"
        raise ModelError(
            f"{ref.name}, which is {kind}, cannot be loaded here: {one_line(error)}",
            "fetch it again, upgrade transformers, use plain weights, or choose another model "
            "(llama, qwen3, mistral, ...); esa runs no code that a model brings along",
        ) from error
    return model.eval()


def choose_device(device: str) -> str:
    """The torch device string for the option's value. Raises UsageError."""
    import torch

    has_mps = torch.backends.mps.is_available()
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    try:
        parsed = torch.device(device)
    except RuntimeError:
        parsed = torch.device("meta")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(has_mps)}
    if parsed.type not in there:
        raise UsageError(f"device must be auto, cpu, cuda, cuda:N or mps, got '{device}'")
    if (parsed.index or 0) >= there[parsed.type]:
        raise UsageError(f"this machine has no device '{device}' that torch can use", "try cpu")
    return device


def choose_dtype(dtype: str, device: str) -> Any:
    """The torch.dtype for the option's value, on a device `choose_device` returned.

    "auto" is bfloat16 where the hardware computes in it; else float16 on a GPU and float32 on a
    CPU. With quantised weights it is the type that is computed in, chosen likewise.
    """
    import torch

    if dtype not in DTYPES:
        raise UsageError(f"dtype must be one of {', '.join(DTYPES)}, got '{dtype}'")
    if dtype in quantization.QUANTIZATIONS:
        quantization.check_quantization(dtype, device)
    elif dtype != "auto":
        return getattr(torch, dtype)
    if device == "cpu":
        return torch.bfloat16 if _cpu_has_bfloat16() else torch.float32
    if device == "mps":
        return torch.float16
    return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16


def _cpu_has_bfloat16() -> bool:
    import torch

    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    older: Any = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16")) or bool(older())


def check_memory(need: int, place: str, ref: ModelRef) -> None:
    """Raises ResourceError if the weights alone, in bytes, are more than may be used."""
    free = available_memory(place)
    if need > free:
        raise ResourceError(
            f"{ref.name} needs {size_text(need)} for its weights, and {place} has "
            f"{size_text(free)} available",
            SMALLER,
        )


@dataclass(frozen=True, kw_only=True)
class DeferredModel(_Source):
    """As `LoadedModel`; transformers loads `model` when it is first needed.

    Finding and reading passages need weights and a tokenizer alone: `text_model` is a
    `PlainDecoder`, and `tokenizer`, where that can be, a `PlainTokenizer`. What generates text or
    runs a method needs transformers' model, whose import and loading take seconds.
    """

    text_model: Any

    @cached_property
    def model(self) -> Any:
        """transformers' model with the same weights, loaded now. Raises ModelError,
        ResourceError."""
        import torch

        from esa_cli.models.text_passes.text_forward import pass_calls_on

        # The caller may be generating with a seed, and in a mode whose tensors are good for less.
        with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
            config = read_config(self.folder)
            model = _into_memory(as_reference(self.ref), config, self._read)
        pass_calls_on(self.text_model, model)
        return model

    def _read(self) -> Any:
        """The model of transformers whose parameters are the tensors of `text_model`."""
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        generation: Any = None
        if (self.folder / "generation_config.json").is_file():
            untyped: Any = transformers.GenerationConfig
            generation = untyped.from_pretrained(self.folder)
        config = transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True)
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        return model_class.from_pretrained(
            None, config=config, state_dict=dict(self.text_model.named_parameters()),
            dtype=self.dtype, local_files_only=True, generation_config=generation,
        )  # fmt: skip


def load_deferred(
    ref: str | ModelRef,
    *,
    device: str = "auto",
    dtype: str = "auto",
    progress: StageProgress | None = None,
    tokenizer: Any = None,
    cache: str = "auto",
) -> DeferredModel | None:
    """A model whose loading by transformers is deferred; None: transformers has not loaded it on
    this machine before, it is a part of a checkpoint or quantised, or `FusedForward` cannot
    compute it. Arguments and errors: as `load`."""
    report, ref = progress or silent, as_reference(ref)
    folder = resolve(ref, progress=progress)
    config = read_config(folder)
    check_tokenizer(folder)
    report("import", 0, None)
    quantised = dtype in quantization.QUANTIZATIONS or quantization.quantization_in(config)
    if quantised or has_text_part(config):
        return None
    if (place := choose_device(device)) != "cpu" or (settings := cached_config(folder)) is None:
        return None
    from esa_cli.models.text_passes.small_decoder import PlainDecoder, can_be_plain

    if not can_be_plain(settings):
        return None
    chosen = choose_dtype(dtype, place)
    check_memory(quantization.bytes_needed(folder, chosen.itemsize), place, ref)
    report("load", 0, None)
    if (model := PlainDecoder.load(folder, settings, chosen)) is None:
        return None
    tokenizer = tokenizer or load_plain_tokenizer(folder) or load_tokenizer(folder)
    return DeferredModel(
        text_model=model, tokenizer=tokenizer, ref=ref.text, folder=folder, dtype=model.dtype,
        device=model.device, cache=cache,
    )  # fmt: skip

"""A model of which the weights are in memory, and which transformers loads when it is needed.

Finding and reading passages need weights and a tokenizer. What generates text or runs a method of
the paper needs transformers' model, whose import and loading take seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from esa_cli.models.files.checkpoint_files import check_tokenizer, read_config
from esa_cli.models.files.config_cache import cached_config
from esa_cli.models.files.model_reference import ModelRef, as_reference
from esa_cli.models.files.resolve import resolve
from esa_cli.models.loading.load import (
    LoadedModel,
    ModelInMemory,
    check_memory,
    choose_device,
    choose_dtype,
    into_memory,
    load,
)
from esa_cli.models.loading.quantization import QUANTIZATIONS, bytes_needed, quantization_in
from esa_cli.models.loading.text_part import has_text_part
from esa_cli.models.tokenization.tokenizer_loading import load_plain_tokenizer, load_tokenizer
from esa_cli.system.progress import StageProgress, silent


@dataclass(frozen=True, kw_only=True)
class DeferredModel(ModelInMemory):
    """As `LoadedModel`; `text_model` is a `PlainDecoder`, and `tokenizer`, where that can be, a
    `PlainTokenizer`."""

    text_model: Any

    @cached_property
    def model(self) -> Any:
        """transformers' model with the same weights, loaded now. Raises ModelError,
        ResourceError."""
        import torch

        from esa_cli.models.text_passes.layer_calls import pass_calls_on

        # The caller may be generating with a seed, and in a mode whose tensors are good for less.
        with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
            config = read_config(self.folder)
            model = into_memory(as_reference(self.ref), config, "cpu", self._read)
        pass_calls_on(self.text_model, model)
        return model

    def _read(self) -> Any:
        """The model of transformers whose parameters are the tensors of `text_model`."""
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

        options: dict[str, Any] = {"dtype": self.dtype, "local_files_only": True}
        if (self.folder / "generation_config.json").is_file():
            generation: Any = transformers.GenerationConfig
            options["generation_config"] = generation.from_pretrained(self.folder)
        config = transformers.AutoConfig.from_pretrained(self.folder, local_files_only=True)
        model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
        return model_class.from_pretrained(
            None,
            config=config,
            state_dict=dict(self.text_model.named_parameters()),
            **options,
        )


def load_for_text(ref: str | ModelRef, **options: Any) -> LoadedModel | DeferredModel:
    """Loads a model to find and read passages with: deferred, where that can be.

    Args:
        options: those of `load`, whose errors it raises.
    """
    return load_deferred(ref, **options) or load(ref, **options)


def load_deferred(
    ref: str | ModelRef,
    *,
    device: str = "auto",
    dtype: str = "auto",
    progress: StageProgress | None = None,
    offline: bool = False,
    tokenizer: Any = None,
    cache: str = "auto",
) -> DeferredModel | None:
    """A model whose loading by transformers is deferred; None: transformers has not loaded it on
    this machine before, it is a part of a checkpoint or quantised, or `FusedForward` cannot
    compute it. Arguments and errors: as `load`."""
    report, ref = progress or silent, as_reference(ref)
    folder = resolve(ref, progress=progress, offline=offline)
    config = read_config(folder)
    check_tokenizer(folder)
    report("import", 0, None)
    if dtype in QUANTIZATIONS or has_text_part(config) or quantization_in(config):
        return None
    if (place := choose_device(device)) != "cpu" or (settings := cached_config(folder)) is None:
        return None
    from esa_cli.models.text_passes.plain_decoder import PlainDecoder, is_plain

    if not is_plain(settings):
        return None
    chosen = choose_dtype(dtype, place)
    check_memory(bytes_needed(folder, chosen.itemsize), place, ref)
    report("load", 0, None)
    if (model := PlainDecoder.load(folder, settings, chosen)) is None:
        return None
    tokenizer = tokenizer or load_plain_tokenizer(folder) or load_tokenizer(folder)
    return DeferredModel(
        text_model=model, tokenizer=tokenizer, ref=ref.text, folder=folder, dtype=model.dtype,
        device=model.device, cache=cache,
    )  # fmt: skip

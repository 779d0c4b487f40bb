"""Loads small language models without transformers, whose import takes longer than an answer.

A `PlainDecoder` computes a model on the CPU, which is enough to find and read passages.
transformers makes a model of the same weights only when an attention method runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from esa_cli.attention.rope import FixedFrequencyRotaryModule
from esa_cli.models.files.checkpoint_files import (
    find_quantization_config,
    has_language_model_part,
    list_stored_weights,
    list_weight_files,
    load_cached_metadata,
    read_config_json,
    read_language_model_config,
)
from esa_cli.models.files.model_reference import ModelRef, parse_reference
from esa_cli.models.files.prepared_models import find_model_folder
from esa_cli.models.loading.load import (
    LoadedModel,
    check_weights_fit_memory,
    convert_loading_errors,
)
from esa_cli.models.text_passes.text_forward import (
    MOST_BYTES,
    can_fuse_layers,
    get_head_dimension,
    share_layer_hooks,
)
from esa_cli.models.tokenization.tokenizer import load_fastest_tokenizer
from esa_cli.system.progress import StageProgress, ignore_stage_progress

AT_ONCE = 32
"""The number of tensors read before a file is opened again, since parts read stay in memory."""


@dataclass(frozen=True, kw_only=True)
class LazyTransformersModel(LoadedModel):
    """A `PlainDecoder` with its tokenizer."""

    @cached_property
    def model(self) -> Any:
        """The transformers model of these weights, made when first used. Raises ModelError."""
        config = read_config_json(self.folder)
        errors = convert_loading_errors(parse_reference(self.ref), config)
        # The caller may be generating with a seed, and in a mode whose tensors are good for less.
        with torch.inference_mode(False), torch.random.fork_rng(devices=[]), errors:
            from transformers import GenerationConfig
            from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

            untyped: Any = GenerationConfig
            file = self.folder / "generation_config.json"
            generation = untyped.from_pretrained(self.folder) if file.is_file() else None
            settings = read_language_model_config(self.folder)
            model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(settings)]
            model: Any = model_class.from_pretrained(
                None, config=settings, state_dict=dict(self.text_model.named_parameters()),
                dtype=self.dtype, local_files_only=True, generation_config=generation,
            )  # fmt: skip
        share_layer_hooks(self.text_model, model.eval())
        return model


def load_without_transformers(
    ref: str | ModelRef, dtype: torch.dtype, *, progress: StageProgress | None = None,
    tokenizer: Any = None, cache: str = "auto",
) -> LazyTransformersModel | None:  # fmt: skip
    """Loads a model onto the CPU without importing transformers. Returns None if transformers has
    never loaded the model on this machine, or if a `PlainDecoder` cannot compute the model. Raises
    ModelError: a file is damaged. ResourceError: there is not enough memory."""
    report, ref = progress or ignore_stage_progress, parse_reference(ref)
    report("import", 0, None)
    if (folder := find_model_folder(ref)) is None:
        return None
    config, cached = read_config_json(folder), load_cached_metadata("config", folder)
    whole = not (find_quantization_config(config) or has_language_model_part(config))
    if cached is None or not whole or not can_load_without_transformers(cached):
        return None
    weight_count = sum(math.prod(weight.shape) for weight in list_stored_weights(folder))
    check_weights_fit_memory(weight_count * dtype.itemsize, "cpu", ref)
    report("load", 0, None)
    if (model := PlainDecoder.load(folder, cached, dtype)) is None:
        return None
    return LazyTransformersModel(
        text_model=model, tokenizer=tokenizer or load_fastest_tokenizer(folder), ref=ref.text,
        folder=folder, dtype=dtype, device=model.device, cache=cache,
    )  # fmt: skip


class DecoderConfig(SimpleNamespace):
    """The settings in a model's config.json and transformers' defaults, as attributes."""

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def can_load_without_transformers(config_settings: Mapping[str, Any]) -> bool:
    rope = config_settings.get("rope_parameters") or {}
    return (
        can_fuse_layers(DecoderConfig(**config_settings))
        and config_settings.get("quantization_config") is None
        and set(config_settings.get("layer_types") or ["full_attention"]) == {"full_attention"}
        and set(rope) == {"rope_type", "rope_theta"}
        and rope["rope_type"] == "default"
    )


class PlainDecoder(nn.Module):
    """A small causal language model that does not need transformers, but names its modules and
    parameters as transformers does. Before `load`, the parameters have no data."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config, self.device, self.dtype = config, torch.device("cpu"), torch.float32
        size, words = config.hidden_size, config.vocab_size
        theta = config.rope_parameters["rope_theta"]
        head = get_head_dimension(config)
        numbers = torch.arange(0, head, 2, dtype=torch.float)
        self.model = nn.ModuleDict({
            # The class itself would draw numbers, by code of torch that takes a second to import.
            "embed_tokens": nn.Embedding.from_pretrained(  # type: ignore[no-untyped-call]
                torch.empty(words, size, device="meta")
            ),
            "layers": nn.ModuleList(map(_make_decoder_layer, [config] * config.num_hidden_layers)),
            "norm": nn.RMSNorm(size, config.rms_norm_eps, device="meta"),
            "rotary_emb": FixedFrequencyRotaryModule(1.0 / theta ** (numbers / head), 1.0),
        })  # fmt: skip
        self.lm_head = nn.Linear(size, words, bias=False, device="meta")
        self.requires_grad_(False)
        self._tie_embeddings()

    def _tie_embeddings(self) -> None:
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.base_model.embed_tokens.weight

    @classmethod
    def load(
        cls, model_folder: Path, config_settings: Mapping[str, Any], dtype: torch.dtype
    ) -> PlainDecoder | None:
        """Loads a decoder, or returns None if the weights are too large or do not match."""
        model = cls(DecoderConfig(**config_settings))
        numbers = sum(one.numel() for one in model.base_model.layers.parameters())
        if numbers * dtype.itemsize > MOST_BYTES:
            return None
        weights: dict[str, Tensor] = {}
        try:
            for path in list_weight_files(model_folder):
                weights |= _read_weights(path, dtype)
        except (OSError, SafetensorError):
            return None
        wanted = {name: one.shape for name, one in model.named_parameters()}
        if wanted != {name: one.shape for name, one in weights.items()}:
            return None
        model.load_state_dict(weights, strict=False, assign=True)
        model.dtype = dtype
        model._tie_embeddings()
        return model.eval()

    @property
    def base_model(self) -> Any:
        """The modules of the decoder without the output head, as in transformers."""
        return self.model


def _read_weights(safetensors_file: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    with safe_open(safetensors_file, "pt") as file:
        names = list(file.keys())
    for start in range(0, len(names), AT_ONCE):
        with safe_open(safetensors_file, "pt") as file:
            for name in names[start : start + AT_ONCE]:
                weights[name] = file.get_tensor(name).to(dtype)
    return weights


def _make_decoder_layer(config: Any) -> nn.Module:
    """Makes the modules of one decoder layer, with or without biases as in the model's family."""
    size, wide, head = config.hidden_size, config.intermediate_size, get_head_dimension(config)
    heads, groups = config.num_attention_heads * head, config.num_key_value_heads * head
    bias = config.model_type in ("llama", "qwen3") and config.attention_bias
    inner = bias or config.model_type == "qwen2"
    linear = partial(nn.Linear, device="meta")
    norm = partial(nn.RMSNorm, eps=config.rms_norm_eps, device="meta")
    attention: dict[str, nn.Module] = {
        "q_proj": linear(size, heads, inner),
        "k_proj": linear(size, groups, inner),
        "v_proj": linear(size, groups, inner),
        "o_proj": linear(heads, size, bias),
    }
    if config.model_type == "qwen3":
        attention |= {"q_norm": norm(head), "k_norm": norm(head)}
    sizes = {"gate_proj": (size, wide), "up_proj": (size, wide), "down_proj": (wide, size)}
    mlp = {name: linear(*both, bias=False) for name, both in sizes.items()}
    return nn.ModuleDict({
        "self_attn": nn.ModuleDict(attention),
        "mlp": nn.ModuleDict(mlp),
        "input_layernorm": norm(size),
        "post_attention_layernorm": norm(size),
    })  # fmt: skip

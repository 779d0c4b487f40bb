"""Attaches a method to a transformers model, and restores the model on `detach`.

No code is patched: an attention function and a mask function are registered as "esa"; the rotary
module is replaced by one that does not rotate; the configuration is replaced by a copy, since other
models may share the original; hooks watch the calls of the model's body. The attention function
finds the method by the attention module that calls the function, so several models can be attached
at once. docs/design.md explains the attachment under "The seam"."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from weakref import ReferenceType, WeakKeyDictionary, finalize, ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from esa_cli.attention.layer import SelectiveAttention
from esa_cli.attention.method import Method
from esa_cli.attention.rope import Rope
from esa_cli.attention.sliding_window import SlidingWindowAttention
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.attachment.kv_cache import CurrentForwardCall, EsaCache
from esa_cli.models.attachment.layer_traits import (
    LatentProjections,
    LayerTraits,
    list_attention_modules,
    make_layer_traits,
)
from esa_cli.models.files.families import check_config_supported, get_model_family, map_key_sources

NAME = "esa"


class IdentityRotaryEmbedding(nn.Module):
    """A rotary module that returns cosines of 1 and sines of 0, so that keys are cached unrotated.

    Args:
        cosine_count: the number of cosines for each token, or 1 to broadcast. as_complex: whether
            the model expects a complex tensor (1, n, width). replaced_module: the rotary module of
            the model, whose layer types are copied."""

    def __init__(self, cosine_count: int, as_complex: bool, replaced_module: nn.Module) -> None:
        super().__init__()
        self.layer_types = getattr(replaced_module, "layer_types", None)
        self._width, self._as_complex = cosine_count, as_complex

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Returns cosines and sines for n tokens, (1, n, width) each, or one complex tensor."""
        shape = (1, position_ids.shape[-1], self._width)
        cos, sin = x.new_ones(shape), x.new_zeros(shape)
        return torch.complex(cos.float(), sin.float()) if self._as_complex else (cos, sin)


def get_last_token_only_options(config: Any) -> dict[str, int]:
    """Returns the options of a forward call that let layers without keys of their own compute only
    the last token, or {} if the model family has no such option."""
    return {"logits_to_keep": 1} if get_model_family(config).skips_tokens else {}


def _replace_configs_by_copies(model: nn.Module) -> list[tuple[Any, Any]]:
    """Replaces the configurations of modules by copies; returns modules with their originals."""
    modules: Sequence[Any] = list(model.modules())
    originals = [
        (module, module.config)
        for module in modules
        if hasattr(getattr(module, "config", None), "_attn_implementation")
    ]
    copies = {id(config): copy.deepcopy(config) for _, config in originals}
    for module, config in originals:
        module.config = copies[id(config)]
    return originals


def _restore_model(
    model_body: Any, rotary_module: nn.Module | None, module_configs: Sequence[tuple[Any, Any]],
    hooks: Sequence[RemovableHandle] = (),
) -> None:  # fmt: skip
    """Restores a model's rotary module and configurations, and removes ESA's hooks from it."""
    if rotary_module is not None:
        model_body.rotary_emb = rotary_module
    for module, config in module_configs:
        module.config = config
    for hook in hooks:
        hook.remove()


def _register_call_hooks(
    model_body: Any, current_call: CurrentForwardCall, keys_are_shared: bool
) -> list[RemovableHandle]:
    """Registers hooks that record each call of a model's body with an `EsaCache`. If some layers
    attend to the keys of other layers (`keys_are_shared`), such layers compute all tokens in calls
    other than plain prefill, so that every token takes part in the selection."""

    def begin_recorded_call(module: Any, inputs: Any, options: Mapping[str, Any]) -> Any:
        cache = options.get("past_key_values")
        current_call.cache = None
        if not isinstance(cache, EsaCache) or module.config._attn_implementation != NAME:
            return None
        cache.check_belongs_to_model(current_call)
        positions = options.get("position_ids")
        span = None if positions is None else positions.reshape(-1)[[0, -1]].tolist()
        current_call.span = span and (span[0], span[1])
        tokens = options.get("input_ids", inputs[0] if inputs else None)
        tokens = options["inputs_embeds"] if tokens is None else tokens
        if tokens.shape[0] != 1:
            raise UsageError(
                f"ESA attends to one sequence at a time, not a batch of {tokens.shape[0]}",
                "ask the questions one after another; the document is processed only once",
            )
        cache.states.begin_forward_call(tokens.shape[1])
        current_call.cache = ref(cache)
        if keys_are_shared and "logits_to_keep" in options and not cache.is_plain_prefill:
            return inputs, {**options, "logits_to_keep": 0}
        return None

    def end_recorded_call(module: Any, inputs: Any, options: Any, output: Any) -> None:
        if (cache := current_call.get_current_cache()) is not None:
            cache.states.end_forward_call(cache.get_seq_length())
        current_call.cache = None

    return [
        model_body.register_forward_pre_hook(begin_recorded_call, with_kwargs=True),
        model_body.register_forward_hook(end_recorded_call, with_kwargs=True),
    ]


_ATTACHED: WeakKeyDictionary[nn.Module, ReferenceType[Attachment]] = WeakKeyDictionary()
"""The attachment of each attention module, weakly referenced so that both can be freed."""


class Attachment:
    """A model in which a method computes the attention, as a context manager; outside of `with`,
    call `detach`. `model` is a causal language model of transformers, of a family in `FAMILIES`.
    Caches created by `new_cache` run `method`, unless `EsaCache.begin_query` sets another method.
    Raises ModelError: the model is not supported, or is attached already."""

    def __init__(self, model: PreTrainedModel, method: Method) -> None:
        check_config_supported(model.config)
        self.model, self.method = model, method
        self.body = cast(Any, model.base_model)
        modules, family = list_attention_modules(model), get_model_family(model.config)
        self._attending = [module for module in modules if module is not None]
        rotary = getattr(self.body, "rotary_emb", None)
        # The model, one that contains it or one inside it.
        if any(there() for one in self._attending if (there := _ATTACHED.get(one))):
            raise ModelError(
                "this model is already attached", "call detach() on its first attachment"
            )
        self.traits = make_layer_traits(model.config, rotary, modules)
        self.forward_pass = CurrentForwardCall()
        self.latents = [LatentProjections(module) for module in self._attending if family.latent]
        self.method_layers = [
            i for i, one in enumerate(self.traits) if one is not None and one.window is None
        ]
        self._attention: dict[LayerTraits, SelectiveAttention | SlidingWindowAttention] = {}
        AttentionInterface.register(NAME, _compute_esa_attention)
        AttentionMaskInterface.register(NAME, _refuse_padding_mask)
        self._bare = rotary, (configs := _replace_configs_by_copies(model))
        shares_keys = bool(map_key_sources(model.config))
        calls = _register_call_hooks(self.body, self.forward_pass, shares_keys)
        self._restore = finalize(self, _restore_model, self.body, rotary, configs, calls)
        self._restore.atexit = False
        if family.switches_rope:  # or `generate` drops the cache at this length
            cast(Any, model.config).original_max_position_embeddings = sys.maxsize
        model.set_attn_implementation(NAME)
        if rotary is not None:
            angles = self.rope.get_inverse_frequencies()[0].shape[0]
            width = angles if family.half_table or family.complex_table else 2 * angles
            width = 1 if family.unequal_heads else width  # 1 is broadcast to any size of heads
            self.body.rotary_emb = IdentityRotaryEmbedding(width, family.complex_table, rotary)
        for module in self._attending:
            _ATTACHED[module] = ref(self)
        if any(module.config._attn_implementation != NAME for module in self._attending):
            self.detach()
            raise ModelError(
                "a layer of this model has its own configuration and would not use ESA's attention",
                "load the model again, and attach it without changing its configuration",
            )

    @property
    def rope(self) -> Rope:
        """The rotary embedding of the first layer that rotates keys, or `NoRope` without one."""
        ropes = [traits.rope for traits in self.traits if traits is not None]
        return next((rope for rope in ropes if rope.rotates), ropes[0])

    def get_layer_attention(
        self, method: Method, layer_index: int
    ) -> SelectiveAttention | SlidingWindowAttention:
        """Returns the function that computes the attention of a layer: the method's attention, or
        sliding-window attention."""
        traits = self.traits[layer_index]
        assert traits is not None, "the layer has no attention"
        found = self._attention.get(traits)
        if found is None or (isinstance(found, SelectiveAttention) and found.method is not method):
            rope, scale, cap = traits.rope, traits.scale, traits.cap
            if traits.window is not None:
                found = SlidingWindowAttention(traits.window, rope, scale, cap)
            else:
                layers, temperature = self.method_layers, traits.temperature
                found = SelectiveAttention(method, rope, scale, cap, layers, temperature)
            self._attention[traits] = found
        return found

    def new_cache(self, on_host: bool = False) -> EsaCache:
        """Returns an empty KV cache for `model(...)` or `model.generate(...)`, whose keys and
        values are in host memory if `on_host`."""
        return EsaCache(
            self.forward_pass, self.method, self.model.config, on_host, self.method_layers
        )

    @contextmanager
    def suspend_method(self) -> Iterator[None]:
        """A context in which the model computes its own attention; KV caches keep their tokens."""
        rotary, configs = self._bare
        own = [(module, module.config) for module, _ in configs]
        replaced = getattr(self.body, "rotary_emb", None)
        try:
            _restore_model(self.body, rotary, configs)
            yield
        finally:
            _restore_model(self.body, replaced, own)

    def detach(self) -> None:
        """Restores the model to what it was before it was attached; a second call does nothing."""
        if self._restore.alive:
            self.forward_pass.cache = None
            self._restore()
            for module in self._attending:
                _ATTACHED.pop(module, None)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()


def attach(model: PreTrainedModel, method: Method) -> Attachment:
    """Attaches a method to a model of transformers until `detach` is called on the result."""
    return Attachment(model, method)


@torch.no_grad()
def _compute_esa_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Computes the attention of an attached model's layer, as transformers' attention function:
    unrotated queries (1, H, C, D) become outputs (1, C, H, D), without gradients."""
    attachment = (_ATTACHED.get(module) or (lambda: None))()
    if attachment is None:
        raise ModelError("no method is attached to this model", "call attach(model, method)")
    if (cache := attachment.forward_pass.get_current_cache()) is None:
        hint = "pass past_key_values=attachment.new_cache()"
        raise UsageError("a model with ESA attached needs a KV cache of ESA", hint)
    if attention_mask is not None:
        raise UsageError("ESA's attention accepts no attention mask", "omit attention_mask")
    layer: int = module.layer_idx  # type: ignore[assignment]
    latent, traits = attachment.latents[layer] if attachment.latents else None, attachment.traits
    q = latent.project_queries(query[0]) if latent else traits[layer].rope.convert_to_key(query[0])  # type: ignore[union-attr]
    attention = attachment.get_layer_attention(cache.method, layer)
    out = attention(cache.get_layer_memory(layer), q, cache.query, kwargs.get("s_aux"))
    return (latent.expand_to_values(out) if latent else out).transpose(0, 1)[None], None


def _refuse_padding_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    """Returns no attention mask, since ESA's attention is causal without one. Raises UsageError:
    the model is called with a mask that hides tokens, such as padding."""
    if attention_mask is not None and not bool(torch.all(attention_mask)):
        raise UsageError(
            "the attention mask must not hide tokens, since ESA accepts no padding",
            "pass one unpadded sequence",
        )

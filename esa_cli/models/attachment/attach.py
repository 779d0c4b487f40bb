"""Attaches an attention method to a transformers model, and restores the model on `detach`.

docs/design.md says how, under "The seam to transformers". A copy replaces the configuration, since
other models may share the original. Several models can be attached at once, since ESA's attention
function finds the method by the attention module that calls it."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
    AttentionTraits,
    LatentProjections,
    list_attention_modules,
    make_attention_traits,
)
from esa_cli.models.files import families

NAME = "esa"


class IdentityRotaryEmbedding(nn.Module):
    """A rotary module that returns cosines of 1 and sines of 0, so that keys are cached unrotated.
    It returns `cosine_count` numbers for each token, or 1 to broadcast."""

    def __init__(self, cosine_count: int, as_complex: bool, replaced_module: nn.Module) -> None:
        super().__init__()
        self.layer_types = getattr(replaced_module, "layer_types", None)
        self._width, self._as_complex = cosine_count, as_complex

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Returns cosines and sines (1, n, width) for n tokens, or one complex tensor of both."""
        shape = (1, position_ids.shape[-1], self._width)
        cos, sin = x.new_ones(shape), x.new_zeros(shape)
        return torch.complex(cos.float(), sin.float()) if self._as_complex else (cos, sin)


def get_last_token_only_options(config: Any) -> dict[str, int]:
    """Returns options by which layers without keys compute only the last token."""
    return {"logits_to_keep": 1} if families.get_model_family(config).skips_tokens else {}


def _replace_configs_by_copies(model: nn.Module) -> list[tuple[Any, Any]]:
    """Replaces the configurations of a model's modules by copies; returns the originals."""
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
    base_model: Any, rotary_module: nn.Module | None, module_configs: Sequence[tuple[Any, Any]],
    hooks: Sequence[RemovableHandle] = (),
) -> None:  # fmt: skip
    if rotary_module is not None:
        base_model.rotary_emb = rotary_module
    for module, config in module_configs:
        module.config = config
    for hook in hooks:
        hook.remove()


def _register_forward_call_hooks(
    base_model: Any, current_call: CurrentForwardCall, layers_share_keys: bool
) -> list[RemovableHandle]:
    """Registers hooks that store each forward call's `EsaCache` in `current_call`."""

    def set_cache_of_running_call(base_model: Any, args: Any, options: Mapping[str, Any]) -> Any:
        cache = options.get("past_key_values")
        current_call.cache = None
        if not isinstance(cache, EsaCache) or base_model.config._attn_implementation != NAME:
            return None
        cache.check_belongs_to_model(current_call)
        positions = options.get("position_ids")
        span = None if positions is None else positions.reshape(-1)[[0, -1]].tolist()
        current_call.span = span and (span[0], span[1])
        tokens = options.get("input_ids", args[0] if args else None)
        tokens = options["inputs_embeds"] if tokens is None else tokens
        if tokens.shape[0] != 1:
            raise UsageError(
                f"ESA attends to one sequence at a time, not a batch of {tokens.shape[0]}",
                "ask one question after another; the document is processed once for all of them",
            )
        cache.states.record_forward_start(tokens.shape[1])
        current_call.cache = ref(cache)
        # Every layer computes all tokens, which take part in the selection, except in prefill.
        if layers_share_keys and "logits_to_keep" in options and not cache.is_unobserved_prefill:
            return args, {**options, "logits_to_keep": 0}
        return None

    def forget_cache_of_finished_call(model: Any, args: Any, kwargs: Any, output: Any) -> None:
        if (cache := current_call.get_current_cache()) is not None:
            cache.states.record_forward_end(cache.get_seq_length())
        current_call.cache = None

    return [
        base_model.register_forward_pre_hook(set_cache_of_running_call, with_kwargs=True),
        base_model.register_forward_hook(forget_cache_of_finished_call, with_kwargs=True),
    ]


_ATTACHED: WeakKeyDictionary[nn.Module, ReferenceType[AttachedModel]] = WeakKeyDictionary()
"""The attached model of each attention module, weakly referenced so that it can be freed."""


class AttachedModel(AbstractContextManager["AttachedModel"]):
    """A causal language model of transformers, of a family in `FAMILIES`, in which `method`
    computes the attention until `detach` is called or the `with` block ends. Raises ModelError: the
    model is not supported, or is attached already."""

    def __init__(self, model: PreTrainedModel, method: Method) -> None:
        families.check_esa_supports_config(model.config)
        self.model, self.method = model, method
        self.body = cast(Any, model.base_model)
        modules, family = list_attention_modules(model), families.get_model_family(model.config)
        self._attending = [module for module in modules if module is not None]
        rotary = getattr(self.body, "rotary_emb", None)
        # The model, one that contains it or one inside it.
        if any(there() for one in self._attending if (there := _ATTACHED.get(one))):
            hint = "call detach() on the result of the first attach(model, method)"
            raise ModelError("a method is already attached to this model", hint)
        self.traits = make_attention_traits(model.config, rotary, modules)
        self.forward_pass = CurrentForwardCall()
        self.latents = [LatentProjections(module) for module in self._attending if family.latent]
        self.method_layers = [
            i for i, one in enumerate(self.traits) if one is not None and one.window is None
        ]
        self._attention: dict[AttentionTraits, SelectiveAttention | SlidingWindowAttention] = {}
        AttentionInterface.register(NAME, _compute_esa_attention)
        AttentionMaskInterface.register(NAME, _refuse_padding_mask)
        self._bare = rotary, (configs := _replace_configs_by_copies(model))
        shares_keys = bool(families.map_key_source_layers(model.config))
        calls = _register_forward_call_hooks(self.body, self.forward_pass, shares_keys)
        self._restore = finalize(self, _restore_model, self.body, rotary, configs, calls)
        self._restore.atexit = False
        if family.switches_rope:  # or `generate` drops the cache at this length
            cast(Any, model.config).original_max_position_embeddings = sys.maxsize
        model.set_attn_implementation(NAME)
        if rotary is not None:
            angles = self.rotary_embedding.get_inverse_frequencies()[0].shape[0]
            width = angles if family.half_table or family.complex_table else 2 * angles
            width = 1 if family.unequal_heads else width  # 1 is broadcast to any size of heads
            self.body.rotary_emb = IdentityRotaryEmbedding(width, family.complex_table, rotary)
        for module in self._attending:
            _ATTACHED[module] = ref(self)
        if any(module.config._attn_implementation != NAME for module in self._attending):
            self.detach()
            raise ModelError(
                "a layer of this model has its own configuration and would not use ESA's attention",
                "load the model again, and attach a method before changing its configuration",
            )

    @property
    def rotary_embedding(self) -> Rope:
        """The rotary embedding of the first layer that rotates keys, or `NoRope` if none does."""
        ropes = [traits.rope for traits in self.traits if traits is not None]
        return next((rope for rope in ropes if rope.rotates), ropes[0])

    def get_layer_attention_function(
        self, method: Method, layer_index: int
    ) -> SelectiveAttention | SlidingWindowAttention:
        traits = self.traits[layer_index]
        assert traits is not None, "the layer has no attention"
        found = self._attention.get(traits)
        if found is None or (isinstance(found, SelectiveAttention) and found.method is not method):
            common = traits.rope, traits.scale, traits.cap
            if traits.window is not None:
                found = SlidingWindowAttention(traits.window, *common)
            else:
                found = SelectiveAttention(method, *common, self.method_layers, traits.temperature)
            self._attention[traits] = found
        return found

    def new_cache(self, on_cpu: bool = False, expected_tokens: int = 0) -> EsaCache:
        """Returns an empty KV cache for `model(...)` or `model.generate(...)`, with keys and values
        in CPU memory if `on_cpu`. A GPU gets room for `expected_tokens`, if they are known."""
        known = self.forward_pass, self.method, self.model.config, self.method_layers
        return EsaCache(*known, on_cpu, expected_tokens)

    @contextmanager
    def suspend_method(self) -> Iterator[None]:
        """Lets the model compute its own attention, without a method, in a `with` block."""
        rotary, configs = self._bare
        own = [(module, module.config) for module, _ in configs]
        replaced = getattr(self.body, "rotary_emb", None)
        try:
            _restore_model(self.body, rotary, configs)
            yield
        finally:
            _restore_model(self.body, replaced, own)

    def detach(self) -> None:
        """Restores the model as it was before `attach`; a second call does nothing."""
        if self._restore.alive:
            self.forward_pass.cache = None
            self._restore()
            for module in self._attending:
                _ATTACHED.pop(module, None)

    def __exit__(self, *error: object) -> None:
        self.detach()


def attach(model: PreTrainedModel, method: Method) -> AttachedModel:
    """Makes `method` compute the attention of a transformers model until the result is detached."""
    return AttachedModel(model, method)


@torch.no_grad()
def _compute_esa_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Called by transformers: returns outputs (1, C, H, D) of unrotated queries (1, H, C, D)."""
    attachment = (_ATTACHED.get(module) or (lambda: None))()
    if attachment is None:
        raise ModelError("no method is attached to this model", "call attach(model, method)")
    if (cache := attachment.forward_pass.get_current_cache()) is None:
        hint = "pass past_key_values=attachment.new_cache() to the model"
        raise UsageError("a model with ESA attached needs a KV cache of ESA", hint)
    if attention_mask is not None:
        raise UsageError("ESA's attention accepts no attention mask", "omit attention_mask")
    layer: int = module.layer_idx  # type: ignore[assignment]
    latent, traits = attachment.latents[layer] if attachment.latents else None, attachment.traits
    q = latent.project_queries(query[0]) if latent else traits[layer].rope.convert_to_key(query[0])  # type: ignore[union-attr]
    attention = attachment.get_layer_attention_function(cache.method, layer)
    out = attention(cache.get_layer_kv_cache(layer), q, cache.query, kwargs.get("s_aux"))
    return (latent.project_sums_to_values(out) if latent else out).transpose(0, 1)[None], None


def _refuse_padding_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    """Returns no mask, as ESA's attention is causal without one."""
    if attention_mask is not None and not bool(torch.all(attention_mask)):
        wrong = "the attention mask must not hide tokens, since ESA accepts no padding"
        raise UsageError(wrong, "pass one sequence of tokens without padding to the model")

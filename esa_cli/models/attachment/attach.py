"""Attaches a method to a transformers model, and restores the model on `detach`.

No code is patched: an attention function and a mask function are registered as "esa"; the rotary
module is replaced by one that does not rotate; the configuration is replaced by a copy, since other
models may share the original; hooks watch the calls of the model's body. The attention function
finds the method by the attention module that calls it, so several models can be attached at once.
docs/design.md explains this under "The seam"."""

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
from esa_cli.models.attachment.kv_cache import CurrentCall, EsaCache
from esa_cli.models.attachment.layer_traits import (
    LatentHeads,
    LayerTraits,
    list_attention_modules,
    make_layer_traits,
)
from esa_cli.models.files.families import check_supported, get_family, map_source_layers

NAME = "esa"


class IdentityRotaryEmbedding(nn.Module):
    """A rotary module that returns cosines of 1 and sines of 0, so that keys are cached unrotated.

    Args:
        width: the number of cosines for each token, or 1 to broadcast. as_complex: whether the
            model expects a complex tensor (1, n, width). replaced: the model's rotary module, for
            its layer types."""

    def __init__(self, width: int, as_complex: bool, replaced: nn.Module) -> None:
        super().__init__()
        self.layer_types = getattr(replaced, "layer_types", None)
        self._width, self._as_complex = width, as_complex

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Returns cosines and sines, (1, n, width) each, or one complex tensor."""
        shape = (1, position_ids.shape[-1], self._width)
        cos, sin = x.new_ones(shape), x.new_zeros(shape)
        return torch.complex(cos.float(), sin.float()) if self._as_complex else (cos, sin)


def choose_last_token_options(config: Any) -> dict[str, int]:
    """Returns the option of a forward call by which layers that share the keys of others compute
    the last token only, or {} if the model family has no such option."""
    return {"logits_to_keep": 1} if get_family(config).skips_tokens else {}


def _copy_configs(model: nn.Module) -> list[tuple[Any, Any]]:
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
    body: Any, rotary: nn.Module | None, configs: Sequence[tuple[Any, Any]],
    hooks: Sequence[RemovableHandle] = (),
) -> None:  # fmt: skip
    """Restores the rotary module and the configurations of a model, and removes hooks."""
    if rotary is not None:
        body.rotary_emb = rotary
    for module, config in configs:
        module.config = config
    for hook in hooks:
        hook.remove()


def _record_calls(body: Any, forward_pass: CurrentCall, has_readers: bool) -> list[RemovableHandle]:
    """Registers hooks that record each call of a model's body with an `EsaCache` as the
    `CurrentCall`. If some layers attend to other layers' keys (`has_readers`), these layers compute
    all tokens in calls other than plain prefill, so that every token takes part in the selection.
    """

    def before_call(module: Any, inputs: Any, options: Mapping[str, Any]) -> Any:
        cache = options.get("past_key_values")
        forward_pass.cache = None
        if not isinstance(cache, EsaCache) or module.config._attn_implementation != NAME:
            return None
        cache.check_owner(forward_pass)
        positions = options.get("position_ids")
        span = None if positions is None else positions.reshape(-1)[[0, -1]].tolist()
        forward_pass.span = span and (span[0], span[1])
        tokens = options.get("input_ids", inputs[0] if inputs else None)
        tokens = options["inputs_embeds"] if tokens is None else tokens
        if tokens.shape[0] != 1:
            raise UsageError(
                f"ESA attends to one sequence at a time, not a batch of {tokens.shape[0]}",
                "ask the questions one after another; the document is processed only once",
            )
        cache.states.begin_call(tokens.shape[1])
        forward_pass.cache = ref(cache)
        if has_readers and "logits_to_keep" in options and not cache.is_plain_prefill:
            return inputs, {**options, "logits_to_keep": 0}
        return None

    def after_call(module: Any, inputs: Any, options: Mapping[str, Any], output: Any) -> None:
        if (cache := forward_pass.get_current_cache()) is not None:
            cache.states.end_call(cache.get_seq_length())
        forward_pass.cache = None

    return [
        body.register_forward_pre_hook(before_call, with_kwargs=True),
        body.register_forward_hook(after_call, with_kwargs=True),
    ]


_ATTACHED: WeakKeyDictionary[nn.Module, ReferenceType[Attachment]] = WeakKeyDictionary()
"""The attachment of each attention module, weakly referenced so that both can be freed."""


class Attachment:
    """A model with ESA attached, as a context manager; without `with`, call `detach`. `model` is a
    causal language model of transformers, of a family in `families`; `method` runs in the caches
    created from now on, unless `EsaCache.begin` sets another. Raises ModelError: the model is not
    supported, or is attached already."""

    def __init__(self, model: PreTrainedModel, method: Method) -> None:
        check_supported(model.config)
        self.model, self.method = model, method
        self.body = cast(Any, model.base_model)
        modules, family = list_attention_modules(model), get_family(model.config)
        self._attending = [module for module in modules if module is not None]
        rotary = getattr(self.body, "rotary_emb", None)
        # The model, one that contains it or one inside it.
        if any(there() for one in self._attending if (there := _ATTACHED.get(one))):
            raise ModelError(
                "this model is already attached", "call detach() on its first attachment"
            )
        self.traits = make_layer_traits(model.config, rotary, modules)
        self.forward_pass = CurrentCall()
        self.latents = [LatentHeads(module) for module in self._attending if family.latent]
        self.method_layers = [
            i for i, one in enumerate(self.traits) if one is not None and one.window is None
        ]
        self._attention: dict[LayerTraits, SelectiveAttention | SlidingWindowAttention] = {}
        AttentionInterface.register(NAME, _compute_esa_attention)
        AttentionMaskInterface.register(NAME, _refuse_padding_mask)
        self._bare = rotary, (configs := _copy_configs(model))
        calls = _record_calls(self.body, self.forward_pass, bool(map_source_layers(model.config)))
        self._restore = finalize(self, _restore_model, self.body, rotary, configs, calls)
        self._restore.atexit = False
        if family.switches_rope:  # or `generate` drops the cache at this length
            cast(Any, model.config).original_max_position_embeddings = sys.maxsize
        model.set_attn_implementation(NAME)
        if rotary is not None:
            angles = self.rope.frequencies[0].shape[0]
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
        """The rotary embedding of the first layer that rotates; `NoRope` if no layer does."""
        ropes = [traits.rope for traits in self.traits if traits is not None]
        return next((rope for rope in ropes if rope.rotates), ropes[0])

    def get_layer_attention(
        self, method: Method, layer: int
    ) -> SelectiveAttention | SlidingWindowAttention:
        """Returns the function that computes a layer's attention: the method's function, or
        sliding-window attention."""
        traits = self.traits[layer]
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
        """Returns an empty cache for `model(...)` or `model.generate(...)`, with keys and values in
        host memory if `on_host`."""
        return EsaCache(
            self.forward_pass, self.method, self.model.config, on_host, self.method_layers
        )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A context in which the model uses its own attention; the tokens in caches stay."""
        rotary, configs = self._bare
        own = [(module, module.config) for module, _ in configs]
        replaced = getattr(self.body, "rotary_emb", None)
        try:
            _restore_model(self.body, rotary, configs)
            yield
        finally:
            _restore_model(self.body, replaced, own)

    def detach(self) -> None:
        """Restores the attached model; a second call does nothing."""
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
    """Attaches a method to a model until `detach` is called."""
    return Attachment(model, method)


@torch.no_grad()
def _compute_esa_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Computes ESA's attention when transformers calls it: unrotated queries (1, H, C, D) become
    outputs (1, C, H, D), without gradients."""
    attachment = (_ATTACHED.get(module) or (lambda: None))()
    if attachment is None:
        raise ModelError("no method is attached to this model", "call attach(model, method)")
    if (cache := attachment.forward_pass.get_current_cache()) is None:
        hint = "pass past_key_values=attachment.new_cache()"
        raise UsageError("a model with ESA attached needs its own cache", hint)
    if attention_mask is not None:
        raise UsageError("ESA's attention accepts no attention mask", "omit attention_mask")
    layer: int = module.layer_idx  # type: ignore[assignment]
    latent, traits = attachment.latents[layer] if attachment.latents else None, attachment.traits
    q = latent.absorb_queries(query[0]) if latent else traits[layer].rope.convert_to_key(query[0])  # type: ignore[union-attr]
    attention = attachment.get_layer_attention(cache.method, layer)
    out = attention(cache.memory(layer), q, cache.query, kwargs.get("s_aux"))
    return (latent.expand_outputs(out) if latent else out).transpose(0, 1)[None], None


def _refuse_padding_mask(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    """Returns no mask, since ESA is causal by construction. A mask that hides tokens is refused,
    since ESA would attend to the padding."""
    if attention_mask is not None and not bool(torch.all(attention_mask)):
        raise UsageError(
            "the attention mask must not hide tokens, since ESA accepts no padding",
            "pass one unpadded sequence",
        )

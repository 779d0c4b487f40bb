"""Attaches a method to a transformers model, and restores the model on `detach`.

Three public interfaces of transformers are used, and nothing is patched:
- `AttentionInterface`: an attention function named "esa" (`AttentionMaskInterface` likewise, so
  that padding is refused instead of silently ignored);
- the rotary module, if there is one, is replaced by one that does not rotate, and the configuration
  by a copy, since other models may share it; both are restored;
- a `Cache` whose layers are `EsaLayer`s.

The attention function finds its method by the attention module it is called with, so several
models can be attached at once. `_ATTACHED` has weak references: dropping a model frees it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast
from weakref import ReferenceType, WeakKeyDictionary, finalize, ref

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface

from esa_cli.attention.layer import Attention
from esa_cli.attention.method import Method
from esa_cli.attention.model_traits import SlidingAttention
from esa_cli.attention.rope import RawRotary, Rope
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.attachment.families import family_of, keeps_state, source_layers
from esa_cli.models.attachment.forward_pass import ForwardPass
from esa_cli.models.attachment.kv_cache import EsaCache, check_alone, in_memory
from esa_cli.models.attachment.latent_heads import LatentHeads
from esa_cli.models.attachment.layer_traits import (
    LayerTraits,
    keep_cache,
    layer_traits,
    what_layers_keep,
)
from esa_cli.models.attachment.layer_traits import check_supported as check_supported
from esa_cli.models.inspection import attention_modules, check_readers, row_layers
from esa_cli.storage.memory_store import MakeStore


def copy_configs(model: nn.Module) -> list[tuple[Any, Any]]:
    """Replaces modules' configurations by copies; returns the modules with the originals.

    Modules may share a configuration, also with other models; only one about attention is copied.
    """
    modules: Sequence[Any] = list(model.modules())
    found = [
        (module, module.config)
        for module in modules
        if hasattr(getattr(module, "config", None), "_attn_implementation")
    ]
    copies = {id(config): copy.deepcopy(config) for _, config in found}
    for module, config in found:
        module.config = copies[id(config)]
    return found


def restore(
    body: Any,
    rotary: nn.Module | None,
    configs: Sequence[tuple[Any, Any]],
    hooks: Sequence[RemovableHandle] = (),
) -> None:
    """Restores the rotary module and the configurations of `copy_configs`, and removes hooks."""
    if rotary is not None:
        body.rotary_emb = rotary
    for module, config in configs:
        module.config = config
    for hook in hooks:
        hook.remove()


class StartOfForward(RawRotary):
    """Opens the attached model's `ForwardPass`: the model calls its rotary module at the start of a
    forward call, once or for each type of layers, with the positions of its tokens.

    Args:
        width: of `RawRotary`. one: the model expects one complex tensor, (1, n, width).
        replaced: the model's own module, whose types of layers the model asks for.
    """

    def __init__(
        self, width: int, forward_pass: ForwardPass, one: bool, replaced: nn.Module
    ) -> None:
        super().__init__(width)
        self.layer_types = getattr(replaced, "layer_types", None)
        self._forward_pass, self._one = forward_pass, one

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        # A compiled model would be compiled anew for every span.
        self._forward_pass.open(None if torch.compiler.is_compiling() else _ends(position_ids))
        cos, sin = super().forward(x, position_ids)
        return torch.complex(cos.float(), sin.float()) if self._one else (cos, sin)


def _ends(positions: Tensor) -> tuple[int, int]:
    flat = positions.reshape(-1)
    first, last = torch.stack((flat[0], flat[-1])).tolist()
    return first, last


def whole_calls(body: nn.Module) -> RemovableHandle:
    """A hook for models whose last layers read the rows of others: it makes these compute all
    tokens of a call, but of one that stores rows and nothing else. transformers computes the tokens
    alone whose logits are wanted, so that a question's own words would not select."""

    def before(module: nn.Module, inputs: Any, given: Mapping[str, Any]) -> Any:
        cache = given.get("past_key_values")
        unread = isinstance(cache, EsaCache) and cache.reads_rows_alone
        if "logits_to_keep" not in given or unread:
            return None
        return inputs, {**given, "logits_to_keep": 0}

    return body.register_forward_pre_hook(before, with_kwargs=True)


def last_alone(config: Any) -> dict[str, int]:
    """The argument of a body's call whose output is not used, by which it need not compute all
    tokens in layers that read the rows of others; none where it has no such argument."""
    return {"logits_to_keep": 1} if family_of(config).leaves_out else {}


def watch_calls(body: nn.Module, forward_pass: ForwardPass) -> list[RemovableHandle]:
    """Hooks that open the `ForwardPass` of a model's body with each call that gets an `EsaCache`,
    and tell the cache of beginning and end. Returns their handles."""

    def before(module: nn.Module, inputs: Any, given: Mapping[str, Any]) -> None:
        cache = given.get("past_key_values")
        if not isinstance(cache, EsaCache):
            return
        if cache.forward_pass is not forward_pass:
            raise UsageError(
                "this cache was made for another model",
                "use new_cache() of the model's own attachment",
            )
        positions = given.get("position_ids")
        forward_pass.open(None if positions is None else _ends(positions))
        tokens = given.get("input_ids", inputs[0] if inputs else None)
        tokens = given["inputs_embeds"] if tokens is None else tokens
        check_alone(tokens.shape[0])
        cache.states.begin_call(tokens.shape[1])

    def after(module: nn.Module, inputs: Any, given: Mapping[str, Any], output: Any) -> None:
        cache = given.get("past_key_values")
        if isinstance(cache, EsaCache):
            cache.states.end_call(cache.get_seq_length())

    return [
        body.register_forward_pre_hook(before, with_kwargs=True),
        body.register_forward_hook(after, with_kwargs=True),
    ]


NAME = "esa"

_ATTACHED: WeakKeyDictionary[nn.Module, ReferenceType[Attachment]] = WeakKeyDictionary()


class Attachment:
    """A model with ESA attached; use as a context manager or call `detach`.

    Args:
        model: a causal language model of transformers, of a family in `families`.
        method: what caches of this attachment run, unless `use` or `EsaCache.begin` give another.

    Raises:
        ModelError: the model cannot be supported, with the reason; or is attached already.
    """

    def __init__(self, model: PreTrainedModel, method: Method) -> None:
        check_supported(model.config)
        if model.device.type == "meta":
            raise ModelError(
                "this model's weights are offloaded", "load it whole on a GPU or the CPU"
            )
        self.model = model
        self.body = cast(Any, model.base_model)
        self._modules = attention_modules(model)
        check_readers(model)
        rotary = getattr(self.body, "rotary_emb", None)
        _check_free(self._attending, rotary)
        self.traits = layer_traits(model.config, rotary, self._modules)
        self.sources = source_layers(model.config)
        self.forward_pass: ForwardPass = ForwardPass(readers=self.sources)
        self.method = method
        family = family_of(model.config)
        self.latents = [LatentHeads(module) for module in self._attending if family.latent]
        traits = [(i, one) for i, one in enumerate(self.traits) if one is not None]
        self.method_layers = [i for i, one in traits if one.window is None]
        self._attention: dict[LayerTraits, Attention] = {}
        self._sliding = {
            one: SlidingAttention(one.window, one.rope, one.scale, one.cap)
            for _, one in traits
            if one.window is not None
        }
        AttentionInterface.register(NAME, _attention_function)
        AttentionMaskInterface.register(NAME, _mask_function)
        self._bare = rotary, (configs := copy_configs(model))
        watched = rotary is None or keeps_state(model.config)
        calls = watch_calls(self.body, self.forward_pass) if watched else []
        calls += [whole_calls(self.body)] if self.sources else []
        self._restore = finalize(
            self, restore, self.body, rotary, configs, calls
        )  # if not detached
        self._restore.atexit = False
        keep_cache(model.config)
        model.set_attn_implementation(NAME)
        if rotary is not None:
            one, angles = family.complex_table, self.rope.frequencies[0].shape[0]
            width = angles if family.half_table or one else 2 * angles
            width = 1 if family.wide else width  # heads are of several sizes, and it is broadcast
            self.body.rotary_emb = StartOfForward(width, self.forward_pass, one, rotary)
        for module in self._attending:
            _ATTACHED[module] = ref(self)
        if any(module.config._attn_implementation != NAME for module in self._attending):
            self.detach()
            raise ModelError(
                "a layer of this model has a configuration of its own, and keeps its attention",
                "load the model again, and attach it as it comes",
            )

    @property
    def _attending(self) -> list[Any]:
        """The attention modules of the layers that have one."""
        return [module for module in self._modules if module is not None]

    @property
    def row_layers(self) -> list[int]:
        """Indices of the layers that keep keys and values."""
        return row_layers(self.model)

    @property
    def last_layer(self) -> int:
        """Index of the last layer that has attention."""
        return max(i for i, module in enumerate(self._modules) if module is not None)

    @property
    def attached(self) -> bool:
        """Whether the model runs the method: until `detach`."""
        return self._restore.alive

    @property
    def rope(self) -> Rope:
        """The rotary embedding of the first layer that has one, else of none."""
        ropes = [traits.rope for traits in self.traits if traits is not None]
        return next((rope for rope in ropes if rope.rotates), ropes[0])

    def attention(self, method: Method, layer: int) -> Attention | SlidingAttention:
        """The attention of a method on a layer; those of the last method are kept. Layers that
        attend to a window keep their own."""
        traits = self.traits[layer]
        assert traits is not None, "the layer has no attention"
        if traits.window is not None:
            return self._sliding[traits]
        found = self._attention.get(traits)
        if found is None or found.method is not method:
            layers, temperature = self.method_layers, traits.temperature
            found = Attention(method, traits.rope, traits.scale, traits.cap, layers, temperature)
            self._attention[traits] = found
        return found

    def use(self, method: Method) -> None:
        """Runs another method in the caches made from now on; those there are keep theirs."""
        self.method = method

    def new_cache(self, store: MakeStore = in_memory) -> EsaCache:
        """An empty cache for `model(...)` or `model.generate(...)`; `store` makes each layer's."""
        layers, chosen = what_layers_keep(self.model.config), self.method_layers
        return EsaCache(
            self.forward_pass, self.method, layers, store, chosen, bool(self.latents), self.sources
        )

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """The bare model until the block ends; caches of this attachment keep their rows."""
        rotary, configs = self._bare
        own = [(module, module.config) for module, _ in configs]
        replaced = getattr(self.body, "rotary_emb", None)
        try:
            restore(self.body, rotary, configs)
            yield
        finally:
            restore(self.body, replaced, own)

    def detach(self) -> None:
        """Restores the model. Does nothing the second time."""
        if not self.attached:
            return
        self.forward_pass.close()
        self._restore()
        for module in self._attending:
            _ATTACHED.pop(module, None)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()


def _check_free(modules: list[Any], rotary: Any) -> None:
    """Raises ModelError when the model, one that contains it or one inside it, is attached."""
    kept = [found() for module in modules if (found := _ATTACHED.get(module))]
    if any(kept) or isinstance(rotary, RawRotary):
        raise ModelError("this model is attached already", "call detach() on the first attachment")


def attach(model: PreTrainedModel, method: Method) -> Attachment:
    """Attaches `method` to `model`; see `Attachment`."""
    return Attachment(model, method)


@torch.no_grad()
def _attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Called by transformers: query (1, H, C, D), unrotated -> (1, C, H, D), without gradients."""
    found = _ATTACHED.get(module)
    attachment = found() if found else None
    if attachment is None:
        raise ModelError(
            "this model runs attention 'esa' but has no method", "call attach(model, method)"
        )
    index: int = module.layer_idx  # type: ignore[assignment]
    cache = attachment.forward_pass.take(index, attachment.last_layer)
    if cache is None:
        raise UsageError("ESA needs its own cache", "pass past_key_values=attachment.new_cache()")
    if attention_mask is not None:
        raise UsageError("ESA takes no ready-made attention mask", "leave attention_mask out")
    attention = attachment.attention(cache.method, index)
    latent = attachment.latents[index] if attachment.latents else None
    traits = attachment.traits[index]
    assert traits is not None, "a layer without attention calls none"
    q = latent.queries(query[0]) if latent else traits.rope.as_key(query[0])
    out = cache.attend(attention, index, q, kwargs.get("s_aux"))
    return (latent.outputs(out) if latent else out).transpose(0, 1)[None], None


def _mask_function(*args: Any, attention_mask: Tensor | None = None, **kwargs: Any) -> None:
    """ESA is causal by construction and needs no mask; padding would be attended to, so refuse."""
    if attention_mask is not None and not bool(torch.all(attention_mask)):
        raise UsageError(
            "the attention mask hides tokens; ESA takes no padding", "pass one sequence unpadded"
        )

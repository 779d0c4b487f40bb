"""Where a model's forward call begins: in its rotary module, or in a hook of its body.

The rotary module of an attached model is replaced anyway. Models with layers that keep a state need
a hook, before and behind the call; so do models without a rotary module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from esa_cli.attention.rope import RawRotary
from esa_cli.errors import UsageError
from esa_cli.models.attachment.cached_rows import check_alone
from esa_cli.models.attachment.forward_pass import ForwardPass
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.attachment.supported_families import family_of


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

    def behind(module: nn.Module, inputs: Any, given: Mapping[str, Any], output: Any) -> None:
        cache = given.get("past_key_values")
        if isinstance(cache, EsaCache):
            cache.states.end_call(cache.get_seq_length())

    return [
        body.register_forward_pre_hook(before, with_kwargs=True),
        body.register_forward_hook(behind, with_kwargs=True),
    ]

"""Forward passes of plain text through a model that nothing is attached to.

Finding and reading passages need hidden states and logits of short texts, and what is kept of them
to continue. `ModelForward` is transformers' own, with a cache; `WholeForward` has none, for models
whose cache does not give their own logits; `small_decoder.FusedForward` is the fast one.
`PromptBatch` reads several prompts in one call.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from esa_cli.errors import ModelError
from esa_cli.models.files.families import FAMILIES, family_of
from esa_cli.models.text_passes.layer_calls import GROUP, padded

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of a layer, each (B, G, N, D)."""


@dataclass(frozen=True)
class KeyValuePast:
    """Keys and values of all layers, of B sequences of N tokens each, padding included."""

    pairs: Sequence[KeysValues]

    def chosen(self, rows: Sequence[int]) -> KeyValuePast:
        """Of these sequences, each as often as it is named; what is appended to them does not
        change this."""
        if len({*rows}) == 1:
            only, shape = slice(rows[0], rows[0] + 1), (len(rows), -1, -1, -1)
            return KeyValuePast(
                [(k[only].expand(shape), v[only].expand(shape)) for k, v in self.pairs]
            )
        at = torch.tensor([*rows], device=self.pairs[0][0].device)
        return KeyValuePast([(keys[at], values[at]) for keys, values in self.pairs])

    def cut(self, length: int) -> KeyValuePast:
        """Of the first tokens alone; where prompts are padded."""
        return KeyValuePast([(k[:, :, :length], v[:, :, :length]) for k, v in self.pairs])


@dataclass(frozen=True)
class CachePast:
    """A cache of transformers, whatever its layers keep. Methods: as of `KeyValuePast`."""

    cache: Any
    device: torch.device

    def chosen(self, rows: Sequence[int]) -> CachePast:
        out = copy.copy(self.cache)
        out.layers = []
        for layer in self.cache.layers:  # the same tensors, which can be replaced
            shallow = copy.copy(layer)
            for name, value in vars(layer).items():
                if isinstance(value, dict):
                    setattr(shallow, name, dict(value))
            out.layers.append(shallow)
        out.reorder_cache(torch.tensor([*rows], device=self.device))
        return CachePast(out, self.device)

    def cut(self, length: int) -> CachePast:
        if (more := self.cache.get_seq_length() - length) > 0:
            self.cache.crop(-more)
        return self


@dataclass(frozen=True)
class TokenPast:
    """Nothing but the tokens (B, N) themselves. Methods: as of `KeyValuePast`."""

    ids: Tensor

    def chosen(self, rows: Sequence[int]) -> TokenPast:
        return TokenPast(self.ids[[*rows]])

    def cut(self, length: int) -> TokenPast:
        return TokenPast(self.ids[:, :length])


TextPast = KeyValuePast | CachePast | TokenPast


class TextForward(Protocol):
    """What `PromptBatch` needs of a model."""

    @property
    def pads(self) -> bool:
        """Whether prompts that are padded at their ends can be continued."""

    @property
    def device(self) -> torch.device:
        """Where token ids are expected."""

    def states(self, ids: Tensor, past: Any = None) -> tuple[Tensor, TextPast]:
        """Hidden states (B, T, hidden) of tokens (B, T), which `logits` takes, and what is kept of
        these and those of `past`, a `TextPast` of this model, which is used up."""

    def logits(self, states: Tensor) -> Tensor:
        """Logits (..., vocabulary), float32."""


class ModelForward:
    """The forward pass of a causal language model of transformers."""

    def __init__(self, model: Any) -> None:
        self._model, body = model, model.base_model
        # Llama 4 names its body otherwise than its class says.
        self._body = model.model if body is model else body
        self.device: torch.device = model.device

    @cached_property
    def pads(self) -> bool:
        """Only where every layer keeps the keys and values of all tokens."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        layers = DynamicCache(config=self._model.config).layers
        return all(type(layer) is DynamicLayer for layer in layers)

    def states(self, ids: Tensor, past: CachePast | None = None) -> tuple[Tensor, CachePast]:
        """See `TextForward`."""
        from transformers import DynamicCache

        cache = DynamicCache(config=self._model.config) if past is None else past.cache
        out = self._body(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.last_hidden_state, CachePast(cache, ids.device)

    def logits(self, states: Tensor) -> Tensor:
        """See `TextForward`."""
        logits: Tensor = self._model.get_output_embeddings()(states)
        return scaled_logits(logits.float(), self._model.config)


def scaled_logits(logits: Tensor, config: Any) -> Tensor:
    """What a family's models do with the output of their last matrix."""
    family = family_of(config)
    if family.multiply:
        logits = logits * getattr(config, family.multiply)
    if family.divide:
        logits = logits / getattr(config, family.divide)
    if family.cap and (cap := getattr(config, family.cap)) is not None:
        logits = cap * torch.tanh(logits / cap)
    return logits


class WholeForward:
    """A forward pass of any causal language model of transformers, without a cache: all tokens are
    processed each time, one prompt at a time."""

    pads = False

    def __init__(self, model: Any) -> None:
        self._model = model
        self.device: torch.device = model.device

    def states(self, ids: Tensor, past: TokenPast | None = None) -> tuple[Tensor, TokenPast]:
        """See `TextForward`; the states are the model's own logits (B, T, vocabulary)."""
        tokens = ids if past is None else torch.cat((past.ids, ids), 1)
        logits: Tensor = self._model(input_ids=tokens, use_cache=False).logits
        return logits[:, -ids.shape[1] :], TokenPast(tokens)

    def logits(self, states: Tensor) -> Tensor:
        """See `TextForward`."""
        return states.float()


class PromptBatch:
    """Prompts that a model has processed, with the logits after each.

    Args:
        prompts: their token ids.

    `logits` is (prompts, vocabulary), float32: of the token that follows each prompt.
    """

    def __init__(self, forward: TextForward, prompts: Sequence[Sequence[int]]) -> None:
        self._forward, self._lengths = forward, [len(ids) for ids in prompts]
        logits: list[Tensor] = [torch.empty(0)] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda n: self._lengths[n])
        self._places: dict[int, tuple[TextPast, int]] = {}
        together = GROUP if forward.pads else 1
        for at in range(0, len(order), together):
            group = order[at : at + together]
            batch = padded([prompts[n] for n in group])
            states, kept = forward.states(batch.to(forward.device))
            last = torch.tensor([self._lengths[n] - 1 for n in group])
            lines = forward.logits(states[torch.arange(len(group)), last])
            for row, (n, line) in enumerate(zip(group, lines, strict=True)):
                self._places[n], logits[n] = (kept, row), line
        self.logits = torch.stack(logits) if logits else torch.empty(0, 0)

    def continuation(self, number: int) -> Continuation:
        """Prompt `number` alone, to append tokens to."""
        kept, row = self._places[number]
        return Continuation(self._forward, kept.chosen([row]).cut(self._lengths[number]))


class Continuation:
    """One prompt with several alternative continuations, all of the same length.

    Args:
        past: what is kept of the prompt.
    """

    def __init__(self, forward: TextForward, past: TextPast) -> None:
        self._forward, self._past = forward, past

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Logits (len(tokens), vocabulary) after each token, float32.

        Args:
            parents: which continuation each token extends; the first time 0, the prompt.
        """
        ids = torch.tensor(list(tokens), device=self._forward.device)[:, None]
        states, self._past = self._forward.states(ids, self._past.chosen(parents))
        return self._forward.logits(states[:, -1])


UNFIT = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""Errors of a model that cannot be continued; `before_each_layer` ends a pass by others."""


@torch.inference_mode()
def plain_forward(model: Any) -> TextForward:
    """A bare model's forward pass: with a cache where that gives the model's own logits. For models
    of no supported family, prompts of several lengths and continuations are compared with the
    model's whole pass.

    Raises:
        ModelError: the model is of no supported family, and its logits depend on later tokens, too,
            or are no numbers in its type.
    """
    whole, cached = WholeForward(model), ModelForward(model)
    if model.config.model_type in FAMILIES:
        return cached
    first = (torch.arange(1, 14) * 7 % model.config.vocab_size).tolist()
    prompts = [first, [*first[:3], *first[9:6:-1]], [*first[:3], *first[9:3:-1]]]

    def logits(*tokens: int) -> Tensor:
        states, _ = whole.states(torch.tensor([tokens], device=whole.device))
        return whole.logits(states[0])

    apart = 1e-4 if model.dtype == torch.float32 else 3e-2
    if not _close(logits(*first)[5], logits(*first[:6])[-1], apart):
        dtype, kind = str(model.dtype).removeprefix("torch."), model.config.model_type
        raise ModelError(
            f"logits of models of type {kind!r} depend on later tokens, too, or are no numbers in "
            f"{dtype}, so that passages cannot be read from left to right",
            "choose a causal language model, or use --dtype float32",
        )
    longer = [*prompts, [*prompts[1], 9], [*prompts[1], 9, 11]]
    wanted = torch.stack([logits(*ids)[-1] for ids in longer])
    try:
        batch = PromptBatch(cached, prompts)
        more = batch.continuation(1)
        later = more.append([0, 0], [5, 9])[1], more.append([1], [11])[0]
    except UNFIT:  # the model can be used without a cache
        return whole
    return cached if _close(torch.stack([*batch.logits, *later]), wanted, apart) else whole


def _close(logits: Tensor, wanted: Tensor, apart: float) -> bool:
    """Whether logits differ by no more than rounding, as a share `apart` of the largest number;
    minus infinity is in the same places."""
    numbers = wanted.isfinite()
    if not numbers.any() or not torch.equal(logits[~numbers], wanted[~numbers]):
        return False
    difference, largest = (logits - wanted)[numbers].abs().max(), wanted[numbers].abs().max()
    return bool(difference <= apart * largest)

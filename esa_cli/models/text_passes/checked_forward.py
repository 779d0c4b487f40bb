"""The forward pass of models that ESA's methods cannot run in, which is tried before it is used.

What holds for the supported families need not hold for others: that prompts can be padded and their
cache be continued, and that logits are the last matrix's output alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.errors import ModelError
from esa_cli.models.attachment.supported_families import FAMILIES
from esa_cli.models.text_passes.prompt_batch import PromptBatch
from esa_cli.models.text_passes.text_forward import ModelForward, TextForward

UNFIT = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""Errors of a model that cannot be continued; `before_each_layer` ends a pass by others."""
_LENGTHS, _SHARED = (13, 6, 9), 3
"""Of the prompts that are tried, and the first tokens that these have in common."""


@dataclass(frozen=True)
class TokenPast:
    """Nothing but the tokens (B, N) themselves."""

    ids: Tensor

    def chosen(self, rows: Sequence[int]) -> TokenPast:
        """See `TextPast`."""
        return TokenPast(self.ids[[*rows]])

    def cut(self, length: int) -> TokenPast:
        """See `TextPast`."""
        return TokenPast(self.ids[:, :length])


class WholeForward:
    """A forward pass without a cache: all tokens are processed each time, one prompt at a time.

    Args:
        model: any causal language model of transformers.
    """

    pads = False

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def device(self) -> torch.device:
        """Of the model's first weights."""
        device: torch.device = self._model.device
        return device

    def states(self, ids: Tensor, past: TokenPast | None = None) -> tuple[Tensor, TokenPast]:
        """See `TextForward`; the states are the model's own logits (B, T, vocabulary)."""
        every = ids if past is None else torch.cat((past.ids, ids), 1)
        logits: Tensor = self._model(input_ids=every, use_cache=False).logits
        return logits[:, -ids.shape[1] :].to(ids.device), TokenPast(every)

    def logits(self, states: Tensor) -> Tensor:
        """See `TextForward`."""
        return states.float()


def plain_forward(model: Any) -> TextForward:
    """A bare model's forward pass: with a cache where that gives the model's own logits.

    Raises:
        ModelError: the model is of no supported family, and looks at later tokens, too, or its
            logits are no numbers in its type.
    """
    if model.config.model_type in FAMILIES:
        return ModelForward(model)
    with torch.inference_mode():
        return _tried(model)


def _tried(model: Any) -> TextForward:
    whole, cached = WholeForward(model), ModelForward(model)
    first = torch.arange(1, 1 + max(_LENGTHS)) * 7 % model.config.vocab_size
    prompts = [first.tolist()]
    for length in _LENGTHS[1:]:
        prompts.append([*first[:_SHARED].tolist(), *first[-length:][_SHARED:].flip(0).tolist()])
    alone = torch.stack([_last(whole, ids) for ids in prompts])
    every, _ = whole.states(first[None].to(whole.device))
    _check_finite(model, torch.cat((alone, every[0].float())))
    apart = 1e-4 if model.dtype == torch.float32 else 3e-2
    if not _close(every[0, 5].float(), _last(whole, prompts[0][:6]), apart):
        raise ModelError(
            f"models of type {model.config.model_type!r} look at later tokens, too, so that they "
            "cannot read passages from left to right",
            "choose a causal language model",
        )
    try:
        batch = PromptBatch(cached, prompts, _SHARED)
        more = batch.continuation(1)
        later = more.append([0, 0], [5, 9])[1], more.append([1], [11])[0]
    except UNFIT:  # the model can be used without a cache
        return whole
    then = [_last(whole, [*prompts[1], 9]), _last(whole, [*prompts[1], 9, 11])]
    found = torch.stack([*batch.logits, *later])
    return cached if _close(found, torch.stack([*alone, *then]), apart) else whole


def _check_finite(model: Any, logits: Tensor) -> None:
    """Raises ModelError where logits (n, vocabulary) are no numbers: NaN is close to nothing, and
    the model would be refused for another reason."""
    # A model may give tokens that it never writes minus infinity.
    if not bool((logits.isnan() | logits.isposinf()).any() | logits.isinf().all()):
        return
    dtype, kind = str(model.dtype).removeprefix("torch."), model.config.model_type
    raise ModelError(
        f"logits of models of type {kind!r} must be numbers, got NaN or infinity in {dtype}",
        "check the model's files: weights that are damaged give such logits"
        if model.dtype == torch.float32
        else "use --dtype float32; in Python, dtype='float32'",
    )


def _last(whole: WholeForward, ids: Sequence[int]) -> Tensor:
    """Logits (vocabulary,) behind a prompt."""
    states, _ = whole.states(torch.tensor([list(ids)], device=whole.device))
    return whole.logits(states[0, -1])


def _close(found: Tensor, wanted: Tensor, apart: float) -> bool:
    """Whether logits differ by no more than rounding, as a share `apart` of the largest number;
    minus infinity is in the same places."""
    numbers = wanted.isfinite()
    difference, largest = (found - wanted)[numbers].abs().max(), wanted[numbers].abs().max()
    return torch.equal(found[~numbers], wanted[~numbers]) and bool(difference <= apart * largest)

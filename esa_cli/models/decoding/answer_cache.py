"""A transformers `Cache` of fixed size for an answer's next tokens, of which the device alone knows
how many there are: what a recorded forward call reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from esa_cli.attention.answer_keys import AnswerKeys
from esa_cli.attention.answer_selection import AnswerSelection
from esa_cli.attention.method import Method
from esa_cli.models.attachment.cached_rows import EsaLayer
from esa_cli.models.attachment.forward_pass import ForwardPass
from esa_cli.models.decoding.answer_layer import AnswerLayer
from esa_cli.models.decoding.kept_keys_layer import KeptKeysLayer, TokenPlace
from esa_cli.models.decoding.selecting_layer import SelectingLayer


class AnswerCache(Cache):
    """The keys and values of all layers, for tokens of an answer.

    Args:
        forward, method: of the attached model. layers: its cache's layers; those that keep no rows
            are used as they are. given: of each layer that keeps some. heads: H by layer.
        start: position of the first token. room: how many are to come. traced: queries and
            log-sum-exps are kept, of layers that run the method.

    Attributes:
        rows: the layers that keep rows.
        step: (1,) number of the next token, from 0; the host counts it up.
    """

    def __init__(
        self, forward: ForwardPass, method: Method, layers: Sequence[Any],
        given: Iterable[AnswerKeys | AnswerSelection], heads: Mapping[int, int], start: int,
        room: int, traced: bool, device: torch.device,
    ) -> None:  # fmt: skip
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        every, keys = list(layers), iter(given)
        for i, one in enumerate(layers):
            if isinstance(one, EsaLayer):
                own, trace = next(keys), (heads.get(i, 0), traced and i in heads, self.step)
                every[i] = (
                    KeptKeysLayer(i, one.latent, own, start, room, *trace)
                    if isinstance(own, AnswerKeys)
                    else SelectingLayer(i, one.latent, own, *trace)
                )
        super().__init__(layers=every)
        self.rows: list[AnswerLayer] = [one for one in every if isinstance(one, AnswerLayer)]
        self.forward_pass, self.method, self.start = forward, method, start
        self._places: dict[tuple[Any, ...], TokenPlace] = {}

    def begin_token(self) -> Tensor:
        """Begins a forward call of one token; returns its position in the text, (1, 1)."""
        self._places = {}
        self.forward_pass.open(None)
        return (self.step + self.start)[None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        layer: Any = self.layers[layer_idx]
        if isinstance(layer, KeptKeysLayer):
            if layer.kind not in self._places:
                self._places[layer.kind] = layer.place()
            layer.at = self._places[layer.kind]
        chunk: tuple[Tensor, Tensor] = layer.update(key_states, value_states)
        self.forward_pass.enter(layer_idx, self)
        return chunk

    def attend(
        self, attention: Callable[..., Tensor], layer: int, q: Tensor, sink: Tensor | None
    ) -> Tensor:
        """See `AttendingCache`; the method has selected before."""
        one: Any = self.layers[layer]
        out: Tensor = one.attend(q, sink)
        return out

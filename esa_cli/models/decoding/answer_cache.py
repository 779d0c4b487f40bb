"""A transformers `Cache` of fixed size for an answer's next tokens, of which the device alone knows
how many there are: what a recorded forward call reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from esa_cli.attention.answer_keys import AnswerKeys
from esa_cli.attention.cap_and_sink import with_sink
from esa_cli.attention.kernels.dispatch import first_keys_kernel
from esa_cli.attention.method import Method
from esa_cli.attention.temperature import with_temperature, without_temperature
from esa_cli.models.attachment.cached_rows import EsaLayer, in_memory
from esa_cli.models.attachment.forward_pass import ForwardPass

MULTIPLE = 16
"""Of which the number of rows is one: kernels with masks need that."""


class TokenPlace(NamedTuple):
    """One token's place: `slot` (1,), the row of its key; `ends` (2,) int32, 0 and the number of
    rows it attends to; cosines and sines (1, R) of its position."""

    slot: Tensor
    ends: Tensor
    cos: Tensor
    sin: Tensor


class AnswerLayer(EsaLayer):  # type: ignore[no-untyped-call]
    """One layer's rotated keys, its values, and the new tokens' as they came.

    Args:
        layer, latent: as of `EsaLayer`. given: of the tokens before. start: position of the first
            new token in the text. room: how many are to come. heads: H. traced: queries and
            log-sum-exps of the new tokens are kept.

    Attributes:
        step: (1,) number of the next token, from 0. at: its place.
        key_rows, value_rows: (G, rows, D); keys are rotated.
        fresh: (2, G, room, D) keys and values of the new tokens, unrotated.
        observed: queries (H, room, D) and log-sum-exps (H, room); None where they are not kept.
    """

    at: TokenPlace

    def __init__(
        self, layer: int, latent: bool, given: AnswerKeys, start: int, room: int, heads: int,
        traced: bool, step: Tensor,
    ) -> None:  # fmt: skip
        super().__init__(layer, in_memory, latent)
        groups, self.count, dim = given.keys.shape
        most = self.count + room
        self.slots = min(given.window or most, most)
        self.rope, self.position, self.scale = given.rope, given.position, given.scale
        self.cap, self.kernel, self.start, self.step = given.cap, given.kernel, start, step
        self.temperature, self.near = given.temperature, given.near
        rows = -(-self.slots // MULTIPLE) * MULTIPLE
        # Zeros: rows that are not attended to are multiplied with weights of 0.
        self.key_rows = given.keys.new_zeros(groups, rows, dim)
        self.value_rows = self.key_rows.clone()
        self.fresh = self.key_rows.new_zeros(2, groups, room, dim)
        self.key_rows[:, : self.count], self.value_rows[:, : self.count] = given.keys, given.values
        self.observed: tuple[Tensor, Tensor] | None = None
        if traced:
            lse = torch.zeros(heads, room, device=step.device)
            self.observed = self.key_rows.new_zeros(heads, room, dim), lse

    @property
    def kind(self) -> tuple[Any, ...]:
        """Layers of one kind have the same `TokenPlace`."""
        return self.rope, self.position, self.count, self.slots, self.key_rows.dtype

    def place(self) -> TokenPlace:
        """The next token's place."""
        step, last = self.step, self.step + self.count
        ends = torch.cat((torch.zeros_like(step), (last + 1).clamp(max=self.slots))).int()
        angles = self.rope.angles(step + self.position, self.key_rows)
        return TokenPlace(last % self.slots, ends, *angles)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Keeps the token's key and value, (G, 1, D) each."""
        at = self.at
        self.key_rows.index_copy_(1, at.slot, self.rope.turn(keys, at.cos, at.sin))
        self.value_rows.index_copy_(1, at.slot, values)
        self.fresh.index_copy_(2, self.step, torch.stack((keys, values)))

    def attend(self, q: Tensor, sink: Tensor | None) -> Tensor:
        """Attention output (H, 1, D) of the token's queries (H, 1, D), unrotated."""
        kernel = first_keys_kernel(q, self.kernel, self.cap)
        assert kernel is not None, "checked before"
        q = without_temperature(q, self.temperature, self.step + self.start)
        scaled = with_temperature(q, self.temperature, self.step + self.near)
        query = self.rope.turn(scaled, self.at.cos, self.at.sin)
        capped = {"cap": self.cap} if self.cap else {}
        rows = self.key_rows, self.value_rows
        out, lse = with_sink(*kernel(query, *rows, self.at.ends, self.scale, **capped), sink)
        if self.observed is not None:
            self.observed[0].index_copy_(1, self.step, q)
            self.observed[1].index_copy_(1, self.step, lse)
        return out

    def get_seq_length(self) -> int:
        return self.start


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
        given: Iterable[AnswerKeys], heads: Mapping[int, int], start: int, room: int, traced: bool,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        every, keys = list(layers), iter(given)
        for i, one in enumerate(layers):
            if isinstance(one, EsaLayer):
                own, watched = next(keys), traced and i in heads
                every[i] = AnswerLayer(
                    i, one.latent, own, start, room, heads.get(i, 0), watched, self.step
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

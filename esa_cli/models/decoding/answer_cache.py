"""A transformers `Cache` of fixed size for an answer's next tokens, of which the device alone knows
how many there are: what a recorded forward call reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from esa_cli.attention.answer_keys import AnswerKeys
from esa_cli.attention.cap_and_sink import with_sink
from esa_cli.attention.kernels.dispatch import first_keys_kernel
from esa_cli.attention.method import Method
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


class AnswerLayer(CacheLayerMixin):
    """One layer's rotated keys, its values, and the new tokens' as they came.

    Args:
        given: of the tokens before. room: how many tokens are to come. heads: H. traced: queries
            and log-sum-exps of the new tokens are kept.

    Attributes:
        key_rows, value_rows: (G, rows, D); keys are rotated.
        fresh: (2, G, room, D) keys and values of the new tokens, unrotated.
        observed: queries (H, room, D) and log-sum-exps (H, room); None where they are not kept.
    """

    is_sliding = False

    def __init__(self, given: AnswerKeys, room: int, heads: int, traced: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        groups, self.count, dim = given.keys.shape
        most = self.count + room
        self.slots = min(given.window or most, most)
        self.rope, self.position, self.scale = given.rope, given.position, given.scale
        self.cap, self.kernel = given.cap, given.kernel
        rows = -(-self.slots // MULTIPLE) * MULTIPLE
        # Zeros: rows that are not attended to are multiplied with weights of 0.
        self.key_rows = given.keys.new_zeros(groups, rows, dim)
        self.value_rows, self.fresh = (
            self.key_rows.clone(),
            self.key_rows.new_zeros(2, groups, room, dim),
        )
        self.key_rows[:, : self.count], self.value_rows[:, : self.count] = given.keys, given.values
        self.observed: tuple[Tensor, Tensor] | None = None
        if traced:
            lse = torch.zeros(heads, room, device=self.key_rows.device)
            self.observed = self.key_rows.new_zeros(heads, room, dim), lse

    @property
    def kind(self) -> tuple[Any, ...]:
        """Layers of one kind have the same `TokenPlace`."""
        rows = self.key_rows
        return self.rope, self.position, self.count, self.slots, rows.dtype, rows.device

    def place(self, step: Tensor) -> TokenPlace:
        """The place of new token number `step` (1,), from 0."""
        last = step + self.count
        ends = torch.cat((torch.zeros_like(step), (last + 1).clamp(max=self.slots))).int()
        angles = self.rope.angles(step + self.position, self.key_rows)
        return TokenPlace(last % self.slots, ends, *angles)

    def write(self, k: Tensor, v: Tensor, step: Tensor, place: TokenPlace) -> None:
        """Keeps the token's key and value (G, 1, D)."""
        self.key_rows.index_copy_(1, place.slot, self.rope.turn(k, place.cos, place.sin))
        self.value_rows.index_copy_(1, place.slot, v)
        self.fresh.index_copy_(2, step, torch.stack((k, v)))

    def attend(self, q: Tensor, sink: Tensor | None, step: Tensor, place: TokenPlace) -> Tensor:
        """Attention output (H, 1, D) of the token's queries (H, 1, D), unrotated."""
        kernel = first_keys_kernel(q, self.kernel, self.cap)
        assert kernel is not None, "checked before"
        query, capped = self.rope.turn(q, place.cos, place.sin), {"cap": self.cap}
        out, lse = kernel(
            query,
            self.key_rows,
            self.value_rows,
            place.ends,
            self.scale,
            **(capped if self.cap else {}),
        )
        out, lse = with_sink(out, lse, sink)
        if self.observed is not None:
            self.observed[0].index_copy_(1, step, q)
            self.observed[1].index_copy_(1, step, lse)
        return out

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the rows are there."""

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Not called: `AnswerCache.update` is."""
        raise NotImplementedError

    def get_seq_length(self) -> int:
        return self.count

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.count + query_length, 0

    def get_max_length(self) -> int:
        return -1


class AnswerCache(Cache):
    """The keys and values of all layers, for tokens of an answer.

    Args:
        forward, method: of the attached model. given: of each layer. heads: H of each layer.
        start: position of the first token. room: how many are to come. traced: queries and
            log-sum-exps are kept, of layers that run the method.

    Attributes:
        step: (1,) number of the next token, from 0; the host counts it up.
    """

    def __init__(
        self, forward: ForwardPass, method: Method, given: Iterable[AnswerKeys],
        heads: Sequence[int], start: int, room: int, traced: bool,
    ) -> None:  # fmt: skip
        self.answer_layers = [
            AnswerLayer(one, room, count, traced and one.window is None)
            for one, count in zip(given, heads, strict=True)
        ]
        super().__init__(layers=[*self.answer_layers])
        self.forward_pass, self.method, self.start = forward, method, start
        device = self.answer_layers[0].key_rows.device
        self.step = torch.zeros(1, dtype=torch.long, device=device)
        self._places: dict[tuple[Any, ...], TokenPlace] = {}

    def begin_token(self) -> Tensor:
        """Begins a forward call of one token; returns its position in the text, (1, 1)."""
        self._places = {}
        return (self.step + self.start)[None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        layer = self.answer_layers[layer_idx]
        layer.write(key_states[0], value_states[0], self.step, self._place(layer))
        self.forward_pass.enter(layer_idx, self)
        return key_states, value_states

    def attend(
        self, attention: Callable[..., Tensor], layer: int, q: Tensor, sink: Tensor | None
    ) -> Tensor:
        """See `AttendingCache`; the method has selected before."""
        one = self.answer_layers[layer]
        return one.attend(q, sink, self.step, self._place(one))

    def _place(self, layer: AnswerLayer) -> TokenPlace:
        if layer.kind not in self._places:
            self._places[layer.kind] = layer.place(self.step)
        return self._places[layer.kind]

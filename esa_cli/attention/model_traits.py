"""What single families of models need.

Attention temperature (Ministral 3); norms after the rotation (Hunyuan); layers that see a window
only (Gemma, gpt-oss, OLMo 3); layers that read another layer's keys and values (Gemma 3n, 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esa_cli.attention.algebra import soft_capped, with_sink
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.attention.method import Method
from esa_cli.attention.query_state import QueryState
from esa_cli.attention.rope import Rope
from esa_cli.attention.step import LayerState, Projection
from esa_cli.errors import ModelError

Temperature = Callable[[Tensor], Tensor]
"""Factors (n,) of queries at positions (n,)."""


def with_temperature(q: Tensor, factors: Temperature | None, at: Tensor) -> Tensor:
    """Queries (H, n, D) times the factors of positions (n,); as they are where a model has none."""
    return q if factors is None else q * factors(at.to(q.device, non_blocking=True))[:, None].to(q)


def without_temperature(q: Tensor, factors: Temperature | None, at: Tensor) -> Tensor:
    """Queries (H, n, D) divided by the factors of positions (n,)."""
    return q if factors is None else q / factors(at.to(q.device, non_blocking=True))[:, None].to(q)


class WeightedRope(Rope):
    """Rotary embedding of models that norm queries and keys after rotating them (Hunyuan).

    Such a model's query is w_q * R(q) / rms(q), its key w_k * R(k) / rms(k), with learned weights w
    of each dimension. rms is that of the rotated vector as of the unrotated one, so with q' and k'
    the normed ones before w,

        query . key = sum of w_q w_k R(q') R(k') = (s * R(q')) . (s * R(k')), s = sqrt(w_q w_k)

    The attached model does not rotate, and caches w_k * k'. So R(x) = s * R(x / w_k) is that of
    cached keys, and of queries that `as_key` made alike.

    Args:
        plain: the rotary embedding itself. query, key: w_q and w_k (D,).

    Raises:
        ModelError: a weight is 0, or those of a query and a key differ in their sign.
    """

    def __init__(self, plain: Rope, query: Tensor, key: Tensor) -> None:
        super().__init__(plain.module, plain.spare, plain.pairs)
        query, key = query.detach(), key.detach()
        product = query.float() * key.float()
        if not bool((product > 0).all()):
            raise ModelError(
                "the weights of queries and keys after their rotation must not be 0 and must have "
                "the same sign",
                "use another model",
            )
        self._plain, self._query, self._key = plain, query, key
        self._before, self._after = 1 / key.float(), product.sqrt()

    def changed(self, inverse: Tensor, factor: float, spare: bool) -> Rope:
        return WeightedRope(self._plain.changed(inverse, factor, spare), self._query, self._key)

    def cos_sin(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        return self._plain.cos_sin(positions, like.float())

    def angles(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        return self._plain.angles(positions, like.float())

    def as_key(self, q: Tensor) -> Tensor:
        return q * (self._key / self._query).to(q)

    def gain(self, like: Tensor) -> Tensor:
        return self._plain.gain(like) * (self._before * self._after).to(like)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = self._plain.turn(x.float() * self._before.to(x.device), cos, sin)
        return (turned * self._after.to(x.device)).to(x.dtype)


AT_ONCE = 512
"""Most queries in a block, each of which is multiplied with up to AT_ONCE + W - 1 keys."""


def masked_groups(device: torch.device) -> bool:
    """Whether fused attention with a mask takes fewer key heads than query heads there."""
    return device.type != "cuda"


class SlidingAttention:
    """Causal attention to the last W tokens, the query's own included, as the model has it.

    In models that mix such layers with full ones, the full ones run the method. A window's keys are
    at their distances in the text, so positions need no encoding.

    Args:
        window: W, in tokens. rope: the layers' rotary embedding. scale: factor of q . k.
        cap: soft cap of the logits; 0: none.
    """

    def __init__(self, window: int, rope: Rope, scale: float, cap: float = 0.0) -> None:
        self.window, self.rope, self.scale, self.cap = window, rope, scale, cap

    def __call__(
        self, memory: LayerMemory, q: Tensor, query: QueryState, sink: Tensor | None = None
    ) -> Tensor:
        """Attention output (H, n, D) of the last n tokens of the store, queries q (H, n, D).

        Args:
            query: not used; the layer attends to the same tokens whatever is asked.
            sink: (H,) logits of an attention sink; None: the model has none.
        """
        stop = len(memory.store)
        start = stop - q.shape[1]
        out = torch.empty_like(q)
        for first in range(start, stop, AT_ONCE):
            last = min(first + AT_ONCE, stop)
            rows = slice(first - start, last - start)
            out[:, rows] = self._attend(memory, q[:, rows], first, last, sink)
        return out

    def _attend(
        self, memory: LayerMemory, q: Tensor, start: int, stop: int, sink: Tensor | None
    ) -> Tensor:
        """Output (H, C, D) of the queries of [start, stop)."""
        low = max(0, start - self.window + 1)
        keys, values = memory.store.span(low, stop)
        # Only differences of positions count: small ones keep the rotation exact.
        at = torch.arange(stop - low)
        query, keys = self.rope.rotate(q, at[start - low :]), self.rope.rotate(keys, at)
        seen = None if stop - start == 1 else self._seen(start - low, stop - low, q.device)
        if self.cap or sink is not None:
            return self._plain(query, keys, values, seen, sink)
        shared = seen is None or masked_groups(q.device)
        if not shared:
            share = q.shape[0] // keys.shape[0]
            keys, values = (x.repeat_interleave(share, dim=0) for x in (keys, values))
        out: Tensor = torch.nn.functional.scaled_dot_product_attention(
            query[None], keys[None], values[None], seen, scale=self.scale, enable_gqa=shared
        )
        return out[0]

    def _seen(self, first: int, stop: int, device: torch.device) -> Tensor:
        """(C, stop) bool: the keys that queries [first, stop) see. A single one sees all."""
        at = torch.arange(stop, device=device)
        distance = at[first:, None] - at[None]
        return (distance >= 0) & (distance < self.window)

    def _plain(
        self, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, sink: Tensor | None
    ) -> Tensor:
        """In plain operations, float32: fused attention has neither cap nor sink."""
        heads, count, dim = q.shape
        grouped = q.float().reshape(k.shape[0], -1, dim)
        logits = (grouped @ k.float().transpose(1, 2) * self.scale).view(heads, count, -1)
        logits = soft_capped(logits, self.cap)
        if seen is not None:
            logits = logits.masked_fill_(~seen, -torch.inf)
        lse = logits.logsumexp(dim=-1)
        weights = logits.sub_(lse[..., None]).exp_().view(k.shape[0], -1, k.shape[1])
        out = (weights @ v.float()).view(heads, count, dim)
        return with_sink(out, lse, sink)[0].to(q.dtype)


class ReaderStates(LayerState):
    """What selectors keep of the layers that read one layer's rows, by layer and class of selector.

    It is a state of that layer, so that it is cropped, and kept with a document, as others are.
    """

    def __init__(self) -> None:
        self.layers: dict[int, dict[type, LayerState]] = {}

    def crop(self, length: int) -> None:
        for states in self.layers.values():
            for state in states.values():
                state.crop(length)


@dataclass
class SharedMemory(LayerMemory):
    """The memory of a layer that has queries alone, and reads another layer's keys and values.

    Store, compressor and reduced keys are the other layer's, the selection and what selectors keep
    of it are its own. The compressor is fitted to the queries of the layer that keeps the rows.

    Args:
        source: the memory of the layer that keeps the rows.
    """

    source: LayerMemory = field(kw_only=True)

    @staticmethod
    def of(layer: int, source: LayerMemory) -> SharedMemory:
        """The view of the model's layer with this index."""
        readers = source.states.setdefault(ReaderStates, ReaderStates())
        assert isinstance(readers, ReaderStates), "states are kept by their class"
        states = readers.layers.setdefault(layer, {})
        return SharedMemory(layer, source.store, states, source=source)

    def learn(self, method: Method, rope: Callable[[], Rope], q: Tensor, start: int) -> None:
        """Nothing: the compressor is the source's."""

    def project(self, method: Method, upto: int) -> Projection | None:
        """As the source, whose reduced keys these are; None, which is whole keys, before the source
        has selected. A model may leave out all but the last token of its input, so that M is
        there earlier than for the source: the compressor would be fitted to fewer tokens."""
        return self.source.project(method, upto) if self.source.fitted else None

    def forget(self) -> None:
        """Frees copies of rows, which may be other ones from now on."""
        self.fetched = None

    def crop(self, tokens: int) -> None:
        """Nothing but `forget`: the source is cropped."""
        self.forget()

    def release(self) -> None:
        """As `forget`; the source frees the store's."""
        self.forget()

"""Efficient Selective Attention of one layer: Eq. 1, over [I, M_k, L, C].

    far    I and the selected M_k, at the positions the encoding gives them
    local  L, and causally C itself, at consecutive positions
and the three are fused by their log-sum-exp (Algorithm 1). No mask tensor is ever built.

Knows nothing about the host model; `seam` calls it with a chunk and the layer's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .compressors import Moments, flatten_keys, fold
from .errors import EsaError, PluginError, PresetError
from .kernels import attend, merge
from .method import Method
from .protocols import KVStore, Projection
from .rotary import Rope
from .step import Step


@dataclass
class LayerMemory:
    """What one layer remembers of one document: its store, and the compressor fitted on it.

    `shared` is one dict for all layers of the document.
    """

    layer: int
    store: KVStore
    shared: dict[str, Any] = field(default_factory=dict)
    moments: Moments = field(default_factory=Moments)
    projection: Projection | None = None
    fitted: bool = False


@dataclass(frozen=True)
class Plan:
    """One chunk [start, stop) of a forward call, and whether it selects.

    `decoding`: it is the call's only token.
    """

    start: int
    stop: int
    select: bool
    decoding: bool = False


def chunks(start: int, stop: int, size: int, last: bool, every: bool) -> Iterator[Plan]:
    """Cuts [start, stop) into chunks of at most `size`, the short one first.

    Args:
        last: the last chunk selects (it holds the question). every: all chunks select.
    """
    low = start
    high = start + ((stop - start - 1) % size) + 1
    while low < stop:
        select = every or (last and high == stop)
        yield Plan(low, high, select, decoding=stop - start == 1)
        low, high = high, high + size


class Attention:
    """Runs a method on one layer's chunk.

    Args:
        method: the method. rope: the host's rotary embedding. scale: the host's attention scale.
    """

    def __init__(self, method: Method, rope: Rope, scale: float) -> None:
        self.method, self.rope, self.scale = method, rope, scale

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        return attend(q, k, v, causal=causal, scale=self.scale, kernel=self.method.kernel)

    def _fit(self, memory: LayerMemory, q: Tensor, start: int) -> None:
        """Gathers the moments the compressor asks for, until it has seen enough tokens."""
        method = self.method
        if memory.fitted or not method.score.features:
            return
        moments = memory.moments
        # Tokens read again after a crop are not counted twice.
        q, start = q[:, max(0, moments.seen - start) :], max(start, moments.seen)
        missing = method.compressor.fit_tokens - moments.count
        if missing > 0 and q.shape[1]:
            q = q[:, :missing]
            moments.seen = start + q.shape[1]
            if getattr(method.score, "rotate", False):
                at = torch.full((q.shape[1],), method.position.distance, device=q.device)
                q = self.rope.rotate(q, at)
            keys, _ = memory.store.span(start, start + q.shape[1])
            moments.add(fold(q, memory.store.heads), flatten_keys(keys))

    def project(self, memory: LayerMemory, upto: int) -> Projection | None:
        """The layer's projection, with reduced keys for every token before `upto`."""
        if not self.method.score.features:
            return None
        if not memory.fitted:
            memory.projection = self._fitted(memory)
            memory.fitted = True
            memory.moments = Moments()
        if memory.projection is not None:
            for _, keys in memory.store.key_blocks(memory.store.reduced, upto):
                memory.store.append_features(memory.projection.keys(flatten_keys(keys)))
        return memory.projection

    def _fitted(self, memory: LayerMemory) -> Projection | None:
        """The compressor's projection, tried on one key so that a wrong width is named here."""
        projection = self.method.compressor.fit(memory.layer, memory.moments)
        if projection is not None:
            store = memory.store
            keys = flatten_keys(store.span(0, min(1, len(store)))[0])
            try:
                projection.keys(keys)
            except RuntimeError as error:
                raise PresetError(
                    f"the compressor does not fit layer {memory.layer} of this model, whose folded "
                    f"keys have {keys.shape[1]} dimensions",
                    "it was made for another model",
                ) from error
        return projection

    def _local(self, start: int) -> int:
        """l_L of a chunk that starts at `start`: everything cached while attention is plain."""
        window = self.method.window
        return start if start <= window.dense_below else min(window.local, start)

    def _settled(self, memory: LayerMemory, plan: Plan) -> int:
        """l_L of this chunk. An answer goes on as its question was read, plain or selecting: it
        must not lose sight of the text where it happens to grow beyond `dense`."""
        local = self._local(plan.start)
        return plan.start if plan.decoding and memory.shared.get("plain") else local

    def _select(self, memory: LayerMemory, q: Tensor, plan: Plan, local: int) -> Tensor:
        """Absolute positions of I and the selected middle tokens, ascending (I + K,)."""
        window = self.method.window
        low = min(window.initial, plan.start - local)
        initial = torch.arange(low, device=q.device)
        high = plan.start - local
        if not plan.select or high <= low or window.selected == 0:
            return initial
        projection = self.project(memory, high)
        step = self._step(memory, q, plan.start, low, local, projection, plan.decoding)
        return torch.cat((initial, self._picked(step, window.selected).to(q.device) + low))

    def _picked(self, step: Step, budget: int) -> Tensor:
        """The selector's choice, checked: a wrong one would read memory that holds nothing.

        Raises:
            PluginError: the selector fails, or breaks its protocol.
        """
        name = type(self.method.selector).__name__
        try:
            picked = self.method.selector.select(step, budget)
        except (EsaError, RuntimeError, MemoryError):
            raise  # RuntimeError: torch's way of saying that memory ran out
        except Exception as error:
            raise PluginError(
                f"selector {name} fails: {type(error).__name__}: {error}",
                "`esa plugins check FILE` shows more",
            ) from error
        count = picked.numel()
        wrong = count > min(budget, step.middle)
        if count and not wrong:
            inside = int(picked[0]) >= 0 and int(picked[-1]) < step.middle
            wrong = not inside or bool((picked[1:] <= picked[:-1]).any())
        if wrong:
            raise PluginError(
                f"selector {name} does not return ascending offsets below {step.middle}, "
                f"at most {min(budget, step.middle)} of them",
                "`esa plugins check FILE` shows more",
            )
        return picked

    def _step(
        self,
        memory: LayerMemory,
        q: Tensor,
        start: int,
        low: int,
        local: int,
        projection: Projection | None = None,
        decoding: bool = False,
    ) -> Step:
        return Step(
            layer=memory.layer,
            start=start,
            queries=q,
            store=memory.store,
            low=low,
            high=start - local,
            local=local,
            distance=self.method.position.distance,
            scale=self.scale,
            rope=self.rope,
            score=self.method.score,
            projection=projection,
            decoding=decoding,
            shared=memory.shared,
        )

    def chunk(self, memory: LayerMemory, q: Tensor, plan: Plan) -> Tensor:
        """Attention output (H, C, D) of the chunk's queries q (H, C, D), unrotated.

        The chunk's own keys and values are already in the store.
        """
        start, stop = plan.start, plan.stop
        local = self._settled(memory, plan)
        far = self._select(memory, q, plan, local)
        if stop - start == 1:
            return self._decode(memory, q, far, start, local)
        near = self.method.position.near(local, stop - start, start, far.shape[0])
        query = self.rope.rotate(q, near.query.to(q.device))
        keys, values = memory.store.span(start - local, stop)
        keys = self.rope.rotate(keys, near.key.to(q.device))
        parts = [self._attend(query, keys[:, local:], values[:, local:], True)]
        if local:
            parts.append(self._attend(query, keys[:, :local], values[:, :local], False))
        if far.shape[0]:
            place = self.method.position.far(far, local, stop - start, start)
            far_keys, far_values = memory.store.gather(far)
            far_keys = self.rope.rotate(far_keys, place.key.to(q.device))
            far_query = self.rope.rotate(q, place.query.to(q.device))
            parts.append(self._attend(far_query, far_keys, far_values, False))
        return merge(parts)[0]

    def _decode(
        self, memory: LayerMemory, q: Tensor, far: Tensor, start: int, local: int
    ) -> Tensor:
        """One query sees everything in one call: far keys are moved to where, seen from the near
        query's position, they are as far away as the encoding wants them."""
        device = q.device
        near = self.method.position.near(local, 1, start, far.shape[0])
        stand, positions = near.query.to(device), near.key.to(device)
        keys, values = memory.store.span(start - local, start + 1)
        if far.shape[0]:
            place = self.method.position.far(far, local, 1, start)
            far_keys, far_values = memory.store.gather(far)
            moved = place.key.to(device) + stand - place.query.to(device)
            positions = torch.cat((moved, positions))
            keys, values = torch.cat((far_keys, keys), 1), torch.cat((far_values, values), 1)
        # Only differences count; a base of zero keeps positions inside the rotary table.
        base = positions.min()
        query = self.rope.rotate(q, stand - base)
        keys = self.rope.rotate(keys, positions - base)
        return self._attend(query, keys, values, False)[0]

    def __call__(
        self,
        memory: LayerMemory,
        q: Tensor,
        *,
        last: bool = True,
        every: bool = True,
        asking: bool = False,
    ) -> Tensor:
        """Attention output (H, n, D) of the last n tokens of the store, queries q (H, n, D).

        Args:
            last: the final chunk selects. every: all chunks do.
            asking: it is a question, and single tokens after it are its answer.
        """
        stop = len(memory.store)
        start = stop - q.shape[1]
        every = every or self.method.reading == "select"
        out = torch.empty_like(q)
        for plan in chunks(start, stop, self.method.window.chunk, last, every):
            piece = q[:, plan.start - start : plan.stop - start]
            self._fit(memory, piece, plan.start)
            observe = getattr(self.method.selector, "observe", None)
            if observe is not None:
                observe(self._step(memory, piece, plan.start, 0, self._local(plan.start)))
            out[:, plan.start - start : plan.stop - start] = self.chunk(memory, piece, plan)
            if asking and not plan.decoding:
                memory.shared["plain"] = self._local(plan.start) == plan.start
        return out

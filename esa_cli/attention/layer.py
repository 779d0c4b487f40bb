"""Efficient Selective Attention of one layer: Eq. (1) over [I, M_k, L, C], as in Algorithm 1.

    near   L, and causally C itself, at consecutive positions (step 10)
    far    I and the selected M_k, at the positions of the method's encoding (step 11)
    both are fused by their log-sum-exp (steps 12-14); no mask tensor is built

`models.attachment.attach` calls it with the queries of a forward call and the layer's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from esa_cli.attention.algebra import fuse, with_sink
from esa_cli.attention.kernels import attend, attend_within
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.attention.method import Method
from esa_cli.attention.model_traits import Temperature, with_temperature, without_temperature
from esa_cli.attention.parts import blame_plugins, check_offsets, is_builtin
from esa_cli.attention.positions import token_positions
from esa_cli.attention.query_state import Phase, QueryState, SurveyComplete
from esa_cli.attention.rope import Rope, Ropes
from esa_cli.attention.step import ChunkTrace, Positions, Selection, Step
from esa_cli.attention.window import Chunk, chunks_of, is_dense, local_tokens

Part = tuple[Tensor, Tensor]
"""Attention to some of the keys: output (H, C, D) and log-sum-exp (H, C)."""


class Attention:
    """A method on one model's layers, which share it.

    Args:
        rope: the transformers model's rotary embedding. scale: its factor of q . k.
        cap: its soft cap of logits; 0: none.
        layers: indices of the model's layers that run the method, ascending; empty: not known.
        temperature: the model's factor of queries at given positions (n,), which q contains at
            those in the text; None: it has none.
    """

    def __init__(
        self, method: Method, rope: Rope, scale: float, cap: float = 0.0,
        layers: Sequence[int] = (), temperature: Temperature | None = None,
    ) -> None:  # fmt: skip
        self.method, self.rope, self.scale, self.cap = method, rope, scale, cap
        self.layers, self.temperature, self._ropes = layers, temperature, Ropes(rope)
        self._attend = partial(attend, scale=scale, kernel=method.kernel, cap=cap)
        self._builtin = is_builtin(method.selector) and is_builtin(method.score)

    def rope_at(self, length: int) -> Rope:
        """The rotary embedding when `length` tokens are cached: the model's, or the encoding's."""
        return self._ropes.at(length, self.method.position.frequencies)

    def __call__(
        self, memory: LayerMemory, q: Tensor, query: QueryState, sink: Tensor | None = None
    ) -> Tensor:
        """Attention output (H, n, D) of the last n tokens of the store, queries q (H, n, D).

        Args:
            sink: (H,) logits of the layer's attention sink; None: it has none.

        Raises:
            SurveyComplete: the selector needs no further layer of the survey pass.
            PluginError: a plugin fails; it names the plugin.
        """
        stop = len(memory.store)
        start = stop - q.shape[1]
        if query.phase is Phase.QUESTION and query.turn_start is None:
            query.turn_start = start
        q = without_temperature(q, self.temperature, torch.arange(start, stop, device=q.device))
        out, window = torch.empty_like(q), self.method.window
        with blame_plugins(vars(self.method)):
            for chunk in chunks_of(window, self.method.reading, start, stop, query):
                own = slice(chunk.start - start, chunk.stop - start)
                rope = partial(self.rope_at, chunk.stop)
                memory.learn(self.method, rope, q[:, own], chunk.start)
                out[:, own] = self.attend_chunk(memory, q[:, own], chunk, query, sink)
                if not chunk.decoding:
                    query.dense = is_dense(window, chunk.start)
        query.stop = stop
        return out

    def attend_chunk(
        self, memory: LayerMemory, q: Tensor, chunk: Chunk, query: QueryState,
        sink: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Attention output (H, C, D) of a chunk's queries q (H, C, D), unrotated; its own keys and
        values are in the store already."""
        position = self.method.position
        local = local_tokens(self.method.window, chunk, query)
        selected = self._select(memory, q, chunk, local, query)
        rows = [selected] if isinstance(selected, Tensor) else selected
        count = selected.shape[0] if isinstance(selected, Tensor) else 0
        near = position.near(local, chunk.size, chunk.start, count)
        far = [
            position.far(at, local, chunk.size, chunk.start) if at.shape[0] else Positions(at, at)
            for at in rows
        ]
        scaled = self._scaled(q, chunk.start, near)
        if isinstance(selected, Tensor) and chunk.size == 1:
            out, lse = self._attend_token(memory, scaled, chunk, local, selected, near, far[0])
        else:
            parts = self._attend_near(memory, scaled, chunk, local, near)
            parts += self._attend_far(memory, scaled, chunk, selected, far)
            out, lse = fuse(parts)
        out, lse = with_sink(out, lse, sink)
        if self.method.selector.observes:
            seen = replace(self._step(memory, q, chunk, 0, local, query), lse=lse)
            self.method.selector.observe(seen)
        if query.trace is not None:
            initial = min(self.method.window.initial, chunk.start - local)
            query.trace(
                ChunkTrace(
                    memory.layer, chunk.start, chunk.stop, initial, local, selected, near, far, q,
                    scaled, position.max_distance, self.rope_at(chunk.stop), self.scale, self.cap,
                    memory.store, lse, chunk.decoding,
                )
            )  # fmt: skip
        return out

    def _select(
        self, memory: LayerMemory, q: Tensor, chunk: Chunk, local: int, query: QueryState
    ) -> Selection:
        """Absolute positions of I and M_k, Eq. (2): ascending (I + K,), or such a tensor for each
        query head."""
        selector, high = self.method.selector, chunk.start - local
        low = min(self.method.window.initial, high)
        initial = torch.arange(low, device=q.device)
        if not chunk.select or high <= low:
            return initial
        step = self._step(memory, q, chunk, low, local, query)
        budget = int(selector.allowance(step, self.method.window.selected))
        if budget <= 0:
            return initial
        step = replace(step, projection=memory.project(self.method, high))
        offsets = selector.select(step, budget)
        if not self._builtin:
            check_offsets(offsets, step, budget)
        if query.surveying and selector.survey_complete(step):
            raise SurveyComplete
        if isinstance(offsets, Tensor):
            return torch.cat((initial, offsets.to(q.device) + low))
        return [torch.cat((initial, row.to(q.device) + low)) for row in offsets]

    def _step(
        self, memory: LayerMemory, q: Tensor, chunk: Chunk, low: int, local: int, query: QueryState
    ) -> Step:
        """The selection step of a chunk's queries q (H, C, D) over [low, start - local)."""
        return Step(
            layer=memory.layer,
            start=chunk.start,
            queries=q,
            store=memory.store,
            low=low,
            high=chunk.start - local,
            local=local,
            distance=self.method.position.distance,
            scale=self.scale,
            cap=self.cap,
            rope=self.rope_at(chunk.stop),
            score=self.method.score,
            layers=self.layers,
            decoding=chunk.decoding,
            query=query,
            states=memory.states,
        )

    def _scaled(self, q: Tensor, start: int, near: Positions) -> Tensor:
        """Queries (H, C, D) times the encoding's factor for their positions in the text, and the
        model's for those where they are rotated."""
        q = with_temperature(q, self.temperature, near.query)
        at = torch.arange(start, start + q.shape[1], device=q.device)
        factors = self.method.position.query_scale(at)
        return q if factors is None else q * factors[:, None].to(q)

    def _attend_near(
        self, memory: LayerMemory, q: Tensor, chunk: Chunk, local: int, near: Positions
    ) -> list[Part]:
        """Step 10: attention to L and, causally, to C."""
        rope = self.rope_at(chunk.stop)
        keys, values = memory.store.span(chunk.start - local, chunk.stop)
        limit = self.method.position.max_distance
        if limit is not None and local + chunk.size > limit:
            return [attend_within(q, keys, values, near, limit, rope, self.scale, self.cap)]
        query, keys = rope.rotate(q, near.query), rope.rotate(keys, near.key)
        parts = [self._attend(query, keys[:, local:], values[:, local:], causal=True)]
        if local:
            parts.append(self._attend(query, keys[:, :local], values[:, :local], causal=False))
        return parts

    def _attend_far(
        self, memory: LayerMemory, q: Tensor, chunk: Chunk, selected: Selection,
        far: Sequence[Positions],
    ) -> list[Part]:  # fmt: skip
        """Step 11: attention to I and M_k."""
        rope = self.rope_at(chunk.stop)
        if isinstance(selected, Tensor):
            if not selected.shape[0]:
                return []
            keys, values = memory.store.gather(selected)
            keys, query = rope.rotate(keys, far[0].key), rope.rotate(q, far[0].query)
            return [self._attend(query, keys, values, causal=False)]
        # Each head's own selection: the keys and values of all G heads are read for each.
        share = q.shape[0] // memory.store.heads
        out, lse = torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf, device=q.device)
        for head, (at, place) in enumerate(zip(selected, far, strict=True)):
            if at.shape[0]:
                keys, values = memory.store.gather(at)
                group = slice(head // share, head // share + 1)
                key, query = rope.rotate(keys[group], place.key), q[head : head + 1]
                query = rope.rotate(query, place.query)
                out[head], lse[head] = self._attend(query, key, values[group], causal=False)
        return [(out, lse)]

    def _attend_token(
        self, memory: LayerMemory, q: Tensor, chunk: Chunk, local: int, selected: Tensor,
        near: Positions, far: Positions,
    ) -> Part:  # fmt: skip
        """Steps 10-14 for a single query in one kernel call: far keys are moved to where, seen from
        the near query's position, they are as far away as the encoding wants them."""
        rope = self.rope_at(chunk.stop)
        at, positions = token_positions(q.device, near, far, self.method.position.max_distance)
        keys, values = memory.store.span(chunk.start - local, chunk.stop)
        if selected.shape[0]:
            far_keys, far_values = memory.fetch(selected)
            keys, values = torch.cat((far_keys, keys), 1), torch.cat((far_values, values), 1)
        query, keys = rope.rotate(q, at), rope.rotate(keys, positions)
        return self._attend(query, keys, values, causal=False)

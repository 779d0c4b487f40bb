"""Efficient Selective Attention of one layer, equation (1) and Algorithm 1 of the ESA paper.

Step 10 of Algorithm 1 attends to the local tokens and causally to the chunk itself, at consecutive
positions. Step 11 of Algorithm 1 attends to the initial and the selected tokens, at positions of
the method's position encoding. Steps 12-14 of Algorithm 1 fuse both outputs by their log-sum-exps.
`models.attachment.attach` calls `SelectiveAttention` with queries and the memory of a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from esa_cli.attention.algebra import add_attention_sink, fuse_attention
from esa_cli.attention.kernels import Output, attend, attend_with_capped_distance
from esa_cli.attention.method import LayerMemory, Method
from esa_cli.attention.parts import check_selected_offsets, is_builtin_part, report_plugin_errors
from esa_cli.attention.positions import make_single_query_positions
from esa_cli.attention.rope import Rope
from esa_cli.attention.step import ChunkTrace, Positions, Selection, Step
from esa_cli.attention.window import Phase, QueryState, SurveyPassComplete, TokenChunk

Temperature = Callable[[Tensor], Tensor]
"""A function that returns the factors (n,) of queries at positions (n,), as in Ministral 3."""


def compute_temperature_factors(
    temperature_function: Temperature, positions: Tensor, q: Tensor
) -> Tensor:
    """Returns the factors (n, 1) by which the model scales queries at positions (n,)."""
    return temperature_function(positions.to(q.device, non_blocking=True))[:, None].to(q)


class SelectiveAttention:
    """Attention to initial, selected, local and current tokens, in all layers that run a method.

    Args:
        rope: the transformers model's rotary embedding. scale: the model's factor of q . k.
        cap: the model's soft cap of logits; 0 stands for none.
        layers: ascending indices of the layers that run the method; empty if they are unknown.
        temperature: the model's factors of queries at their positions in the text, by which the
            model has multiplied q; None if the model has no such factors."""

    def __init__(
        self, method: Method, rope: Rope, scale: float, cap: float = 0.0,
        layers: Sequence[int] = (), temperature: Temperature | None = None,
    ) -> None:  # fmt: skip
        self.method, self.rope, self.scale, self.cap = method, rope, scale, cap
        self.layers, self.temperature = layers, temperature
        self._attend = partial(attend, scale=scale, kernel=method.kernel, soft_cap=cap)
        self._builtin = is_builtin_part(method.selector) and is_builtin_part(method.score)
        self._changed: tuple[object, Rope] | None = None

    def choose_rope(self, cached_token_count: int) -> Rope:
        """Returns the rotary embedding of the model or method for a number of cached tokens."""
        if not self.rope.rotates:
            return self.rope
        inverse, factor = self.rope.get_inverse_frequencies()
        changed = self.method.position.frequencies(inverse, factor, cached_token_count)
        if changed is None:
            return self.rope
        key = (tuple(changed[0].tolist()), changed[1])
        if self._changed is None or self._changed[0] != key:
            # Frequencies that changed once change again as the text grows: no larger table.
            preallocate = self._changed is None
            self._changed = (key, self.rope.copy_with_frequencies(*changed, preallocate))
        return self._changed[1]

    def __call__(
        self, memory: LayerMemory, q: Tensor, query: QueryState, sink: Tensor | None = None
    ) -> Tensor:
        """Returns the attention output (H, n, D) for the queries q (H, n, D) of the last n cached
        tokens. `sink` has the logits (H,) of the model's attention sink, if any. Raises
        SurveyPassComplete: the selector needs no further layer of the survey pass. PluginError."""
        method, stop = self.method, len(memory.store)
        start = stop - q.shape[1]
        if query.phase is Phase.QUESTION and query.turn_start is None:
            query.turn_start = start
        if self.temperature is not None:
            q = q / compute_temperature_factors(self.temperature, torch.arange(start, stop), q)
        out = torch.empty_like(q)
        with report_plugin_errors(vars(method)):
            for chunk in method.window.split_forward_call(method.reading, start, stop, query):
                own = slice(chunk.start - start, chunk.stop - start)
                out[:, own] = self.compute_chunk_attention(memory, q[:, own], chunk, query, sink)
                if not chunk.decoding:
                    query.dense = method.window.has_full_attention(chunk.start)
        query.stop = stop
        return out

    def compute_chunk_attention(
        self, memory: LayerMemory, q: Tensor, chunk: TokenChunk, query_state: QueryState,
        sink_logits: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns the attention output (H, C, D) for the queries q (H, C, D) of a chunk."""
        method, rope = self.method, self.choose_rope(chunk.stop)
        position, start, size = method.position, chunk.start, q.shape[1]
        memory.add_to_moments(method, rope, q, start)
        local = method.window.count_local_tokens(chunk, query_state)
        step = Step(
            layer=memory.layer, start=start, queries=q, store=memory.store,
            low=min(method.window.initial, start - local), high=start - local, local=local,
            distance=position.distance, scale=self.scale, cap=self.cap, rope=rope,
            score=method.score, layers=self.layers, decoding=chunk.decoding, query=query_state,
            states=memory.states,
        )  # fmt: skip
        selected = self._select_far_tokens(memory, step, chunk)
        rows = [selected] if isinstance(selected, Tensor) else selected
        count = selected.shape[0] if isinstance(selected, Tensor) else 0
        near = position.near(local, size, start, count)
        far = [
            position.far(at, local, size, start) if at.shape[0] else Positions(at, at)
            for at in rows
        ]
        trace = ChunkTrace(
            **vars(step) | {"lse": q.new_empty(0)}, far=selected, near_positions=near,
            far_positions=far, scaled=self._scale_queries(q, start, near),
            max_distance=position.max_distance,
        )  # fmt: skip
        if isinstance(selected, Tensor) and size == 1:
            out, lse = self._attend_single_query(memory, trace, selected)
        else:
            parts = self._attend_to_near_tokens(trace) + self._attend_to_far_tokens(trace)
            out, lse = fuse_attention(parts)
        out, lse = add_attention_sink(out, lse, sink_logits)
        if method.selector.is_observer:
            method.selector.observe(replace(step, low=0, lse=lse))
        if query_state.trace is not None:
            query_state.trace(replace(trace, lse=lse))
        return out

    def _select_far_tokens(self, memory: LayerMemory, step: Step, chunk: TokenChunk) -> Selection:
        """Returns the absolute positions (I + K,) of the initial and the selected tokens (equation
        (2)), in one tensor or in a list with a tensor for each query head."""
        selector, device = self.method.selector, step.queries.device
        initial = torch.arange(step.low, device=device)
        if not chunk.select or step.middle <= 0:
            return initial
        budget = int(selector.allowance(step, self.method.window.selected))
        if budget <= 0:
            return initial
        step = replace(step, projection=memory.add_reduced_keys(self.method, step.high))
        offsets = selector.select(step, budget)
        if not self._builtin:
            check_selected_offsets(offsets, step, budget)
        if step.query.surveying and selector.survey_complete(step):
            raise SurveyPassComplete
        if isinstance(offsets, Tensor):
            return torch.cat((initial, offsets.to(device) + step.low))
        return [torch.cat((initial, row.to(device) + step.low)) for row in offsets]

    def _scale_queries(self, q: Tensor, first_position: int, near_positions: Positions) -> Tensor:
        """Multiplies queries (H, C, D) by the factors of the position encoding and of the model."""
        if self.temperature is not None:
            q = q * compute_temperature_factors(self.temperature, near_positions.query, q)
        at = torch.arange(first_position, first_position + q.shape[1], device=q.device)
        factors = self.method.position.query_scale(at)
        return q if factors is None else q * factors[:, None].to(q)

    def _attend_to_near_tokens(self, trace: ChunkTrace) -> list[Output]:
        """Computes attention of a chunk to the local tokens and itself (step 10 of Algorithm 1)."""
        rope, at, local = trace.rope, trace.near_positions, trace.local
        keys, values = trace.store.span(trace.start - local, trace.stop)
        limit = trace.max_distance
        if limit is not None and trace.stop - trace.start + local > limit:
            options = at, limit, rope, self.scale, self.cap
            return [attend_with_capped_distance(trace.scaled, keys, values, *options)]
        query, keys = rope.rotate(trace.scaled, at.query), rope.rotate(keys, at.key)
        parts = [self._attend(query, keys[:, local:], values[:, local:], causal=True)]
        if local:
            parts.append(self._attend(query, keys[:, :local], values[:, :local], causal=False))
        return parts

    def _attend_to_far_tokens(self, trace: ChunkTrace) -> list[Output]:
        """Computes attention of a chunk to initial and selected tokens (step 11 of Algorithm 1)."""
        q, rope, store = trace.scaled, trace.rope, trace.store
        if isinstance(trace.far, Tensor):
            if not trace.far.shape[0]:
                return []
            [at], (keys, values) = trace.far_positions, store.gather(trace.far)
            query, keys = rope.rotate(q, at.query), rope.rotate(keys, at.key)
            return [self._attend(query, keys, values, causal=False)]
        # Each head's own selection: the keys and values of all G heads are read for each.
        share = q.shape[0] // store.heads
        out, lse = torch.zeros_like(q), torch.full(q.shape[:2], -torch.inf, device=q.device)
        for head, (selected, at) in enumerate(zip(trace.far, trace.far_positions, strict=True)):
            if selected.shape[0]:
                group, own = slice(head // share, head // share + 1), slice(head, head + 1)
                keys, values = (rows[group] for rows in store.gather(selected))
                query, keys = rope.rotate(q[own], at.query), rope.rotate(keys, at.key)
                out[own], lse[own] = self._attend(query, keys, values, causal=False)
        return [(out, lse)]

    def _attend_single_query(
        self, memory: LayerMemory, trace: ChunkTrace, far_token_positions: Tensor
    ) -> Output:
        """Computes attention of a single query to near and far keys in one kernel call, with far
        keys rotated to the distance from the query that the position encoding gives."""
        q, near, [far] = trace.scaled, trace.near_positions, trace.far_positions
        at, positions = make_single_query_positions(q.device, near, far, trace.max_distance)
        keys, values = trace.store.span(trace.start - trace.local, trace.stop)
        if far_token_positions.shape[0]:
            far_keys, far_values = memory.fetch_far_keys_and_values(far_token_positions)
            keys, values = torch.cat((far_keys, keys), 1), torch.cat((far_values, values), 1)
        query, keys = trace.rope.rotate(q, at), trace.rope.rotate(keys, positions)
        return self._attend(query, keys, values, causal=False)

"""Efficient Selective Attention of one layer: Eq. 1, over [I, M_k, L, C].

    far    I and the selected M_k, at the positions the encoding gives them
    local  L, and causally C itself, at consecutive positions
and the three are fused by their log-sum-exp (Algorithm 1). No mask tensor is ever built.

Knows nothing about the host model; `seam` calls it with a chunk and the layer's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from esa_cli.attention import plugin_errors as plugged
from esa_cli.attention.choice import choose, look_on
from esa_cli.attention.chunking import Plan, chunks
from esa_cli.attention.distance_limit import attend_clipped
from esa_cli.attention.interfaces import Selection
from esa_cli.attention.kernels import attend, merge
from esa_cli.attention.layer_memory import LayerMemory
from esa_cli.attention.method import Method
from esa_cli.attention.rope import Rope, Ropes
from esa_cli.attention.step import ASKED, PRIME, REHEARSAL, Step
from esa_cli.attention.trace import Seen


class Attention:
    """Runs a method on one layer's chunk.

    Args:
        method: the method. rope: the host's rotary embedding. scale: the host's attention scale.
        watch: called with what each chunk attended to, after it did.
    """

    def __init__(
        self, method: Method, rope: Rope, scale: float, watch: Callable[[Seen], None] | None = None
    ) -> None:
        self.method, self.rope, self.scale, self.watch = method, rope, scale, watch
        self._ropes = Ropes(rope)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        return attend(q, k, v, causal=causal, scale=self.scale, kernel=self.method.kernel)

    def rope_at(self, length: int) -> Rope:
        """The rotary embedding when `length` tokens are cached: the host's, or the encoding's."""
        return self._ropes.at(length, getattr(self.method.position, "frequencies", None))

    def _plain(self, start: int) -> bool:
        """Whether a chunk that starts at `start` sees everything cached."""
        return start <= self.method.window.dense_below

    def _settled(self, memory: LayerMemory, plan: Plan) -> int:
        """l_L of this chunk. An answer goes on as its question was read, plain or selecting: it
        must not lose sight of the text where it happens to grow beyond `dense`. With
        `window.ending`, what is local begins there, and holds question and answer."""
        if self._plain(plan.start) or (plan.decoding and memory.shared.get("plain")):
            return plan.start
        asked, ending = memory.shared.get(ASKED), self.method.window.ending
        if asked is None or ending is None or plan.start < asked:
            return min(self.method.window.local, plan.start)
        return min(plan.start, plan.start - int(asked) + ending)

    def _step(self, memory: LayerMemory, q: Tensor, plan: Plan, low: int, local: int) -> Step:
        return Step(
            layer=memory.layer,
            start=plan.start,
            queries=q,
            store=memory.store,
            low=low,
            high=plan.start - local,
            local=local,
            distance=self.method.position.distance,
            scale=self.scale,
            rope=self.rope_at(plan.stop),
            score=self.method.score,
            decoding=plan.decoding,
            shared=memory.shared,
        )

    def _select(self, memory: LayerMemory, q: Tensor, plan: Plan, local: int) -> Selection:
        """Absolute positions of I and the selected middle tokens, ascending (I + K,)."""
        window, selector = self.method.window, self.method.selector
        low = min(window.initial, plan.start - local)
        initial = torch.arange(low, device=q.device)
        high = plan.start - local
        none = window.selected == 0 and not hasattr(selector, "allowance")
        if not plan.select or high <= low or none:
            return initial
        projection = memory.project(self.method, high)
        step = replace(self._step(memory, q, plan, low, local), projection=projection)
        picked = choose(selector, step, window.selected)
        if isinstance(picked, Tensor):
            return torch.cat((initial, picked.to(q.device) + low))
        return [torch.cat((initial, row.to(q.device) + low)) for row in picked]

    def _sharpened(self, q: Tensor, start: int) -> Tensor:
        sharpness = getattr(self.method.position, "sharpness", None)
        if sharpness is None:
            return q
        at = torch.arange(start, start + q.shape[1], device=q.device)
        scaled: Tensor = q * sharpness(at)[:, None].to(q)
        return scaled

    def chunk(self, memory: LayerMemory, q: Tensor, plan: Plan) -> Tensor:
        """Attention output (H, C, D) of the chunk's queries q (H, C, D), unrotated.

        The chunk's own keys and values are already in the store.
        """
        local = self._settled(memory, plan)
        far = self._select(memory, q, plan, local)
        sharp = self._sharpened(q, plan.start)
        if plan.stop - plan.start == 1 and isinstance(far, Tensor):
            out, lse = self._decode(memory, sharp, far, plan.start, local)
        else:
            count = far.shape[0] if isinstance(far, Tensor) else 0
            parts = self._near(memory, sharp, plan, local, count)
            if isinstance(far, Tensor):
                parts += self._far(memory, sharp, plan, local, far)
            else:
                parts.append(self._far_by_head(memory, sharp, plan, local, far))
            out, lse = merge(parts)
        self._tell(memory, q, plan, local, far, lse)
        return out

    def _tell(
        self, memory: LayerMemory, q: Tensor, plan: Plan, local: int, far: Selection, lse: Tensor
    ) -> None:
        if hasattr(self.method.selector, "observe"):
            step = replace(self._step(memory, q, plan, 0, local), lse=lse)
            look_on(self.method.selector, step)
        if self.watch is not None:
            low = min(self.method.window.initial, plan.start - local)
            store, decoding = memory.store, plan.decoding
            self.watch(
                Seen(memory.layer, plan.start, plan.stop, low, local, q, store, far, lse, decoding)
            )

    def _near(
        self, memory: LayerMemory, q: Tensor, plan: Plan, local: int, far: int
    ) -> list[tuple[Tensor, Tensor]]:
        """Attention to [L, C]; `far` tokens are attended to beside it."""
        position, rope = self.method.position, self.rope_at(plan.stop)
        near = plugged.near(position, local, plan.stop - plan.start, plan.start, far)
        keys, values = memory.store.span(plan.start - local, plan.stop)
        reach = getattr(position, "reach", None)
        if reach is not None and local + plan.stop - plan.start > reach:
            return [attend_clipped(q, keys, values, near, reach, rope, self.scale)]
        query = rope.rotate(q, near.query.to(q.device))
        keys = rope.rotate(keys, near.key.to(q.device))
        parts = [self._attend(query, keys[:, local:], values[:, local:], True)]
        if local:
            parts.append(self._attend(query, keys[:, :local], values[:, :local], False))
        return parts

    def _far(
        self, memory: LayerMemory, q: Tensor, plan: Plan, local: int, far: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Attention to the far tokens at absolute positions (n,)."""
        if not far.shape[0]:
            return []
        rope = self.rope_at(plan.stop)
        place = plugged.far(self.method.position, far, local, plan.stop - plan.start, plan.start)
        keys, values = memory.store.gather(far)
        keys = rope.rotate(keys, place.key.to(q.device))
        return [self._attend(rope.rotate(q, place.query.to(q.device)), keys, values, False)]

    def _far_by_head(
        self, memory: LayerMemory, q: Tensor, plan: Plan, local: int, far: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The same where each query head has far tokens of its own. Rows of all key heads are read
        for every head: a method that selects by head pays for it."""
        rope, share = self.rope_at(plan.stop), q.shape[0] // memory.store.heads
        out = torch.zeros_like(q)
        lse = torch.full(q.shape[:2], float("-inf"), device=q.device)
        for head, at in enumerate(far):
            if not at.shape[0]:
                continue
            place = plugged.far(self.method.position, at, local, plan.stop - plan.start, plan.start)
            keys, values = memory.store.gather(at)
            group = slice(head // share, head // share + 1)
            keys = rope.rotate(keys[group], place.key.to(q.device))
            query = rope.rotate(q[head : head + 1], place.query.to(q.device))
            out[head], lse[head] = self._attend(query, keys, values[group], False)
        return out, lse

    def _decode(
        self, memory: LayerMemory, q: Tensor, far: Tensor, start: int, local: int
    ) -> tuple[Tensor, Tensor]:
        """One query sees everything in one call: far keys are moved to where, seen from the near
        query's position, they are as far away as the encoding wants them."""
        device, position, rope = q.device, self.method.position, self.rope_at(start + 1)
        near = plugged.near(position, local, 1, start, far.shape[0])
        stand, positions = near.query.to(device), near.key.to(device)
        reach = getattr(position, "reach", None)
        if reach is not None:
            positions = torch.maximum(positions, stand - reach)
        keys, values = memory.store.span(start - local, start + 1)
        if far.shape[0]:
            place = plugged.far(position, far, local, 1, start)
            far_keys, far_values = memory.fetch(far)
            moved = place.key.to(device) + stand - place.query.to(device)
            positions = torch.cat((moved, positions))
            keys, values = torch.cat((far_keys, keys), 1), torch.cat((far_values, values), 1)
        # Only differences count; a base of zero keeps positions inside the rotary table.
        base = positions.min()
        query = rope.rotate(q, stand - base)
        keys = rope.rotate(keys, positions - base)
        return self._attend(query, keys, values, False)

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
        if asking:
            memory.shared.setdefault(ASKED, start)
        else:
            memory.shared.pop(ASKED, None)
        out = torch.empty_like(q)
        size = self.method.window.chunk
        if memory.shared.get(REHEARSAL) and not self._plain(start):
            size = stop - start  # its words are held against each other, so all of them at once
        # A question may be one token, too; where its answer begins is told.
        answering = start >= memory.shared.get(PRIME, start) if asking else last
        for plan in chunks(start, stop, size, last, every, answering):
            piece = q[:, plan.start - start : plan.stop - start]
            memory.learn(self.method, partial(self.rope_at, plan.stop), piece, plan.start)
            out[:, plan.start - start : plan.stop - start] = self.chunk(memory, piece, plan)
            if asking and not plan.decoding:
                memory.shared["plain"] = self._plain(plan.start)
        return out

"""Everything that an encoding, a model and a selector may change in a layer at once, in loops."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
import reference
import torch
from conftest import build_rope
from kernel_cases import close, draw
from torch import Tensor

from esa_cli.attention import kernels
from esa_cli.attention.kernels import attend_with_capped_distance
from esa_cli.attention.layer import SelectiveAttention
from esa_cli.attention.method import LayerMemory, Method
from esa_cli.attention.parts import PositionEncoding, Selector, require_at_least
from esa_cli.attention.positions import make_consecutive_positions
from esa_cli.attention.step import ChunkTrace, Positions, Step
from esa_cli.attention.window import Phase, QueryState, TokenChunk, Window
from esa_cli.methods.voting import TokenSelectSelector
from esa_cli.storage.memory_store import MemoryKVStore

HEADS, GROUPS, DIM, COUNT, SCALE = 6, 2, 8, 36, 0.4
WINDOW = Window(initial=2, selected=5, local=4, chunk=5, dense=0)


@dataclass(frozen=True)
class Strange(PositionEncoding):
    """Far keys between whole positions, near ones at most `limit` away, sharper, slower queries."""

    distance: int = 9
    limit: int | None = None

    @property
    def max_distance(self) -> int | None:
        return self.limit

    def query_scale(self, at: Tensor) -> Tensor:
        return 1 + at / 50

    def frequencies(
        self, inverse: Tensor, factor: float, length: int
    ) -> tuple[Tensor, float] | None:
        return (inverse / 2, factor) if length > 20 else None

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return make_consecutive_positions(local, chunk, first_position=3)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return Positions(torch.full((chunk,), 40), 2 * torch.arange(at.shape[0]) + 0.5)


@dataclass(frozen=True)
class Thirds(Selector):
    """Every third middle token: other ones for each head, or the same for all."""

    joint: bool = True

    def select(self, step: Step, budget: int) -> Tensor | list[Tensor]:
        rows = [torch.arange(head % 3, step.middle, 3)[:budget] for head in range(HEADS)]
        return rows[1] if self.joint else rows


def temperature(at: Tensor) -> Tensor:
    return 1 + at / 40


@pytest.mark.parametrize("limit", [None, 1, 3, 6, 100])
@pytest.mark.parametrize("joint", [True, False])
def test_all_at_once(joint: bool, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "AT_ONCE", 2)
    q, k, v = torch.randn(HEADS, COUNT, DIM), *torch.randn(2, GROUPS, COUNT, DIM)
    method = Method(WINDOW, Thirds(joint), position=Strange(limit=limit))
    attention = SelectiveAttention(method, build_rope(DIM), SCALE, temperature=temperature)
    memory = LayerMemory(0, MemoryKVStore(GROUPS, DIM, torch.float32, torch.device("cpu")))
    traces: list[ChunkTrace] = []
    query, got, at = QueryState(Phase.AUTO, trace=traces.append), list[Tensor](), 0
    for stop in (33, 34, 35, COUNT):
        memory.store.append(k[:, at:stop], v[:, at:stop])
        warm = q[:, at:stop] * temperature(torch.arange(at, stop))[:, None]
        got.append(attention(memory, warm, query))
        at = stop
    queries, keys, values = (reference.plain(x) for x in (q, k, v))
    want = torch.zeros(HEADS, COUNT, DIM)
    starts = [0, *range(3, 33, 5), 33, 34, 35, COUNT]
    for start, stop in pairwise(starts):
        local = min(4, start)
        middle = list(range(min(2, start - local), start - local))
        for head in range(HEADS):
            group = head * GROUPS // HEADS
            far = [*range(min(2, start - local)), *middle[(1 if joint else head % 3) :: 3][:5]]
            for i in range(start, stop):
                places = {j: 39.5 - 2 * n for n, j in enumerate(far)}
                for j in range(start - local, i + 1):
                    places[j] = i - j if limit is None else min(i - j, limit)
                near = 3 + local + i - start
                factor = (1 + i / 50) * (1 + near / 40) * SCALE
                slow = 0.5 if stop > 20 else 1.0
                logits = [
                    factor
                    * reference.dot(
                        reference.rotate(queries[head][i], distance * slow), keys[group][j]
                    )
                    for j, distance in places.items()
                ]
                seen = [values[group][j] for j in places]
                out, lse = reference.softmax_over(logits, seen, DIM)
                want[head, i] = torch.tensor(out)
                trace = next(one for one in traces if one.start == start)
                assert trace.lse[head, i - start].item() == pytest.approx(lse, abs=2e-5)
                rows = trace.list_far_positions()
                assert rows[head if len(rows) > 1 else 0].tolist() == far
    torch.testing.assert_close(torch.cat(got, 1), want, rtol=2e-5, atol=2e-5)
    assert [one.decoding for one in traces] == [False] * 7 + [True] * 3
    assert all(one.stop - one.start == one.queries.shape[1] for one in traces)
    assert [one.low for one in traces] == [0, 0, *[2] * 8]


@pytest.mark.parametrize("cap", [0.0, 1.5])
@pytest.mark.parametrize("limit", [0, 1, 4, 50])
def test_clipped_distances(cap: float, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys at 10, 11, ..., queries from 14 on, two at a time."""
    monkeypatch.setattr(kernels, "AT_ONCE", 2)
    q, k, v = draw(6, 2, 5, 9)
    at = Positions(torch.arange(14, 19), torch.arange(10, 19))
    got = attend_with_capped_distance(q, k, v, at, limit, build_rope(DIM), SCALE, cap)
    queries, keys, values = (reference.plain(x) for x in (q, k, v))
    out, lse = torch.zeros(6, 5, DIM), torch.zeros(6, 5)
    for head in range(6):
        for i in range(5):
            logits = []
            for j in range(i + 5):
                turned = reference.rotate(queries[head][i], min(4 + i - j, limit))
                logit = SCALE * reference.dot(turned, keys[head // 3][j])
                logits.append(cap * torch.tensor(logit / cap).tanh().item() if cap else logit)
            found, total = reference.softmax_over(logits, values[head // 3][: i + 5], DIM)
            out[head, i], lse[head, i] = torch.tensor(found), total
    close(got, (out, lse), 2e-5)


def test_bounds_of_settings() -> None:
    require_at_least(2, a=2, b=None, c=3.5)
    for value in (1, 1.9, float("nan")):
        with pytest.raises(ValueError, match="b must be at least 2"):
            require_at_least(2, a=2, b=value)
    for odd in (0, 2, -1):
        with pytest.raises(ValueError, match="pool must be odd"):
            TokenSelectSelector(pool=odd)
    Window(initial=0, selected=0, local=0, chunk=1, dense=0, ending=0)
    for name, low in (("initial", -1), ("selected", -1), ("chunk", 0), ("ending", -1)):
        with pytest.raises(ValueError, match=rf"window\.{name} must be at least"):
            Window(**{name: low})
    assert (Window(1, 20, 300).budget, Window(1, 20, 300).full_attention_limit) == (321, 321)
    assert [Window(dense=5).has_full_attention(at) for at in (4, 5, 6)] == [True, True, False]


def test_local_tokens_of_a_chunk() -> None:
    def local(start: int, query: QueryState, *, decoding: bool = False, **sizes: int) -> int:
        window = Window(**{"local": 4, "dense": 6, **sizes})
        return window.count_local_tokens(TokenChunk(start, start + 1, True, decoding), query)

    asking = QueryState(Phase.QUESTION, turn_start=20)
    assert [local(at, QueryState()) for at in (0, 6, 7, 30)] == [0, 6, 4, 4]
    assert local(30, QueryState(), decoding=True) == 4
    assert local(30, QueryState(dense=True), decoding=True) == 30
    assert local(30, QueryState(dense=True)) == 4
    assert local(30, asking) == 4
    assert [local(at, asking, ending=3) for at in (19, 20, 25)] == [4, 3, 8]
    assert local(8, QueryState(Phase.QUESTION, turn_start=7), ending=30) == 8
    assert local(30, QueryState(Phase.QUESTION), ending=3) == 4
    assert local(30, QueryState(Phase.PREFILL, turn_start=20), ending=3) == 4
    fresh = QueryState()
    assert (fresh.phase, fresh.surveying, fresh.dense, fresh.stop) == (Phase.AUTO, False, False, 0)

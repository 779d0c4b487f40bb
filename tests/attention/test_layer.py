"""Whole attention of one layer against loops of Eq. (1), whatever the chunks, positions and scores.

`reference.run` computes I, M_k, L, C, distances and one softmax over all of them by itself; only
the fitted compressor is taken from the memory, since its fit has its own tests.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import reference
import torch
from conftest import build_rope
from saved_projections import save_learned_projections

from esa_cli.attention.compression import (
    ClosedFormCompressor,
    LearnedCompressor,
    Linear,
    NoCompression,
)
from esa_cli.attention.layer import SelectiveAttention
from esa_cli.attention.method import LayerMemory, Method
from esa_cli.attention.positions import ContiguousPositions, FixedDistancePositions, TruePositions
from esa_cli.attention.rope import FixedFrequencyRotaryModule, Rope
from esa_cli.attention.selection import LogitSum, TopKSelector
from esa_cli.attention.step import ChunkTrace, LayerState, Step
from esa_cli.attention.window import Phase, QueryState, TokenChunk, Window
from esa_cli.methods.voting import VoteScore
from esa_cli.storage.memory_store import MemoryKVStore

pytestmark = pytest.mark.usefixtures("small_segments")

HEADS, GROUPS, DIM = 6, 2, 8
SCALE = 0.4
DISTANCE = 23
POSITIONS = {
    "esa": FixedDistancePositions(DISTANCE),
    "contiguous": ContiguousPositions(DISTANCE),
    "true": TruePositions(DISTANCE),
}
SCORES = {
    "sum": LogitSum(),
    "sum rotated": LogitSum(rotate=True),
    "vote": VoteScore(),
    "shortlist": VoteScore(shortlist=9),
    "loudest": VoteScore(rule="max", rotate=False),
}
WINDOW = Window(initial=3, selected=7, local=5, chunk=5, dense=9)


def method_of(
    position: str = "esa",
    score: str = "sum",
    rank: int | None = None,
    window: Window = WINDOW,
    **changes: Any,
) -> Method:
    return Method(
        window=window,
        selector=changes.pop("selector", TopKSelector(1)),
        score=SCORES[score],
        compressor=NoCompression()
        if rank is None
        else ClosedFormCompressor(rank=rank, fit_tokens=12),
        position=POSITIONS[position],
        **changes,
    )


def settings_of(method: Method, memory: LayerMemory) -> reference.Settings:
    score, window = method.score, method.window
    names = {type(one): name for name, one in POSITIONS.items()}
    maps = None
    if isinstance(memory.projection, Linear):
        maps = (
            reference.plain(memory.projection.query_map),
            reference.plain(memory.projection.key_map),
        )
    everything = window.initial + window.selected + window.local
    return reference.Settings(
        initial=window.initial,
        selected=window.selected,
        local=window.local,
        chunk=window.chunk,
        dense=everything if window.dense is None else window.dense,
        position=names[type(method.position)],
        distance=method.position.distance,
        score="sum" if isinstance(score, LogitSum) else "vote",
        rotate=score.rotate,  # type: ignore[attr-defined]
        scale=SCALE,
        epsilon=method.selector.proximity,  # type: ignore[attr-defined]
        shortlist=getattr(score, "shortlist", 0),
        rule=getattr(score, "rule", ""),
        pool="max",
        reading=method.reading,
        maps=maps,
    )


@dataclass
class Layer:
    """Random queries, keys and values, and a memory that is fed with them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    memory: LayerMemory
    query: QueryState = field(default_factory=QueryState)

    def feed(
        self, attention: SelectiveAttention, upto: int, phase: Phase = Phase.AUTO
    ) -> torch.Tensor:
        """Attention of the tokens from the end of the memory to `upto`."""
        if phase is not self.query.phase:
            self.query = QueryState(phase, trace=self.query.trace)
        store = self.memory.store
        start = len(store)
        store.append(self.k[:, start:upto], self.v[:, start:upto])
        return attention(self.memory, self.q[:, start:upto], self.query)

    def in_loops(self, method: Method, start: int, stop: int, last: bool = True) -> torch.Tensor:
        q, k, v = (reference.plain(x) for x in (self.q, self.k, self.v))
        out = reference.run(
            settings_of(method, self.memory),
            [head[start:stop] for head in q],
            [head[:stop] for head in k],
            [head[:stop] for head in v],
            start,
            last,
        )
        return torch.tensor(out)


def new_layer(count: int, heads: int = HEADS, groups: int = GROUPS) -> Layer:
    store = MemoryKVStore(groups, DIM, torch.float32, torch.device("cpu"))
    return Layer(
        torch.randn(heads, count, DIM) * 1.5,
        torch.randn(groups, count, DIM) * 1.5,
        torch.randn(groups, count, DIM),
        LayerMemory(0, store),
    )


def twins() -> tuple[Layer, Layer]:
    """Two layers of the same queries, keys and values."""
    layer = new_layer(38)
    return layer, replace(new_layer(38), q=layer.q, k=layer.k, v=layer.v)


def attention_of(method: Method) -> SelectiveAttention:
    return SelectiveAttention(method, build_rope(DIM), SCALE)


def check(method: Method, count: int = 38, heads: int = HEADS, groups: int = GROUPS) -> LayerMemory:
    """All tokens in one call against the loops."""
    layer = new_layer(count, heads, groups)
    got = layer.feed(attention_of(method), count)
    close(got, layer.in_loops(method, 0, count))
    return layer.memory


def close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want.to(got), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("rank", [None, 5])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("position", POSITIONS)
def test_attention_is_eq_1(position: str, score: str, rank: int | None, chunk: int) -> None:
    method = method_of(position, score, rank, replace(WINDOW, chunk=chunk))
    memory = check(method)
    assert (memory.projection is not None) == (rank is not None and method.score.features)


@pytest.mark.parametrize(
    "change",
    [
        {"initial": 0},
        {"local": 0},
        {"initial": 0, "local": 0},
        {"selected": 0},
        {"selected": 0, "initial": 0},
        {"selected": 0, "initial": 0, "local": 0},
        {"selected": 1},
        {"selected": 1000, "dense": 0},
        {"initial": 1000, "dense": 0},
        {"local": 1000, "dense": 0},
        {"dense": 0},
        {"dense": None},
        {"dense": 1000},
        {"dense": 14},
        {"chunk": 38},
        {"chunk": 37},
        {"chunk": 1000},
        {"chunk": 7, "local": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("position", POSITIONS)
def test_window_sizes(position: str, change: dict[str, Any]) -> None:
    check(method_of(position, window=replace(WINDOW, **change)))


@pytest.mark.parametrize("kernel", ["reference", "torch-cpu"])
@pytest.mark.parametrize("position", POSITIONS)
def test_each_kernel(position: str, kernel: str) -> None:
    check(method_of(position, kernel=kernel))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("rank", [None, 5])
def test_fed_in_pieces(position: str, rank: int | None) -> None:
    """Reading, then decoding one by one; each call is cut into chunks of its own."""
    method = method_of(position, rank=rank)
    layer = new_layer(38)
    attention = attention_of(method)
    at = 0
    for upto in (13, 16, 17, 30, 35, 36, 37, 38):
        got = layer.feed(attention, upto)
        close(got, layer.in_loops(method, at, upto))
        at = upto


@pytest.mark.parametrize("chunk", [1, 5])
@pytest.mark.parametrize("score", ["sum", "vote"])
@pytest.mark.parametrize("position", POSITIONS)
def test_reading_locally(position: str, score: str, chunk: int) -> None:
    """Chunks that are only read see I and L; the last one selects, or all when being asked."""
    method = method_of(position, score, 5, replace(WINDOW, chunk=chunk), reading="local")
    layer = new_layer(38)
    attention = attention_of(method)
    close(layer.feed(attention, 18, Phase.PREFILL), layer.in_loops(method, 0, 18, False))
    assert layer.memory.store.reduced_key_count == 0
    close(layer.feed(attention, 30), layer.in_loops(method, 18, 30))
    asked = layer.feed(attention, 38, Phase.QUESTION)
    close(asked, layer.in_loops(replace(method, reading="select"), 30, 38))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("rank", [None, 5])
def test_crop_and_replay(position: str, rank: int | None) -> None:
    method = method_of(position, rank=rank)
    layer = new_layer(38)
    attention = attention_of(method)
    layer.feed(attention, 25)
    first = layer.feed(attention, 38)
    layer.memory.store.crop(-13)
    close(layer.feed(attention, 38), first)
    layer.memory.store.crop(-13)
    layer.k[:, 25:] = torch.randn(GROUPS, 13, DIM)
    close(layer.feed(attention, 38), layer.in_loops(method, 25, 38))


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("reading", ["select", "local"])
@pytest.mark.parametrize("answer_start", [None, 0, 7, 8, 30])
def test_chunks_are_cut_from_the_end(phase: Phase, reading: str, answer_start: int | None) -> None:
    """Tokens counted from the end of the call, `chunk` at a time, so that the first is the short
    one; which chunks select, and which one is a token of the answer."""
    window = replace(WINDOW, dense=20)
    cases = itertools.product((0, 3, 7, 8, 21), (0, 1, 2, 5, 6, 17), (1, 5), (False, True))
    for start, count, size, surveying in cases:
        stop = start + count
        query = QueryState(phase, answer_start=answer_start, surveying=surveying)
        whole = surveying and start > 20
        groups: dict[int, list[int]] = {}
        for token in range(start, stop):
            groups.setdefault(0 if whole else (stop - 1 - token) // size, []).append(token)
        answers = {
            Phase.AUTO: True,
            Phase.PREFILL: False,
            Phase.QUESTION: answer_start is None or start >= answer_start,
        }
        want = []
        for number, tokens in sorted(groups.items(), reverse=True):
            select = (
                reading == "select"
                or phase is Phase.QUESTION
                or (phase is Phase.AUTO and number == 0)
            )
            decoding = count == 1 and answers[phase]
            want.append(TokenChunk(tokens[0], tokens[-1] + 1, select, decoding))
        got = replace(window, chunk=size).split_forward_call(reading, start, stop, query)
        if count or not whole:
            assert list(got) == want


def test_compressor_is_fitted_on_the_first_tokens_only() -> None:
    """12 tokens asked for, in chunks of 5: the third chunk gives two of its five."""
    method = method_of(rank=5, window=replace(WINDOW, dense=20))
    layer = new_layer(38)
    attention = attention_of(method)
    layer.feed(attention, 20)
    moments = layer.memory.moments
    assert moments.count == 12
    queries = [reference.fold_query(reference.plain(layer.q), c, GROUPS) for c in range(12)]
    keys = [reference.flat_key(reference.plain(layer.k), m) for m in range(12)]
    for got, rows in ((moments.queries, queries), (moments.keys, keys)):
        want = torch.tensor(rows, dtype=torch.float64)
        torch.testing.assert_close(got, want.T @ want, rtol=1e-5, atol=1e-5)
    layer.feed(attention, 38)
    fitted = layer.memory.projection
    assert layer.memory.fitted
    layer.memory.store.crop(-10)
    layer.feed(attention, 38)
    assert layer.memory.projection is fitted


@pytest.mark.parametrize("width", [4, DIM])
def test_fit_is_to_the_logits_of_attention(width: int) -> None:
    """Of unit keys at position 0, with yarn's factor where the embedding rotates."""
    rope = Rope(FixedFrequencyRotaryModule(10000.0 ** -torch.linspace(0, 1, width // 2), 3.0))
    method = method_of(score="sum rotated", rank=5, window=replace(WINDOW, dense=20))
    layer = new_layer(12)
    layer.feed(SelectiveAttention(method, rope, SCALE), 12)
    far = rope.rotate(layer.q, torch.full((12,), DISTANCE)).view(GROUPS, -1, 12, DIM)
    keys = rope.rotate(torch.eye(DIM)[None], torch.zeros(DIM, dtype=torch.long))[0]
    rows = torch.cat([(q @ keys.T).sum(0) for q in far], 1).double()
    torch.testing.assert_close(layer.memory.moments.queries, rows.T @ rows, rtol=1e-4, atol=1e-4)


def test_scores_without_features_store_none() -> None:
    memory = check(method_of(score="vote", rank=5))
    assert memory.store.reduced_key_count == 0
    assert memory.moments.count == 0


@dataclass
class SeenChunks(LayerState):
    """What an observer was told."""

    chunks: list[Any] = field(default_factory=list)

    def crop(self, length: int) -> None:
        self.chunks.clear()


@dataclass(frozen=True)
class Watching(TopKSelector):
    """A top-k selector that also looks at every chunk, and its log-sum-exp."""

    def new_layer_state(self) -> SeenChunks:
        return SeenChunks()

    def observe(self, step: Step) -> None:
        seen = step.start, step.queries.shape[1], step.lse, step.local
        step.layer_state(self).chunks.append(seen)


def test_observe_sees_every_chunk() -> None:
    layer = new_layer(38)
    method = method_of(selector=Watching(1), window=replace(WINDOW, dense=1000))
    layer.feed(attention_of(method), 38)
    chunks = [one[:2] for one in layer.memory.states[0, Watching].chunks]
    assert chunks == [(0, 3), *((at, 5) for at in range(3, 38, 5))]


def test_observe_is_told_the_log_sum_exp_of_the_trace() -> None:
    layer, seen = new_layer(38), list[ChunkTrace]()
    attention = attention_of(method_of(selector=Watching(1)))
    layer.query = QueryState(trace=seen.append)
    layer.feed(attention, 37)
    layer.feed(attention, 38)
    assert [one.stop - one.start for one in seen] == [2, *[5] * 7, 1]
    told = layer.memory.states[0, Watching].chunks
    for one, (*_, lse, local) in zip(seen, told, strict=True):
        assert torch.equal(lse, one.lse)
        assert local == one.local
    assert (seen[-2].decoding, seen[-1].decoding, len(seen[-1].far)) == (False, True, 3 + 7)


def test_observing_does_not_change_what_the_compressor_is_fitted_on() -> None:
    layer, watched = twins()
    want = layer.feed(attention_of(method_of(rank=5)), 38)
    got = watched.feed(attention_of(method_of(rank=5, selector=Watching(1))), 38)
    close(got, want)


ALL_LOCAL = replace(WINDOW, local=30, dense=4)
"""A short text lies in L whole, and is not plain: `dense` is less than `local`."""


@pytest.mark.parametrize("ending", [0, 2, 5])
@pytest.mark.parametrize("window", [WINDOW, ALL_LOCAL], ids=["window", "all local"])
@pytest.mark.parametrize("position", POSITIONS)
def test_ending_keeps_the_question_in_view_and_little_before_it(
    position: str, window: Window, ending: int
) -> None:
    """Each step equals the paper's rule with as many local tokens as question and ending have."""
    layer, other = twins()
    asked = method_of(position, window=replace(window, ending=ending))
    for each in (layer, other):
        each.feed(attention_of(asked), 25, Phase.PREFILL)
    for upto in (29, 33, 34, 35):
        start = len(layer.memory.store)
        got = layer.feed(attention_of(asked), upto, Phase.QUESTION)
        same = replace(window, local=start - 25 + ending)
        close(got, other.feed(attention_of(replace(asked, window=same)), upto))


def test_an_answer_to_a_text_in_l_sees_l_tokens() -> None:
    layer, other = twins()
    made = attention_of(method_of(window=replace(ALL_LOCAL, selected=0)))
    for each, phase in ((layer, Phase.QUESTION), (other, Phase.AUTO)):
        each.feed(made, 28, phase)
    for upto in range(29, 39):
        close(layer.feed(made, upto, Phase.QUESTION), other.feed(made, upto))


def test_ending_changes_nothing_while_everything_fits() -> None:
    layer, other = twins()
    whole = replace(WINDOW, dense=100)
    close(
        layer.feed(attention_of(method_of(window=replace(whole, ending=0))), 38, Phase.QUESTION),
        other.feed(attention_of(method_of(window=whole)), 38, Phase.QUESTION),
    )


def test_learned_maps_in_place(tmp_path: Any) -> None:
    path = tmp_path / "maps.safetensors"
    width = GROUPS * DIM
    save_learned_projections(path, [Linear(torch.randn(width, 4), torch.randn(width, 4))])
    memory = check(replace(method_of(), compressor=LearnedCompressor(str(path))))
    assert memory.store.reduced_key_count > 0


def test_far_positions_beyond_the_rotary_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions past the table are computed when asked for, and come out the same."""
    monkeypatch.setattr("esa_cli.attention.rope.TABLE_LIMIT", 16)
    for position in POSITIONS:
        check(method_of(position))

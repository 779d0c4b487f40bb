"""Answers decoded by recorded forward calls are those of forward calls, token by token.

Recordings are simulated (`simulated_graph.py`): a number that Python computed for one token and
that differs for the next is replayed wrong there, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory, build_model
from delayed_copies import DelayedCopies
from simulated_device import SimulatedDevice
from simulated_graph import SimulatedGraph, unwaiting_graph
from torch import Tensor

from esa_cli.attention import answer_keys
from esa_cli.attention.method import Method
from esa_cli.attention.positions import Contiguous, FixedDistance, TruePositions
from esa_cli.attention.query_state import Phase, QueryState
from esa_cli.attention.trace import ChunkTrace
from esa_cli.attention.window import Window
from esa_cli.errors import UsageError
from esa_cli.methods.consensus import Consensus
from esa_cli.methods.full_attention import Full
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import Attachment, attach
from esa_cli.models.attachment.cached_rows import in_memory
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.decoding.cuda_graph import MakeGraph, _checked_for_waits
from esa_cli.models.decoding.graph_decoding import GraphDecoding
from esa_cli.models.generation import generate
from esa_cli.storage import growing_rows
from esa_cli.storage.host_store import HostStore
from esa_cli.storage.store_places import MakeStore, StorePlaces

DOCUMENT, QUESTION = 60, 10
WINDOW = Window(initial=4, selected=12, local=8, chunk=32, ending=0)
KEPT = Method(WINDOW, Consensus(passage=4, share=0.5), VoteScore(), position=Contiguous())
DENSE = Method(replace(WINDOW, dense=400), position=FixedDistance(30))
TRUE = replace(KEPT, position=TruePositions(), window=replace(WINDOW, ending=5))
IDS = torch.randint(
    1, VOCABULARY, (1, DOCUMENT + QUESTION), generator=torch.Generator().manual_seed(3)
)


@dataclass
class Answered:
    """An answer, the logits behind its tokens (n, V), and the rows of each layer afterwards."""

    tokens: list[int]
    logits: Tensor
    rows: list[Tensor]
    decoding: GraphDecoding | None


def opened(
    attached: Attachment,
    trace: Callable[[ChunkTrace], None] | None = None,
    ids: Tensor = IDS,
    store: MakeStore = in_memory,
) -> EsaCache:
    """A cache with the document, at the beginning of a turn."""
    cache = attached.new_cache(store)
    attached.model(
        ids[:, :DOCUMENT].to(attached.model.device), past_key_values=cache, use_cache=True
    )
    cache.project()
    begin(cache, trace)
    return cache


def begin(cache: EsaCache, trace: Callable[[ChunkTrace], None] | None = None) -> None:
    cache.begin(
        QueryState(
            Phase.QUESTION, turn_start=DOCUMENT, answer_start=DOCUMENT + QUESTION, trace=trace
        )
    )


def answer(
    attached: Attachment,
    cache: EsaCache,
    tokens: int,
    ids: Tensor = IDS,
    room: int = 0,
    make: MakeGraph = SimulatedGraph,
    compared: bool = True,
    **options: Any,
) -> Answered:
    """By recordings with `room`, the first compared unless that was done; by forward calls
    without."""
    model: Any = attached.model
    decoding = None
    if room:
        outcomes = {True: True, False: True} if compared else {}
        decoding = GraphDecoding(attached, cache, make, room=room, first=2, outcomes=outcomes)
    logits: list[Tensor] = []

    def decode(token: Tensor) -> Tensor:
        if decoding is not None:
            found = decoding(token)
        else:
            found = model(input_ids=token, past_key_values=cache, use_cache=True).logits
        logits.append(found[0, -1].clone())
        return found

    new = generate(model, ids[0].tolist(), cache, max_new_tokens=tokens, decode=decode, **options)
    if decoding is not None:
        decoding.flush()
    rows = [torch.stack(one.store.span(0, len(one.store))) for one in cache.memories]
    return Answered(new, torch.stack(logits), rows, decoding)


def same(got: Answered, want: Answered) -> None:
    assert got.tokens == want.tokens
    torch.testing.assert_close(got.logits, want.logits, rtol=1e-5, atol=3e-5)
    for mine, theirs in zip(got.rows, want.rows, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def both(
    model: Any, method: Method, tokens: int, room: int, make: MakeGraph = SimulatedGraph
) -> tuple[Answered, Answered]:
    """By recordings, and by forward calls."""
    with attach(model, method) as attached, torch.inference_mode():
        want = answer(attached, opened(attached), tokens)
        return answer(attached, opened(attached), tokens, room=room, make=make), want


KINDS = {
    "llama": (KEPT, 0.4), "qwen3": (KEPT, 0.4), "phi3": (DENSE, 0.4), "gemma3_text": (KEPT, 0.2),
    "gemma2": (KEPT, 0.4), "gpt_oss": (KEPT, 0.2), "hunyuan_v1_dense": (KEPT, 0.4),
    "smollm3": (TRUE, 0.4), "qwen3_moe": (KEPT, 0.3), "deepseek_v3": (KEPT, 0.4),
    "qwen3_5_text": (KEPT, 0.4), "ministral3": (TRUE, 0.4),
}  # fmt: skip
"""Plain; norms; part of a head; layers with windows; soft caps; sinks; weights behind the rotation;
a layer that does not rotate; experts; latents; states; queries scaled by position. With the method,
and how large weights are: so that answers do not repeat a token."""


@pytest.mark.parametrize(
    "kind",
    [
        one if one in ("llama", "gemma3_text") else pytest.param(one, marks=pytest.mark.families)
        for one in KINDS
    ],
)
def test_an_answer_over_several_recordings(make_model: ModelFactory, kind: str) -> None:
    method, weights = KINDS[kind]
    # Tied embeddings of Gemma make answers that repeat a token.
    model = make_model(kind, initializer_range=weights, tie_word_embeddings=False)
    got, want = both(model, method, 40, 16)
    assert got.decoding is not None
    assert (got.decoding.reason, got.decoding.replayed) == ("", 37)
    assert len({*want.tokens}) > 5
    same(got, want)


def test_an_answer_of_300_tokens(make_model: ModelFactory) -> None:
    model = make_model("llama", initializer_range=0.4, num_hidden_layers=1)
    got, want = both(model, KEPT, 303, 256)
    assert got.decoding is not None
    assert got.decoding.replayed == 300
    same(got, want)


def test_rows_in_host_memory(make_model: ModelFactory) -> None:
    """They get an answer's rows, 16 at once."""
    places = StorePlaces(16, lambda device: True, lambda device: DelayedCopies())
    with (
        attach(make_model("gemma3_text", initializer_range=0.2), KEPT) as attached,
        torch.inference_mode(),
    ):
        want = answer(attached, opened(attached), 40)
        cache = opened(attached, store=places.stores(range(2)))
        assert isinstance(cache.memories[0].store, HostStore)
        same(answer(attached, cache, 40, room=16), want)


def test_everything_selected(make_model: ModelFactory) -> None:
    method = replace(KEPT, selector=Full())
    same(*both(make_model("llama", initializer_range=0.4), method, 20, 8))


@pytest.mark.parametrize("kind", ["llama", "qwen3_5_text"])
def test_an_end_in_the_middle_and_the_next_turn(make_model: ModelFactory, kind: str) -> None:
    model = make_model(kind, initializer_range=0.4)
    other = torch.cat((IDS[:, :DOCUMENT], IDS[:, DOCUMENT:].flip(1)), 1)
    with attach(model, KEPT) as attached, torch.inference_mode():
        caches = [opened(attached), opened(attached)]
        long = answer(attached, caches[0], 40).tokens
        end = next(token for token in long[15:] if token not in long[:15])
        model.generation_config.eos_token_id = end  # type: ignore[union-attr]
        for ids in (IDS, other, IDS):
            found = []
            for cache, room in zip(caches, (0, 9), strict=True):
                cache.truncate(DOCUMENT)
                begin(cache)
                found.append(answer(attached, cache, 40, ids, room))
            same(found[1], found[0])
        assert found[0].tokens == long[: long.index(end) + 1]


def test_sampled_tokens(make_model: ModelFactory) -> None:
    options = {"temperature": 1.3, "top_p": 0.9}
    with attach(make_model("llama"), KEPT) as attached, torch.inference_mode():
        found = []
        for room in (0, 7):
            torch.manual_seed(5)
            found.append(answer(attached, opened(attached), 25, room=room, **options))
        torch.manual_seed(5)
        stock = generate(
            attached.model, IDS[0].tolist(), opened(attached), max_new_tokens=25, **options
        )
    same(found[1], found[0])
    assert stock == found[1].tokens


def test_an_interrupted_answer_has_its_rows(make_model: ModelFactory) -> None:
    model: Any = make_model("gemma3_text", initializer_range=0.4)
    with attach(model, KEPT) as attached, torch.inference_mode():
        want, cache = answer(attached, opened(attached), 21).rows, opened(attached)
        decoding = GraphDecoding(
            attached, cache, SimulatedGraph, room=8, first=2, outcomes={True: True}
        )

        def interrupted(token: Tensor) -> Tensor:
            if decoding.replayed == 13:
                raise KeyboardInterrupt
            return decoding(token)

        with pytest.raises(KeyboardInterrupt):
            generate(model, IDS[0].tolist(), cache, max_new_tokens=21, decode=interrupted)
        decoding.flush()
        length = DOCUMENT + QUESTION + 2 + 13
        assert cache.get_seq_length() == cache.query.stop == length
        for one, theirs in zip(cache.memories, want, strict=True):
            rows = torch.stack(one.store.span(0, length))
            torch.testing.assert_close(rows, theirs[:, :, :length], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["gemma3_text", "ministral3"])
def test_traces_are_those_of_the_tokens(make_model: ModelFactory, kind: str) -> None:
    """A recording's come together, as chunks of several tokens."""
    found: list[list[ChunkTrace]] = [[], []]
    with attach(make_model(kind, num_hidden_layers=2), TRUE) as attached, torch.inference_mode():
        for traces, room in zip(found, (0, 6), strict=True):
            answer(attached, opened(attached, traces.append), 13, room=room)
    single, chunks = ([one for one in traces if one.decoding] for traces in found)
    single, chunks = ([one for one in traces if one.layer == 1] for traces in (single, chunks))
    assert [one.stop - one.start for one in chunks] == [1, 1, 6, 4]
    assert len(single) == 12
    for chunk in chunks:
        parts = [one for one in single if chunk.start <= one.start < chunk.stop]
        first = parts[0]
        assert (chunk.layer, chunk.local, chunk.initial) == (
            first.layer,
            first.local,
            first.initial,
        )
        for name in ("queries", "scaled", "lse"):
            whole = torch.cat([getattr(one, name) for one in parts], 1)
            torch.testing.assert_close(getattr(chunk, name), whole, rtol=1e-5, atol=1e-5)
        for one in parts:
            assert torch.equal(one.far, chunk.far)  # type: ignore[arg-type]
            at = one.start - chunk.start
            assert int(one.near_positions.query) == int(chunk.near_positions.query[at])
            assert int(one.far_positions[0].query) == int(chunk.far_positions[0].query[at])
            assert torch.equal(one.far_positions[0].key, chunk.far_positions[0].key)


class PluginSelector(Consensus):
    """Could select anew for each token: its class is not of the package."""


CHANGING = {
    "PluginSelector selects": ("llama", replace(KEPT, selector=PluginSelector(passage=4))),
    "more than 40 keys": ("llama", replace(KEPT, window=replace(WINDOW, ending=40))),
    "selects": ("llama", replace(KEPT, selector=Consensus(passage=4, answer="vote"))),
    "moves keys": ("llama", replace(KEPT, position=FixedDistance(30))),
    "keys and a state": ("falcon_h1", KEPT),
    "read the keys of others": ("gemma4_text", KEPT),
    "moves": ("llama", replace(KEPT, window=replace(WINDOW, ending=None))),
}


@pytest.mark.parametrize("reason", CHANGING)
def test_what_changes_is_decoded_as_ever(
    monkeypatch: pytest.MonkeyPatch, make_model: ModelFactory, reason: str
) -> None:
    kind, method = CHANGING[reason]
    monkeypatch.setattr(answer_keys, "MOST", 40)
    model = make_model(kind)
    with attach(model, method) as attached, torch.inference_mode():
        cache = opened(attached)
        decoding = GraphDecoding(attached, cache, SimulatedGraph, first=2)
        want = answer(attached, opened(attached), 12)
        generate(model, IDS[0].tolist(), cache, max_new_tokens=12, decode=decoding)
        assert reason in decoding.reason
        assert decoding.replayed == 0
        rows = [torch.stack(one.store.span(0, len(one.store))) for one in cache.memories]
        assert all(torch.equal(*pair) for pair in zip(rows, want.rows, strict=True))
        required = GraphDecoding(attached, opened(attached), SimulatedGraph, True, first=2)
        with pytest.raises(UsageError, match=reason):
            generate(model, IDS[0].tolist(), required.cache, max_new_tokens=12, decode=required)


@pytest.mark.parametrize(
    "kind", ["llama", pytest.param("qwen3_5_text", marks=pytest.mark.families)]
)
def test_the_first_replay_is_compared_with_a_forward_call(
    make_model: ModelFactory, kind: str
) -> None:
    method, weights = KINDS[kind]
    model = make_model(kind, initializer_range=weights, tie_word_embeddings=False)
    with attach(model, method) as attached, torch.inference_mode():
        want = answer(attached, opened(attached), 20)
        got = answer(attached, opened(attached), 20, room=8, compared=False)
    assert got.decoding is not None
    assert (got.decoding.outcomes, got.decoding.replayed) == ({True: True}, 16)
    same(got, want)


class Wrong(SimulatedGraph):
    """Replays one operation less, as a graph does that lost a write."""

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        result = super().record(function)
        calls = self._recorder.calls
        lost = next(at for at, one in enumerate(calls) if "index_copy_" in str(one[0]))
        del calls[lost]
        return result


def test_a_replay_with_other_logits_is_not_used(make_model: ModelFactory) -> None:
    model = make_model("llama", initializer_range=0.4)
    with attach(model, KEPT) as attached, torch.inference_mode():
        want = answer(attached, opened(attached), 20)
        got = answer(attached, opened(attached), 20, room=8, make=Wrong, compared=False)
        required = GraphDecoding(attached, opened(attached), Wrong, True, first=2)
        with pytest.raises(UsageError, match="other logits than a forward call"):
            generate(model, IDS[0].tolist(), required.cache, max_new_tokens=12, decode=required)
    same(got, want)
    assert got.decoding is not None
    assert (got.decoding.outcomes, got.decoding.replayed) == ({True: False}, 0)


def test_a_forward_call_that_cannot_be_recorded(make_model: ModelFactory) -> None:
    model: Any = make_model("llama")
    handle = model.model.layers[1].register_forward_hook(
        lambda *given: float(given[-1].sum()) and None
    )
    got, want = both(model, KEPT, 12, 8)
    handle.remove()
    same(got, want)
    assert got.decoding is not None
    assert got.decoding.failed
    assert got.decoding.replayed == 0
    assert "item cannot be recorded" in got.decoding.reason


@pytest.mark.parametrize(
    "kind", ["llama", "gemma3_text", "gpt_oss", "qwen3_moe", "deepseek_v3", "qwen3_5_text"]
)
def test_recording_and_replaying_wait_for_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """On a simulated device: nothing is read from it, nothing is copied to it, and no tensor of the
    processor meets one of the device."""
    monkeypatch.setattr(growing_rows, "in_one_segment", lambda device: True)
    model, ids, device = build_model(kind), IDS.clone(), SimulatedDevice()

    make = unwaiting_graph(device)
    device.put(model, ids)
    with device, attach(model, KEPT) as attached, torch.inference_mode():
        cache = opened(attached, ids=ids)
        model(ids[:, DOCUMENT:], past_key_values=cache, use_cache=True)
        decoding, token = (
            GraphDecoding(attached, cache, make, room=4, first=2, outcomes={True: True}),
            ids[:, -1:],
        )
        for _ in range(3):
            decoding(token)
        before = device.traffic
        for _ in range(3):
            decoding(token)
        assert device.traffic == before
        assert (decoding.reason, decoding.replayed) == ("", 4)


def test_a_wait_before_recording_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda warns of its mode, when that is first set, and of each wait."""
    modes: list[Any] = [0]

    def set_mode(mode: Any) -> None:
        modes.append(mode)
        warnings.warn("prototype; does not detect all synchronizing operations", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    with _checked_for_waits():
        assert modes[-1] == "warn"
    with pytest.raises(RuntimeError, match="waits for the GPU"), _checked_for_waits():
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
    assert modes == [0, "warn", 0, "warn", 0]


def test_what_a_simulated_graph_refuses_and_repeats() -> None:
    x, numbers = torch.arange(4.0), iter(range(9))

    def recorded(function: Callable[[], Tensor]) -> SimulatedGraph:
        graph = SimulatedGraph(x.device)
        graph.record(function)
        return graph

    refused: list[Callable[[], Tensor]] = [
        lambda: x * x[1].item(), lambda: x[x > 1], lambda: x.nonzero(),
        lambda: x + torch.tensor([1.0]), lambda: x if torch.equal(x, x) else x + 1,
    ]  # fmt: skip
    for function in refused:
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            recorded(function)
    total, step = torch.zeros(1), torch.zeros(1, dtype=torch.long)

    def advance() -> Tensor:
        total.add_(x.index_select(0, step))
        return total * 10 + next(numbers)

    graph = SimulatedGraph(x.device)
    out = graph.record(advance)
    assert out.isnan().all()
    total.zero_()
    for at in range(4):
        step.fill_(at)
        graph.replay()
        assert total.item() == sum(range(at + 1))
        assert out.item() == total.item() * 10 + 1, "the host's number is that of the recording"

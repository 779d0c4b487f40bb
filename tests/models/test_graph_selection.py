"""Answers of which each token selects for itself are those of forward calls, token by token.

Recordings are simulated (`simulated_graph.py`). No token is twice in a document: the first layer's
keys of equal tokens have equal scores, among which rounding would choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from conftest import ModelFactory, build_model
from delayed_copies import DelayedCopies
from simulated_device import SimulatedDevice
from simulated_graph import SimulatedGraph, unwaiting_graph
from test_graph_decoding import DOCUMENT, WINDOW, Answered, answer, begin, opened, same
from torch import Tensor

from esa_cli.attention import scoring
from esa_cli.attention.compression import ClosedForm, NoCompression
from esa_cli.attention.kernels.plain_scorer import PlainScorer
from esa_cli.attention.kernels.scorer_operands import KeyGroup
from esa_cli.attention.method import Method
from esa_cli.attention.parts import Compressor, PositionEncoding
from esa_cli.attention.positions import Contiguous, FixedDistance, TruePositions
from esa_cli.attention.scoring import SumScore
from esa_cli.attention.selection import TopK
from esa_cli.attention.trace import ChunkTrace
from esa_cli.errors import UsageError
from esa_cli.methods.infllm import InfLLMPositions
from esa_cli.models.attachment.attach import Attachment, attach
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.decoding.cuda_graph import MakeGraph
from esa_cli.models.decoding.graph_decoding import GraphDecoding
from esa_cli.models.generation import generate
from esa_cli.storage import growing_rows
from esa_cli.storage.joined_store import JoinedStore, StoreSlice
from esa_cli.storage.memory_store import MemoryStore
from esa_cli.storage.store_places import StorePlaces

VOCABULARY = 2000
IDS = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(1))[None, :70]
MOVING = replace(WINDOW, local=16, ending=None)
"""As long as recordings have room; M grows by one a token."""
PAPER = Method(MOVING, TopK(proximity=2), SumScore(), ClosedForm(8, 32), FixedDistance(30))
GROWING = replace(PAPER, window=replace(MOVING, ending=4))
"""L grows by one a token, and M stays."""
POSITIONS: dict[str, PositionEncoding] = {
    "far": FixedDistance(30), "near": FixedDistance(6), "contiguous": Contiguous(),
    "true": TruePositions(),
}  # fmt: skip


def model_of(make_model: ModelFactory, kind: str, weights: float = 0.4, **options: Any) -> Any:
    return make_model(
        kind, vocab_size=VOCABULARY, initializer_range=weights, tie_word_embeddings=False, **options
    )


def both(model: Any, method: Method, make: MakeGraph = SimulatedGraph) -> tuple[Answered, Answered]:
    """40 tokens by recordings, and by forward calls."""
    with attach(model, method) as attached, torch.inference_mode():
        want = answer(attached, opened(attached, ids=IDS), 40, IDS)
        return answer(attached, opened(attached, ids=IDS), 40, IDS, 16, make), want


def check(model: Any, method: Method) -> None:
    got, want = both(model, method)
    assert got.decoding is not None
    assert (got.decoding.reason, got.decoding.replayed) == ("", 37)
    assert len({*want.tokens}) > 5
    same(got, want)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("method", [PAPER, GROWING])
def test_an_answer_over_several_recordings(
    make_model: ModelFactory, method: Method, position: str
) -> None:
    check(model_of(make_model, "llama"), replace(method, position=POSITIONS[position]))


FAMILIES = {
    "qwen3": 0.4, "phi3": 0.4, "gemma3_text": 0.2, "gemma2": 0.4, "gpt_oss": 0.2,
    "hunyuan_v1_dense": 0.4, "smollm3": 0.4, "qwen3_moe": 0.3, "deepseek_v3": 0.4,
    "qwen3_5_text": 0.4, "ministral3": 0.4,
}  # fmt: skip
"""See `test_graph_decoding.KINDS`."""


@pytest.mark.parametrize(
    "kind",
    [
        one if one == "gemma3_text" else pytest.param(one, marks=pytest.mark.families)
        for one in FAMILIES
    ],
)
def test_families(make_model: ModelFactory, kind: str) -> None:
    model = model_of(make_model, kind, FAMILIES[kind])
    check(model, PAPER)
    check(model, replace(GROWING, position=TruePositions()))


def test_whole_keys_are_scored(make_model: ModelFactory) -> None:
    check(model_of(make_model, "llama"), replace(PAPER, compressor=NoCompression()))


class TableScorer(PlainScorer):
    """Reads a group's table of addresses, as the Triton kernels do."""

    def chunk_maxima(self, group: KeyGroup, maxima: Tensor, out: Tensor) -> None:
        assert group.table.shape == (3, len(group.blocks))
        query = group.queries.rounded[0, : group.queries.rank]
        for block, offset in zip(group.blocks, group.offsets, strict=True):
            out[offset : offset + block.shape[0]] = block @ query


@pytest.mark.parametrize("compressor", [ClosedForm(8, 32), NoCompression()])
def test_scores_of_a_kernel(
    monkeypatch: pytest.MonkeyPatch, make_model: ModelFactory, compressor: Compressor
) -> None:
    """Its tables of blocks are made before they are recorded."""
    monkeypatch.setattr(scoring, "scoring_kernel", lambda name, device: TableScorer())
    check(model_of(make_model, "llama"), replace(PAPER, compressor=compressor))


def test_the_next_turn(make_model: ModelFactory) -> None:
    """Reduced keys that a recording needed early are cropped with their tokens."""
    other = torch.cat((IDS[:, :DOCUMENT], IDS[:, DOCUMENT:].flip(1)), 1)
    with attach(model_of(make_model, "llama"), PAPER) as attached, torch.inference_mode():
        caches = [opened(attached, ids=IDS) for _ in range(2)]
        for ids in (IDS, other, IDS):
            found = []
            for cache, room in zip(caches, (0, 16), strict=True):
                cache.truncate(DOCUMENT)
                begin(cache)
                found.append(answer(attached, cache, 25, ids, room))
            same(found[1], found[0])


def test_each_token_has_a_trace(make_model: ModelFactory) -> None:
    found: list[list[ChunkTrace]] = [[], []]
    with (
        attach(model_of(make_model, "ministral3"), GROWING) as attached,
        torch.inference_mode(),
    ):
        for traces, room in zip(found, (0, 6), strict=True):
            answer(attached, opened(attached, traces.append, IDS), 13, IDS, room)
    mine, theirs = (
        sorted((one for one in traces if one.decoding), key=lambda one: (one.layer, one.start))
        for traces in found
    )
    assert len({tuple(one.far.tolist()) for one in mine}) > 4  # type: ignore[union-attr]
    for one, other in zip(mine, theirs, strict=True):
        for name in ("layer", "start", "stop", "initial", "local"):
            assert getattr(one, name) == getattr(other, name)
        assert torch.equal(one.far, other.far)  # type: ignore[arg-type]
        for name in ("queries", "scaled", "lse"):
            torch.testing.assert_close(
                getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-5
            )
        for near, far in zip(
            (one.near_positions, one.far_positions[0]),
            (other.near_positions, other.far_positions[0]),
            strict=True,
        ):
            assert torch.equal(near.key, far.key)
            assert torch.equal(near.query, far.query)


def joined(attached: Attachment, cache: EsaCache, parts: Sequence[int]) -> EsaCache:
    """A cache with the document of another in parts of these lengths, as a session opens it."""
    memories, found = cache.memories, attached.new_cache()
    ends = torch.tensor([0, *parts]).cumsum(0).tolist()
    stores = [
        JoinedStore(
            [StoreSlice(one.store, *pair) for pair in pairwise(ends)],
            MemoryStore(one.store.heads, one.store.dim, torch.float32, attached.model.device),
        )
        for one in memories
    ]
    found.hold(stores, [one.projection for one in memories])
    return found


@pytest.mark.parametrize("parts", [[], [60], [25, 15, 20]])
@pytest.mark.parametrize("kind", ["llama", "deepseek_v3"])
def test_recording_and_replaying_wait_for_nothing(
    monkeypatch: pytest.MonkeyPatch, kind: str, parts: list[int]
) -> None:
    """On a simulated device, with one store and with several documents."""
    monkeypatch.setattr(growing_rows, "in_one_segment", lambda device: True)
    model, ids, device = build_model(kind, vocab_size=VOCABULARY), IDS.clone(), SimulatedDevice()

    make = unwaiting_graph(device)
    device.put(model, ids)
    with device, attach(model, PAPER) as attached, torch.inference_mode():
        logits = []
        for room in (0, 4):
            cache = opened(attached, ids=ids)
            cache = joined(attached, cache, parts) if parts else cache
            begin(cache)
            model(ids[:, DOCUMENT:], past_key_values=cache, use_cache=True)
            decoding = GraphDecoding(
                attached, cache, make, room=room or 4, first=2, outcomes={False: True}
            )
            decoding.reason = "" if room else "compared with"
            logits.append([decoding(ids[:, at : at + 1]).clone() for at in range(3)])
            before = device.traffic
            logits[-1] += [decoding(ids[:, at : at + 1]).clone() for at in range(3, 6)]
            assert device.traffic == before or not room
            assert decoding.replayed == room, decoding.reason
        torch.testing.assert_close(torch.cat(logits[1]), torch.cat(logits[0]), rtol=1e-5, atol=3e-5)


class PluginTopK(TopK):
    """Could select in other ways: its class is not of the package."""


class PluginMaps(ClosedForm):
    """Its maps could read what they are given."""


REFUSED = {
    "PluginTopK selects": replace(PAPER, selector=PluginTopK()),
    "a plugin's compressor": replace(PAPER, compressor=PluginMaps(8, 32)),
    "not by the score sum": replace(PAPER, score=SumScore(rotate=True)),
    "window of 15": replace(PAPER, window=replace(MOVING, local=15, ending=None)),
    "all middle tokens": replace(PAPER, window=replace(MOVING, selected=60, dense=10)),
    "InfLLMPositions": replace(PAPER, position=InfLLMPositions(30)),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_decoded_as_ever(make_model: ModelFactory, reason: str) -> None:
    with (
        attach(model_of(make_model, "llama"), REFUSED[reason]) as attached,
        torch.inference_mode(),
    ):
        got = answer(attached, opened(attached, ids=IDS), 12, IDS, room=17)
        assert got.decoding is not None
        assert reason in got.decoding.reason
        assert (got.decoding.failed, got.decoding.replayed) == (False, 0)


def test_rows_that_are_elsewhere_are_decoded_as_ever(make_model: ModelFactory) -> None:
    """In host memory, and of four documents."""
    places = StorePlaces(16, lambda device: True, lambda device: DelayedCopies())
    with attach(model_of(make_model, "llama"), PAPER) as attached, torch.inference_mode():
        caches = [
            opened(attached, ids=IDS, store=places.stores(range(2))),
            joined(attached, opened(attached, ids=IDS), [15, 15, 15, 15]),
        ]
        for cache in caches:
            begin(cache)
            decoding = GraphDecoding(attached, cache, SimulatedGraph, True, room=16, first=2)
            with pytest.raises(UsageError, match="in host memory, on disk, or of more than three"):
                generate(attached.model, IDS[0].tolist(), cache, max_new_tokens=9, decode=decoding)

"""Transformers' `generate` with our cache, and one answer by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory

from esa_cli.attention.method import Method
from esa_cli.attention.positions import ContiguousPositions, FixedDistancePositions
from esa_cli.attention.window import Window
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import AttachedModel, attach
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.text_passes.generation import generate

DOCUMENT, QUESTION, ANSWER = 50, 9, 14
WINDOW = Window(initial=4, selected=10, local=8, chunk=7)
METHODS = {
    "paper": Method(WINDOW, position=FixedDistancePositions(30)),
    "vote": Method(WINDOW, position=FixedDistancePositions(30), score=VoteScore(shortlist=20)),
    "contiguous": Method(WINDOW, position=ContiguousPositions(30)),
    "local reading": Method(WINDOW, position=FixedDistancePositions(30), reading="local"),
}


@pytest.fixture
def attached(make_model: ModelFactory) -> Iterator[AttachedModel]:
    # Weights this large make answers that do not fall into a loop at once.
    model = make_model("qwen3", seed=2, initializer_range=0.4)
    with attach(model, METHODS["paper"]) as found:
        yield found


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (1, DOCUMENT + QUESTION))


def read(attached: AttachedModel, ids: torch.Tensor) -> EsaCache:
    """A cache that holds the document but not yet the question."""
    cache = attached.new_cache()
    attached.model(ids[:, :DOCUMENT], past_key_values=cache)
    return cache


def stock(attached: AttachedModel, ids: torch.Tensor, cache: EsaCache, **options: Any) -> list[int]:
    """The new tokens of stock `generate`."""
    out = attached.model.generate(
        ids, past_key_values=cache, max_new_tokens=ANSWER, **{"do_sample": False, **options}
    )
    assert torch.equal(out[:, : ids.shape[1]], ids)
    return out[0, ids.shape[1] :].tolist()


def by_hand(attached: AttachedModel, ids: torch.Tensor, cache: EsaCache) -> list[int]:
    """Greedy search written out."""
    piece, answer = ids[:, cache.get_seq_length() :], []
    for _ in range(ANSWER):
        logits = attached.model(piece, past_key_values=cache).logits
        answer.append(int(logits[0, -1].argmax()))
        piece = torch.tensor([answer[-1:]])
    return answer


@pytest.mark.parametrize("name", METHODS)
def test_greedy_search_is_a_loop_over_forward_calls(
    attached: AttachedModel, ids: torch.Tensor, name: str
) -> None:
    attached.method = METHODS[name]
    want = by_hand(attached, ids, read(attached, ids))
    assert len(set(want)) > 3
    assert stock(attached, ids, read(attached, ids)) == want


@pytest.mark.parametrize("room", [0, 4, ANSWER + 1])
def test_an_answer_that_begins_dense_stays_dense(
    make_model: ModelFactory, ids: torch.Tensor, room: int
) -> None:
    """However many tokens of it fit before `window.dense`."""
    model = make_model("llama")
    options = {"max_new_tokens": ANSWER, "do_sample": False}
    want = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    window = Window(initial=4, selected=5, local=6, dense=ids.shape[1] + room)
    with attach(model, Method(window, position=FixedDistancePositions(100))) as attached:
        got = model.generate(ids, past_key_values=attached.new_cache(), **options)
    assert torch.equal(got, want)


# -- An answer by `generate`


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5, "top_p": 0.95}], ids=str)
def test_an_answer_is_that_of_stock_generate(
    attached: AttachedModel, ids: torch.Tensor, sampling: dict[str, float]
) -> None:
    options = {**sampling, "top_k": 0, "do_sample": True} if sampling else {}
    torch.manual_seed(1)
    want = stock(attached, ids, read(attached, ids), **options)
    torch.manual_seed(1)
    got = generate(
        attached.model, ids[0].tolist(), read(attached, ids), max_new_tokens=ANSWER, **sampling
    )
    assert got == want

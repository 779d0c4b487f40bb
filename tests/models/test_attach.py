"""Attached models against the same models with stock attention, and what `attach` refuses."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory
from stock_attention import LENGTH, SCALED, close, everything, in_pieces, tokens
from transformers import DynamicCache, PreTrainedModel

from esa_cli.attention.method import Method
from esa_cli.attention.positions import ContiguousPositions, FixedDistancePositions, TruePositions
from esa_cli.attention.window import Window
from esa_cli.errors import ModelError, UsageError
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import AttachedModel, attach
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.text_passes.generation import AnswerStreamer, generate
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import load_preset


def selective(chunk: int = 8, **options: Any) -> Method:
    window = Window(initial=4, selected=12, local=8, chunk=chunk)
    return Method(window=window, **{"position": FixedDistancePositions(40), **options})


def test_the_difference_to_stock_is_rounding(make_model: ModelFactory) -> None:
    """In float64 it shrinks to what the float32 log-sum-exp of the fusion leaves."""
    model, ids = make_model("qwen3").double(), tokens()
    want = model(ids).logits
    with attach(model, everything(7, 0)) as attached:
        close(in_pieces(model, attached.new_cache(), ids, 23), want, 3e-6)
        close(in_pieces(model, attached.new_cache(), ids, 1), want, 1e-12)


@pytest.mark.parametrize(("kind", "chunk"), [("llama3", 1), ("yarn", 7), ("linear", 1000)])
def test_scaled_rope(make_model: ModelFactory, kind: str, chunk: int) -> None:
    model, ids = make_model("llama", rope_parameters=SCALED[kind]), tokens()
    assert not torch.allclose(make_model("llama")(ids).logits, model(ids).logits, atol=1e-2)
    want = model(ids).logits
    for dense in (None, 0):
        with attach(model, everything(chunk, dense)) as attached:
            close(model(ids, past_key_values=attached.new_cache()).logits, want)


def test_an_interrupted_forward_can_be_taken_back(make_model: ModelFactory) -> None:
    """It leaves the first layer longer than the second; `truncate` makes them even again."""
    model, ids = make_model("llama"), tokens()

    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    with attach(model, selective()) as attached:
        cache = attached.new_cache()
        model(ids[:, :50], past_key_values=cache)
        want = model(ids[:, 50:], past_key_values=cache).logits
        cache.truncate(50)
        hook = model.base_model.layers[1].self_attn.q_proj.register_forward_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            model(ids[:, 50:], past_key_values=cache)
        hook.remove()
        assert [layer.get_seq_length() for layer in cache.layers] == [LENGTH, 50]
        with pytest.raises(UsageError, match="last forward call was interrupted"):
            model(ids[:, :1], past_key_values=cache)
        cache.truncate(50)
        close(model(ids[:, 50:], past_key_values=cache).logits, want)


def alone(model: PreTrainedModel, method: Method, pieces: list[torch.Tensor]) -> list[torch.Tensor]:
    with attach(model, method) as attached:
        cache = attached.new_cache()
        return [model(piece, past_key_values=cache).logits for piece in pieces]


def test_two_models_at_once(make_model: ModelFactory) -> None:
    """Other methods, other families, calls by turns, and one detached before the other."""
    first, second = make_model("llama"), make_model("qwen3", seed=1)
    methods = selective(), selective(3, position=ContiguousPositions(20), score=VoteScore())
    pieces = [*tokens(60).split(17, dim=1)]
    wanted = [alone(first, methods[0], pieces), alone(second, methods[1], pieces)]
    one, two = attach(first, methods[0]), attach(second, methods[1])
    caches = one.new_cache(), two.new_cache()
    for i, piece in enumerate(pieces[:-1]):
        assert torch.equal(first(piece, past_key_values=caches[0]).logits, wanted[0][i])
        assert torch.equal(second(piece, past_key_values=caches[1]).logits, wanted[1][i])
    one.detach()
    assert torch.equal(second(pieces[-1], past_key_values=caches[1]).logits, wanted[1][-1])
    two.detach()


@pytest.fixture
def attached(make_model: ModelFactory) -> Iterator[AttachedModel]:
    with attach(make_model("llama"), selective()) as found:
        yield found


def test_other_caches_and_none_are_refused(attached: AttachedModel) -> None:
    stock = DynamicCache(config=attached.model.config)
    for options in ({"use_cache": False}, {}, {"past_key_values": stock}):
        with pytest.raises(UsageError, match="needs a KV cache of ESA"):
            attached.model(tokens(), **options)


def test_cache_from_before_detach(make_model: ModelFactory) -> None:
    """It hands on one token only, and stock attention would believe it."""
    model = make_model("llama")
    with attach(model, selective()) as first:
        cache = first.new_cache()
        model(tokens(20), past_key_values=cache)
    with pytest.raises(UsageError):
        model(tokens(1), past_key_values=cache)
    with attach(model, selective()), pytest.raises(UsageError):
        model(tokens(1), past_key_values=cache)


def test_padding(attached: AttachedModel) -> None:
    mask = torch.ones(1, LENGTH, dtype=torch.long)
    mask[:, 3] = 0
    cache = attached.new_cache()
    with pytest.raises(UsageError, match="accepts no padding"):
        attached.model(tokens(), attention_mask=mask, past_key_values=cache)
    assert cache.get_seq_length() == 0


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 16}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0}),
        ("llama", {"rope_parameters": DYNAMIC}),
        ("llama", {"rope_parameters": {**DYNAMIC, "alpha": 50.0}}),
    ],
)
def test_unsupported_attention(
    make_model: ModelFactory, family: str, changes: dict[str, Any]
) -> None:
    model, ids = make_model(family, **changes), tokens()
    want = model(ids).logits
    with pytest.raises(ModelError):
        attach(model, selective())
    assert torch.equal(model(ids).logits, want)


def test_suspended_is_the_bare_model_and_the_rows_stay(make_model: ModelFactory) -> None:
    model, ids, short = make_model("qwen2"), tokens(), tokens(20, seed=8)
    bare = model(short).logits
    with attach(model, selective()) as attachment:
        other, cache = attachment.new_cache(), attachment.new_cache()
        model(ids[:, :50], past_key_values=other)
        want = model(ids[:, 50:], past_key_values=other).logits
        model(ids[:, :50], past_key_values=cache)
        with attachment.suspend_method():
            assert torch.equal(model(short).logits, bare)
            stock = model(short[:, :12], past_key_values=DynamicCache()).past_key_values
            last = model(short[:, 12:], past_key_values=stock).logits
            torch.testing.assert_close(last, bare[:, 12:], atol=1e-4, rtol=1e-4)
        assert cache.get_seq_length() == 50
        assert torch.equal(model(ids[:, 50:], past_key_values=cache).logits, want)
    assert torch.equal(model(short).logits, bare)


DOCUMENT, QUESTION, ANSWER = 50, 9, 14
WINDOW = Window(initial=4, selected=10, local=8, chunk=7)
METHODS = {
    "paper": Method(WINDOW, position=FixedDistancePositions(30)),
    "vote": Method(WINDOW, position=FixedDistancePositions(30), score=VoteScore(shortlist=20)),
    "contiguous": Method(WINDOW, position=ContiguousPositions(30)),
    "local reading": Method(WINDOW, position=FixedDistancePositions(30), reading="local"),
}


@pytest.fixture
def answering(make_model: ModelFactory) -> Iterator[AttachedModel]:
    # Weights this large make answers that do not fall into a loop at once.
    model = make_model("qwen3", seed=2, initializer_range=0.4)
    with attach(model, METHODS["paper"]) as found:
        yield found


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (1, DOCUMENT + QUESTION))


def read(answering: AttachedModel, ids: torch.Tensor) -> EsaCache:
    """A cache that holds the document but not yet the question."""
    cache = answering.new_cache()
    answering.model(ids[:, :DOCUMENT], past_key_values=cache)
    return cache


def stock(
    answering: AttachedModel, ids: torch.Tensor, cache: EsaCache, **options: Any
) -> list[int]:
    """The new tokens of stock `generate`."""
    out = answering.model.generate(
        ids, past_key_values=cache, max_new_tokens=ANSWER, **{"do_sample": False, **options}
    )
    assert torch.equal(out[:, : ids.shape[1]], ids)
    return out[0, ids.shape[1] :].tolist()


def by_hand(answering: AttachedModel, ids: torch.Tensor, cache: EsaCache) -> list[int]:
    """Greedy search written out."""
    piece, answer = ids[:, cache.get_seq_length() :], []
    for _ in range(ANSWER):
        logits = answering.model(piece, past_key_values=cache).logits
        answer.append(int(logits[0, -1].argmax()))
        piece = torch.tensor([answer[-1:]])
    return answer


@pytest.mark.parametrize("name", METHODS)
def test_greedy_search_is_a_loop_over_forward_calls(
    answering: AttachedModel, ids: torch.Tensor, name: str
) -> None:
    answering.method = METHODS[name]
    want = by_hand(answering, ids, read(answering, ids))
    assert len(set(want)) > 3
    assert stock(answering, ids, read(answering, ids)) == want


@pytest.mark.parametrize("room", [0, 4, ANSWER + 1])
def test_an_answer_that_begins_dense_stays_dense(
    make_model: ModelFactory, ids: torch.Tensor, room: int
) -> None:
    """However many tokens of it fit before `window.dense`."""
    model = make_model("llama")
    options = {"max_new_tokens": ANSWER, "do_sample": False}
    want = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    window = Window(initial=4, selected=5, local=6, dense=ids.shape[1] + room)
    with attach(model, Method(window, position=FixedDistancePositions(100))) as answering:
        got = model.generate(ids, past_key_values=answering.new_cache(), **options)
    assert torch.equal(got, want)


# -- An answer by `generate`


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.5, "top_p": 0.95}], ids=str)
def test_an_answer_is_that_of_stock_generate(
    answering: AttachedModel, ids: torch.Tensor, sampling: dict[str, float]
) -> None:
    options = {**sampling, "top_k": 0, "do_sample": True} if sampling else {}
    torch.manual_seed(1)
    want = stock(answering, ids, read(answering, ids), **options)
    torch.manual_seed(1)
    streamer = AnswerStreamer(SimpleNamespace(decode=lambda ids, **_: ""), None)
    generate(
        answering.model, ids[0].tolist(), read(answering, ids), streamer,
        max_new_tokens=ANSWER, **sampling,
    )  # fmt: skip
    assert streamer.ids == want


TEXT = "The gate opens at nine and the market closes at dusk. " * 10
INSPECTED_QUESTION = "When does the gate open?"
WHOLE = Method(window=Window(initial=4, selected=1000, local=8, chunk=16), position=TruePositions())


def inspected_tokens(count: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(1, VOCABULARY, (1, count), generator=generator)


# -- Generation settings


def answer(loaded: Any) -> str:
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random")) as session:
        session.read(TEXT)
        return session.ask(INSPECTED_QUESTION).text


@pytest.fixture(scope="module")
def plain(loaded: Any) -> str:
    return answer(loaded)


@pytest.mark.parametrize(
    "changes",
    [
        {"use_cache": False, "max_length": 20, "min_new_tokens": 14},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "num_beams": 2},
        {"do_sample": True, "temperature": 0.6, "return_dict_in_generate": True},
    ],
)
def test_the_hosts_generation_settings_are_not_the_answers(
    loaded: Any, plain: str, changes: dict[str, Any]
) -> None:
    want, model = plain, loaded.model
    host = copy.deepcopy(model.generation_config)
    for name, value in changes.items():
        setattr(host, name, value)
    before, model.generation_config = model.generation_config, host
    try:
        assert answer(loaded) == want
        assert model.generation_config is host, "put back"
        assert all(getattr(host, name) == value for name, value in changes.items())
    finally:
        model.generation_config = before


# -- Attachments


def test_an_attachment_that_is_dropped_leaves_the_model_as_it_was(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), inspected_tokens()
    want, rotary, config = model(ids).logits, model.model.rotary_emb, model.config
    inspected = attach(model, WHOLE)
    model(ids, past_key_values=inspected.new_cache())
    del inspected
    gc.collect()
    assert model.model.rotary_emb is rotary
    assert model.config is config
    assert torch.equal(model(ids).logits, want)
    attach(model, WHOLE).detach()


@pytest.mark.parametrize("body_first", [True, False])
def test_a_model_and_its_body_are_attached_once(make_model: ModelFactory, body_first: bool) -> None:
    model, ids = make_model("llama"), inspected_tokens()
    want = model(ids).logits
    first, second = (model.model, model) if body_first else (model, model.model)
    with attach(first, WHOLE), pytest.raises(ModelError, match="already attached"):
        attach(second, WHOLE)
    assert torch.equal(model(ids).logits, want)


# -- Places


@pytest.fixture
def inspected(make_model: ModelFactory) -> Iterator[AttachedModel]:
    with attach(make_model("llama"), WHOLE) as found:
        yield found


@pytest.mark.parametrize("first", [0, 21])
def test_tokens_elsewhere_than_behind_the_cached_ones_are_refused(
    inspected: AttachedModel, first: int
) -> None:
    cache, ids = inspected.new_cache(), inspected_tokens()
    inspected.model(ids[:, :20], past_key_values=cache)
    with pytest.raises(UsageError, match="must follow the 20 cached tokens"):
        inspected.model(
            ids[:, 20:], past_key_values=cache, position_ids=torch.arange(20)[None] + first
        )
    behind = torch.arange(20, 40)[None]
    got = inspected.model(ids[:, 20:], past_key_values=cache, position_ids=behind).logits
    cache.truncate(20)
    assert torch.equal(got, inspected.model(ids[:, 20:], past_key_values=cache).logits)

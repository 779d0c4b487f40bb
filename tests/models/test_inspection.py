"""Hosts that come with settings of their own, or are treated roughly: the answer is the same, and
the model is afterwards what it was; what cannot be right is refused."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory

from esa_cli.attention.method import Method
from esa_cli.attention.positions import TruePositions
from esa_cli.attention.window import Window
from esa_cli.errors import ModelError, UsageError
from esa_cli.models.attachment.attach import AttachedModel, attach
from esa_cli.qa.answering.session import Session
from esa_cli.qa.presets.preset import load_preset

TEXT = "The gate opens at nine and the market closes at dusk. " * 10
QUESTION = "When does the gate open?"
WHOLE = Method(window=Window(initial=4, selected=1000, local=8, chunk=16), position=TruePositions())


def tokens(count: int = 40) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randint(1, VOCABULARY, (1, count), generator=generator)


# -- Generation settings


def answer(loaded: Any) -> str:
    with Session(loaded.model, loaded.tokenizer, load_preset("tiny-random")) as session:
        session.read(TEXT)
        return session.ask(QUESTION).text


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
    model, ids = make_model("llama"), tokens()
    want, rotary, config = model(ids).logits, model.model.rotary_emb, model.config
    attached = attach(model, WHOLE)
    model(ids, past_key_values=attached.new_cache())
    del attached
    gc.collect()
    assert model.model.rotary_emb is rotary
    assert model.config is config
    assert torch.equal(model(ids).logits, want)
    attach(model, WHOLE).detach()


@pytest.mark.parametrize("body_first", [True, False])
def test_a_model_and_its_body_are_attached_once(make_model: ModelFactory, body_first: bool) -> None:
    model, ids = make_model("llama"), tokens()
    want = model(ids).logits
    first, second = (model.model, model) if body_first else (model, model.model)
    with attach(first, WHOLE), pytest.raises(ModelError, match="already attached"):
        attach(second, WHOLE)
    assert torch.equal(model(ids).logits, want)


# -- Places


@pytest.fixture
def attached(make_model: ModelFactory) -> Iterator[AttachedModel]:
    with attach(make_model("llama"), WHOLE) as found:
        yield found


@pytest.mark.parametrize("first", [0, 21])
def test_tokens_elsewhere_than_behind_the_cached_ones_are_refused(
    attached: AttachedModel, first: int
) -> None:
    cache, ids = attached.new_cache(), tokens()
    attached.model(ids[:, :20], past_key_values=cache)
    with pytest.raises(UsageError, match="must follow the 20 cached tokens"):
        attached.model(
            ids[:, 20:], past_key_values=cache, position_ids=torch.arange(20)[None] + first
        )
    behind = torch.arange(20, 40)[None]
    got = attached.model(ids[:, 20:], past_key_values=cache, position_ids=behind).logits
    cache.truncate(20)
    assert torch.equal(got, attached.model(ids[:, 20:], past_key_values=cache).logits)

"""Attached models against the same models with stock attention, and what `attach` refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from conftest import ModelFactory
from stock_attention import LENGTH, SCALED, close, everything, in_pieces, tokens
from transformers import DynamicCache, PreTrainedModel

from esa_cli.attention.method import Method
from esa_cli.attention.positions import ContiguousPositions, FixedDistancePositions
from esa_cli.attention.window import Window
from esa_cli.errors import ModelError, UsageError
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import AttachedModel, attach


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

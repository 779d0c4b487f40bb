"""States of layers that keep one in place of keys: kept, restored, and asked for in vain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import VOCABULARY, build_model

from esa_cli.attention.method import Method
from esa_cli.attention.positions import TruePositions
from esa_cli.attention.window import Window
from esa_cli.errors import UsageError
from esa_cli.models.attachment.attach import AttachedModel, attach
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.text_passes.model_forward import call_before_each_layer

WHOLE = Method(window=Window(initial=4, selected=1000, local=8, chunk=16), position=TruePositions())
IDS = torch.randint(1, VOCABULARY, (1, 60), generator=torch.Generator().manual_seed(7))


@pytest.fixture(params=["lfm2", "qwen3_next", "nemotron_h", "falcon_h1"])
def model(request: pytest.FixtureRequest) -> Any:
    return build_model(request.param)


def logits(attached: AttachedModel, cache: EsaCache, start: int, stop: int) -> torch.Tensor:
    out: torch.Tensor = attached.model(IDS[:, start:stop], past_key_values=cache).logits
    return out


def test_a_cache_goes_back_to_where_the_last_long_call_began(model: Any) -> None:
    with attach(model, WHOLE) as attached:
        cache = attached.new_cache()
        logits(attached, cache, 0, 30)
        first = logits(attached, cache, 30, 50)
        for token in range(50, 55):
            logits(attached, cache, token, token + 1)
        cache.crop(-25)
        assert cache.get_seq_length() == 30
        assert torch.equal(logits(attached, cache, 30, 50), first)
        cache.truncate(0)
        logits(attached, cache, 0, 30)
        assert torch.equal(logits(attached, cache, 30, 50), first)


def test_it_cannot_go_back_to_where_nothing_was_kept(model: Any) -> None:
    with attach(model, WHOLE) as attached:
        cache = attached.new_cache()
        logits(attached, cache, 0, 30)
        last = logits(attached, cache, 30, 40)
        with pytest.raises(UsageError, match=r"states .* were not copied at 35 tokens"):
            cache.truncate(35)
        assert cache.get_seq_length() == 40
        cache.truncate(50)
        cache.truncate(30)
        assert torch.equal(logits(attached, cache, 30, 40), last)
        with pytest.raises(ValueError, match="negative"):
            cache.crop(1)


@pytest.mark.parametrize("layer", [0, 1])
def test_an_interrupted_call_is_undone(model: Any, layer: int) -> None:
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == layer + 1:
            raise KeyboardInterrupt

    with attach(model, WHOLE) as attached:
        cache, straight = attached.new_cache(), attached.new_cache()
        logits(attached, straight, 0, 30)
        want = logits(attached, straight, 30, 50)
        logits(attached, cache, 0, 30)
        with call_before_each_layer(model, stop), pytest.raises(KeyboardInterrupt):
            logits(attached, cache, 30, 50)
        with pytest.raises(UsageError, match="interrupted"):
            logits(attached, cache, 30, 50)
        cache.truncate(30)
        assert torch.equal(logits(attached, cache, 30, 50), want)


def test_states_have_no_gradients_and_serve_in_every_mode(model: Any) -> None:
    with attach(model, WHOLE) as attached, torch.enable_grad():
        cache = attached.new_cache()
        with torch.inference_mode():
            logits(attached, cache, 0, 30)
            cache.store_state_snapshot()
        logits(attached, cache, 30, 40)
        logits(attached, cache, 40, 41)
        assert not any(one.requires_grad for one in cache.states.copy_states()[0].values())
        assert not any(
            one.requires_grad
            for layer in cache.states.layers
            for one in layer.conv_states.values()
            if one is not None
        )
        cache.truncate(30)
        with torch.inference_mode():
            logits(attached, cache, 30, 31)

"""States of layers that keep one in place of keys: kept, restored, and asked for in vain."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import VOCABULARY, build_model, build_step
from torch import Tensor, nn

from esa_cli.attention.method import Method
from esa_cli.attention.positions import TruePositions
from esa_cli.attention.selection import LogitSum
from esa_cli.attention.window import Window
from esa_cli.errors import UsageError
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import AttachedModel, attach
from esa_cli.models.attachment.kv_cache import EsaCache
from esa_cli.models.text_passes.text_forward import call_before_each_layer

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


COUNT = 30
METHOD = Method(Window(3, 1000, 5, 7, dense=0), position=TruePositions())


def close(got: Tensor, want: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def tokens(count: int = 50) -> Tensor:
    return torch.randint(1, VOCABULARY, (1, count), generator=torch.Generator().manual_seed(7))


def module_of(model: Any) -> Any:
    return model.base_model.layers[0].self_attn


def drawn(module: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (H, n, N + R), latents (1, n, L) and rotary parts of keys (1, n, R), unrotated."""
    q = torch.randn(module.num_heads, COUNT, module.qk_head_dim)
    return q, torch.randn(1, COUNT, module.kv_lora_rank), torch.randn(1, COUNT, 8)


@pytest.mark.parametrize("rotate", [False, True])
def test_scores_are_those_of_expanded_keys(rotate: bool) -> None:
    model = build_model("deepseek_v3")
    module = module_of(model)
    q, latents, rotary = drawn(module)
    keys, _ = module.expand_kv(latents[None], rotary[None])
    with attach(model, METHOD) as attached:
        rope, absorbed = attached.rotary_embedding, attached.latents[0].project_queries(q)
    rows = build_step(absorbed, torch.cat((rotary, latents), -1), rope=rope)
    # The dimensions that rotate first, as `Rope` has them.
    expanded = build_step(q.roll(8, -1), keys[0].roll(8, -1), rope=rope)
    for score in (LogitSum(rotate=rotate), VoteScore()):
        close(score.scores(rows), score.scores(expanded), 1e-4)
    for (_, one), (_, other) in zip(
        rows.head_logits(rotate), expanded.head_logits(rotate), strict=True
    ):
        close(one, other, 2e-5)


class Packed(nn.Module):
    """A linear layer whose weight is bytes with a scale for each row."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach()
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.weight = nn.Buffer((weight / scale).round().to(torch.int8))
        self.scale = nn.Buffer(scale)

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight.to(x) * self.scale.to(x)).T


def test_quantised_maps_are_dequantised_once_and_adapters_change_them() -> None:
    model, ids = build_model("deepseek_v3"), tokens()
    packed = module_of(model).kv_b_proj = Packed(module_of(model).kv_b_proj)

    def double(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return 2 * output

    plain = model(ids).logits
    with attach(model, METHOD) as attached:
        close(model(ids, past_key_values=attached.new_cache()).logits, plain)
        hook = packed.register_forward_hook(double)
        with attached.suspend_method():
            want = model(ids).logits
        assert (want - plain).abs().max() > 0.1
        close(model(ids, past_key_values=attached.new_cache()).logits, want)
        hook.remove()
        close(model(ids, past_key_values=attached.new_cache()).logits, plain)
        packed.scale *= 2  # not read again
        close(model(ids, past_key_values=attached.new_cache()).logits, plain)

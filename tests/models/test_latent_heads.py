"""Attention over latents against keys and values made from them, as the model makes them."""

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
from esa_cli.methods.voting import VoteScore
from esa_cli.models.attachment.attach import attach

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

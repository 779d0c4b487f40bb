"""Attention in blocks of queries equals transformers' own, and ends with its block."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import ModelFactory
from torch.nn.functional import scaled_dot_product_attention
from transformers import DynamicCache

from esa_cli.models import block_attention as module
from esa_cli.models.block_attention import block_attention, causal_attention, supports_blocks

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("block", [1, 3, 7, 64])
@pytest.mark.parametrize(("count", "length"), [(11, 11), (4, 11), (1, 11)])
def test_equals_pytorchs_attention(
    count: int, length: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    torch.manual_seed(count)
    query = torch.randn(2, 6, count, 8)
    key, value = torch.randn(2, 2, 2, length, 8)
    seen = torch.arange(length) <= torch.arange(length - count, length)[:, None]
    wanted = scaled_dot_product_attention(query, key, value, seen, scale=0.3, enable_gqa=True)
    found, nothing = causal_attention(None, query, key, value, scaling=0.3)
    assert nothing is None
    torch.testing.assert_close(found, wanted.transpose(1, 2))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_gives_the_same_logits(
    family: str, make_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, behind a cache, and with a shorter sequence padded at its end."""
    monkeypatch.setattr(module, "BLOCK", 4)
    monkeypatch.setattr(module, "supports_blocks", lambda model: True)
    model = make_model(family)
    ids = torch.randint(1, 40, (2, 13), generator=torch.Generator().manual_seed(5))

    @torch.no_grad()
    def logits() -> torch.Tensor:
        cache = DynamicCache(config=model.config)
        first = model(ids[:, :6], past_key_values=cache).logits
        mask = torch.ones_like(ids)
        mask[0, 9:] = 0
        padded = model(ids, attention_mask=mask).logits
        padded[0, 9:] = 0
        later = model(ids[:, 6:], past_key_values=cache).logits
        return torch.cat((first, later, model(ids).logits, padded), 1)

    wanted = logits()
    with block_attention(model):
        assert model.config._attn_implementation == module.NAME
        found = logits()
    assert model.config._attn_implementation == "sdpa"
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_an_interrupted_beginning_leaves_the_model(
    make_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = make_model("llama").to(torch.bfloat16)
    change = model.set_attn_implementation

    def interrupted(name: str) -> None:
        change(name)
        if name == module.NAME:
            raise KeyboardInterrupt

    monkeypatch.setattr(model, "set_attn_implementation", interrupted)
    with pytest.raises(KeyboardInterrupt), block_attention(model):
        pass
    assert model.config._attn_implementation == "sdpa"


def test_bfloat16_on_the_processor_only(make_model: ModelFactory) -> None:
    model: Any = make_model("llama")
    assert not supports_blocks(model)  # float32
    with block_attention(model):
        assert model.config._attn_implementation == "sdpa"
    model.to(torch.bfloat16)
    assert supports_blocks(model)
    with pytest.raises(KeyError, match=module.NAME), block_attention(model):
        raise KeyError(model.config._attn_implementation)
    assert model.config._attn_implementation == "sdpa"
    model.config.sliding_window = 4
    assert not supports_blocks(model)

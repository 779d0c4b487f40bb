"""The forward pass over fused weights equals transformers' own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory

from esa_cli.models.text_passes import small_decoder
from esa_cli.models.text_passes.layer_calls import before_each_layer, hidden_states, of_size_one
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import SMALL_FAMILIES, FusedForward, can_be_fused
from esa_cli.models.text_passes.text_forward import KeyValuePast, ModelForward, TextForward


def random_adapter(model: Any) -> LoraAdapter:
    adapter = LoraAdapter.new(model, rank=3, alpha=6, seed=1)
    torch.manual_seed(2)
    for _, b in adapter.matrices.values():
        b.data.normal_(std=0.1)
    return adapter


def tokens(rows: int, count: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (rows, count), generator=torch.Generator().manual_seed(5))


def lengths(past: Any) -> set[int]:
    if isinstance(past, KeyValuePast):
        return {keys.shape[2] for keys, _ in past.pairs}
    return {layer.get_seq_length() for layer in past.cache.layers}


@torch.no_grad()
def in_two_parts(forward: TextForward, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Logits of all tokens, the later ones behind the keys and values of the first ones."""
    before, past = forward.states(ids[:, :first])
    after, pairs = forward.states(ids[:, first:], past)
    assert lengths(pairs) == {ids.shape[1]}
    return torch.cat((forward.logits(before), forward.logits(after)), 1)


@pytest.mark.parametrize("family", SMALL_FAMILIES)
@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("first", [1, 6, 12])
def test_logits_are_those_of_the_model(
    family: str, adapted: bool, first: int, make_model: ModelFactory
) -> None:
    model = make_model(family)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # norms and biases that do something
            torch.manual_seed(len(name))
            parameter.data += 0.3 * torch.randn_like(parameter)
    adapter, ids = random_adapter(model) if adapted else None, tokens(2, 13)
    assert can_be_fused(model)
    found = in_two_parts(FusedForward(model, adapter=adapter), ids, first)
    with torch.no_grad():
        plain = model(ids).logits
        if adapter is not None:
            with adapter.active():
                adapted_logits = model(ids).logits
            assert not torch.allclose(plain, adapted_logits, atol=1e-2)
            plain = adapted_logits
        own = in_two_parts(ModelForward(model), ids, first)
    torch.testing.assert_close(found, plain, atol=1e-4, rtol=1e-4)
    if adapter is None:
        torch.testing.assert_close(own, plain, atol=1e-4, rtol=1e-4)


def test_bfloat16(make_model: ModelFactory) -> None:
    model: Any = make_model("llama").to(torch.bfloat16)
    ids = tokens(3, 150)
    with torch.no_grad():
        wanted = model(ids).logits.float()
        found = in_two_parts(FusedForward(model), ids, 20)
    assert (found - wanted).abs().mean() < 0.02 * wanted.abs().mean()


def test_first_layers_only(make_model: ModelFactory) -> None:
    model, ids = make_model("llama"), tokens(2, 9)
    with torch.no_grad():
        wanted = hidden_states(model, ids, 1)
        found = of_size_one(FusedForward(model, 1).states(ids)[0])
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_the_model_stays_as_it_was(make_model: ModelFactory) -> None:
    model = make_model("qwen2")
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    FusedForward(model, adapter=random_adapter(model))
    assert all(torch.equal(one, before[name]) for name, one in model.named_parameters())


def test_what_ends_a_pass_of_the_model_ends_this_one(make_model: ModelFactory) -> None:
    model, calls = make_model("llama"), list[int]()
    fused = FusedForward(model)

    def stop() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with torch.no_grad(), before_each_layer(model, stop):
        fused.states(tokens(1, 3))
        with pytest.raises(KeyboardInterrupt):
            fused.states(tokens(1, 3))
    fused.states(tokens(1, 3))
    assert len(calls) == 3


def changed_setting(model: Any) -> None:
    model.config.sliding_window = 4


def changed_family(model: Any) -> None:
    model.config.model_type = "other"


def changed_activation(model: Any) -> None:
    model.config.hidden_act = "gelu"


def changed_bias(model: Any) -> None:
    model.config.mlp_bias = True


def changed_weight(model: Any) -> None:
    layer = model.base_model.layers[1].mlp.up_proj
    layer.weight = torch.nn.Parameter(layer.weight.detach().to(torch.float8_e4m3fn), False)


def changed_layer(model: Any) -> None:
    class Quantised(torch.nn.Linear):
        pass

    model.base_model.layers[1].mlp.up_proj = Quantised(48, 64, bias=False)


def test_large_models_are_left_to_transformers(
    make_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("llama")
    monkeypatch.setattr(small_decoder, "MOST_BYTES", 10_000)
    assert not can_be_fused(model)


@pytest.mark.parametrize(
    "change",
    [
        changed_setting,
        changed_family,
        changed_activation,
        changed_bias,
        changed_weight,
        changed_layer,
    ],
)
def test_models_that_are_left_to_transformers(change: Any, make_model: ModelFactory) -> None:
    model = make_model("llama")
    assert can_be_fused(model)
    change(model)
    assert not can_be_fused(model)

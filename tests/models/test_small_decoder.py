"""The small decoder's attention, forward pass and weights equal transformers' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory
from safetensors.torch import load_file, save_file
from torch.nn.functional import scaled_dot_product_attention

from esa_cli.models.text_passes import small_decoder
from esa_cli.models.text_passes import small_decoder as module
from esa_cli.models.text_passes.layer_calls import before_each_layer, hidden_states, of_size_one
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import (
    SMALL_FAMILIES,
    FusedForward,
    PlainDecoder,
    can_be_fused,
    can_be_plain,
    causal_attention,
)
from esa_cli.models.text_passes.text_forward import KeyValuePast, ModelForward, TextForward


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
    wanted = scaled_dot_product_attention(query, key, value, seen, enable_gqa=True)
    torch.testing.assert_close(causal_attention(query, key, value), wanted.transpose(1, 2))


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


WEIGHTS = "model.safetensors"


def saved(model: Any, folder: Path) -> dict[str, Any]:
    """Writes the model; its settings."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:  # norms and biases that do something
            torch.manual_seed(len(name))
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    settings: dict[str, Any] = model.config.to_dict()
    return settings


def loaded(folder: Path, settings: dict[str, Any], dtype: torch.dtype) -> PlainDecoder:
    found = PlainDecoder.load(folder, settings, dtype)
    assert found is not None
    return found


@pytest.mark.parametrize("family", SMALL_FAMILIES)
@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}])
def test_it_computes_what_the_model_does(
    family: str, changes: dict[str, Any], make_model: ModelFactory, tmp_path: Path
) -> None:
    model: Any = make_model(family, **changes)
    settings = saved(model, tmp_path)
    assert can_be_plain(settings)
    plain = loaded(tmp_path, settings, torch.float32)
    assert can_be_fused(plain)
    assert plain.config.to_dict() == settings
    own, theirs = list(plain.named_parameters()), list(model.named_parameters())
    assert [name for name, _ in own] == [name for name, _ in theirs]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(own, theirs, strict=True))
    assert plain.state_dict().keys() == model.state_dict().keys()
    adapter = LoraAdapter.new(model, rank=3, alpha=6, seed=1)
    for _, b in adapter.matrices.values():
        b.data.normal_(std=0.1)
    ids = torch.randint(1, VOCABULARY, (2, 13))
    for used in (None, adapter):
        same = None if used is None else LoraAdapter(plain, used.matrices, used.scale)
        one, other = FusedForward(plain, adapter=same), FusedForward(model, adapter=used)
        logits = one.logits(one.states(ids)[0])
        assert torch.equal(logits, other.logits(other.states(ids)[0]))
        if used is None:
            torch.testing.assert_close(logits, model(ids).logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_another_type(dtype: torch.dtype, make_model: ModelFactory, tmp_path: Path) -> None:
    model: Any = make_model("qwen3")
    plain = loaded(tmp_path, saved(model, tmp_path), dtype)
    model = type(model).from_pretrained(tmp_path, dtype=dtype)
    assert (plain.dtype, plain.device) == (dtype, torch.device("cpu"))
    for (_, a), (_, b) in zip(plain.named_parameters(), model.named_parameters(), strict=True):
        assert a.dtype == dtype
        assert torch.equal(a, b)
    x, positions = torch.randn(2, 5, 48).to(dtype), torch.arange(7, 12)[None]
    body, theirs = plain.base_model, model.base_model
    assert torch.equal(body.norm(x), theirs.norm(x))
    for a, b in zip(body.rotary_emb(x, positions), theirs.rotary_emb(x, positions), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {"sliding_window": 8}),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"mlp_bias": True}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
        ("llama", {"quantization_config": {"quant_method": "awq"}}),
        ("llama", {"model_type": "gemma"}),
    ],
)
def test_what_is_not_plain(family: str, changes: dict[str, Any], make_model: ModelFactory) -> None:
    settings = make_model(family).config.to_dict()
    assert can_be_plain(settings)
    assert not can_be_plain(settings | changes)


@pytest.mark.parametrize("change", ["one more", "one less", "of another shape", "cut"])
def test_other_weights_than_the_models(
    change: str, make_model: ModelFactory, tmp_path: Path
) -> None:
    settings = saved(make_model("llama"), tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    if change == "one more":
        weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(48)
    elif change == "one less":
        del weights["model.norm.weight"]
    else:
        weights["model.norm.weight"] = torch.zeros(3)
    save_file(weights, tmp_path / WEIGHTS, metadata={"format": "pt"})
    if change == "cut":
        (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-50])
    assert PlainDecoder.load(tmp_path, settings, torch.float32) is None


def test_too_large_to_be_fused(
    make_model: ModelFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = make_model("llama")
    settings = saved(model, tmp_path)
    size = sum(one.nbytes for one in model.base_model.layers.parameters())
    for most, fits in ((size, True), (size - 1, False)):
        monkeypatch.setattr(small_decoder, "MOST_BYTES", most)
        found = PlainDecoder.load(tmp_path, settings, torch.float32)
        assert (found is not None) == fits

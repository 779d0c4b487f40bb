"""A decoder without transformers' modules has their weights, names and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory
from safetensors.torch import load_file, save_file

from esa_cli.models.text_passes import small_decoder
from esa_cli.models.text_passes.lora_adapter import LoraAdapter
from esa_cli.models.text_passes.small_decoder import (
    SMALL_FAMILIES,
    FusedForward,
    PlainDecoder,
    can_be_fused,
    can_be_plain,
)

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

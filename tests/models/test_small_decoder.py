"""The small decoder's attention, forward pass and weights equal transformers' own."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import VOCABULARY, ModelFactory
from safetensors.torch import load_file, save_file
from tiny_reader import make_random_adapter
from torch.nn.functional import scaled_dot_product_attention

from esa_cli.models.loading import plain_decoder
from esa_cli.models.loading.plain_decoder import PlainDecoder, can_load_without_transformers
from esa_cli.models.text_passes import text_forward
from esa_cli.models.text_passes.text_forward import (
    SMALL_FAMILIES,
    FusedForward,
    LoraAdapter,
    can_fuse_model,
    compute_bidirectional_attention,
    compute_causal_attention,
    compute_hidden_states,
    pad_sequences,
)

WEIGHTS = "model.safetensors"


@pytest.mark.parametrize(("count", "block"), [(11, 1), (11, 3), (11, 64), (1, 64)])
def test_equals_pytorchs_attention(count: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_forward, "QUERY_BLOCK", block)
    torch.manual_seed(count)
    query = torch.randn(2, 6, count, 8)
    key, value = torch.randn(2, 2, 2, count, 8)
    lengths = torch.tensor([count, max(1, count - 4)])
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    within = (torch.arange(count) < lengths[:, None])[:, None, None]
    for mask, found in (
        (causal, compute_causal_attention(query, key, value)),
        (within, compute_bidirectional_attention(query, key, value, lengths)),
    ):
        wanted = scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
        torch.testing.assert_close(found, wanted.transpose(1, 2))


def lively(model: Any) -> Any:
    """The model with norms and biases that do something."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.manual_seed(len(name))
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def tokens(rows: int, count: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, (rows, count), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("family", SMALL_FAMILIES)
@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("both_ways", [False, True])
@torch.no_grad()
def test_states_are_those_of_the_model(
    family: str, adapted: bool, both_ways: bool, make_model: ModelFactory
) -> None:
    """Of a padded batch; with attention in both directions each sequence is as it is alone."""
    model = lively(make_model(family))
    adapter = make_random_adapter(model)
    ids, lengths = tokens(2, 13), torch.tensor([13, 8])
    given = lengths if both_ways else None
    found = FusedForward(model, adapter=adapter if adapted else None).compute_states(ids, given)
    layers = model.config.num_hidden_layers
    with adapter.apply() if adapted else nullcontext():
        wanted = compute_hidden_states(model, ids, layers, given)
        alone = compute_hidden_states(
            model, ids[1:, :8], layers, lengths[1:] if both_ways else None
        )
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], wanted[row, :length], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(wanted[1, :8], alone[0], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_attention_in_both_directions_sees_later_tokens(make_model: ModelFactory) -> None:
    model, ids, lengths = make_model("llama"), tokens(1, 9), torch.tensor([9])
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % VOCABULARY
    for given, sees in ((None, False), (lengths, True)):
        one, other = (compute_hidden_states(model, row, 2, given)[0, 0] for row in (ids, changed))
        assert torch.equal(one, other) is not sees


def test_first_layers_only(make_model: ModelFactory) -> None:
    """Of both passes; later layers do not run, padding changes nothing, and no hook stays."""
    model, ids, ran = make_model("llama"), tokens(2, 9), list[int]()
    handle = model.base_model.layers[1].register_forward_hook(lambda *_: ran.append(1))  # type: ignore[union-attr]
    with torch.no_grad():
        other = make_model("llama").base_model  # transformers leaves hooks of its own there
        every = other(input_ids=ids, output_hidden_states=True).hidden_states
        found = compute_hidden_states(model, ids, 1)
        both = compute_hidden_states(model, pad_sequences([[3, 4, 5, 6, 7, 8], [9, 8, 7]]), 1)
        alone = compute_hidden_states(model, torch.tensor([[9, 8, 7]]), 1)
    handle.remove()
    assert not ran
    assert not any(layer._forward_hooks for layer in model.base_model.layers)  # type: ignore[union-attr]
    wanted = every[1] / (every[1].square().mean(-1, keepdim=True) + 1e-6).sqrt()
    for states in (found, FusedForward(model, 1).compute_states(ids)):
        torch.testing.assert_close(states, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(both[1:, :3], alone, atol=1e-5, rtol=1e-5)


class Quantised(torch.nn.Linear):
    """A linear layer that is not torch's own."""


@pytest.mark.parametrize(
    "changes", [{"sliding_window": 4}, {"model_type": "other"}, {"hidden_act": "gelu"},
                {"mlp_bias": True}, {}]
)  # fmt: skip
def test_models_that_are_left_to_transformers(
    changes: dict[str, Any], make_model: ModelFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Any = make_model("llama")
    settings = model.config.to_dict()
    assert can_fuse_model(model)
    assert can_load_without_transformers(settings)
    if not changes:
        with monkeypatch.context() as patch:
            patch.setattr(text_forward, "MOST_BYTES", 10_000)
            assert not can_fuse_model(model)
        model.base_model.layers[1].mlp.up_proj = Quantised(48, 64, bias=False)
    for name, value in changes.items():
        setattr(model.config, name, value)
        assert not can_load_without_transformers(settings | changes)
    assert not can_fuse_model(model)


def saved(model: Any, folder: Path) -> dict[str, Any]:
    """Writes the model; its settings."""
    lively(model).save_pretrained(folder)
    settings: dict[str, Any] = model.config.to_dict()
    return settings


def loaded(folder: Path, settings: dict[str, Any], dtype: torch.dtype) -> PlainDecoder:
    found = PlainDecoder.load(folder, settings, dtype)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True}),
        ("mistral", {"tie_word_embeddings": True}),
        ("qwen2", {}),
        ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    ],
)
def test_it_computes_what_the_model_does(
    family: str, changes: dict[str, Any], make_model: ModelFactory, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(plain_decoder, "AT_ONCE", 4)
    model: Any = make_model(family, **changes)
    settings = saved(model, tmp_path)
    plain = loaded(tmp_path, settings, torch.float32)
    assert can_fuse_model(plain)
    assert plain.config.to_dict() == settings
    own, theirs = list(plain.named_parameters()), list(model.named_parameters())
    assert [name for name, _ in own] == [name for name, _ in theirs]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(own, theirs, strict=True))
    assert plain.state_dict().keys() == model.state_dict().keys()
    adapter, ids = make_random_adapter(model), tokens(2, 13)
    for used in (None, adapter):
        same = None if used is None else LoraAdapter(plain, used.matrices, used.scale)
        one, other = FusedForward(plain, adapter=same), FusedForward(model, adapter=used)
        states = one.compute_states(ids)
        assert torch.equal(states, other.compute_states(ids))
        if used is None:
            wanted = compute_hidden_states(model, ids, model.config.num_hidden_layers)
            torch.testing.assert_close(states, wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("change", ["one more", "one less", "of another shape", "cut", "large"])
def test_other_weights_than_the_models(
    change: str, make_model: ModelFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = saved(make_model("llama"), tmp_path)
    weights = load_file(tmp_path / WEIGHTS)
    if change == "one more":
        weights["model.layers.0.self_attn.q_proj.bias"] = torch.zeros(48)
    elif change == "one less":
        del weights["model.norm.weight"]
    elif change == "of another shape":
        weights["model.norm.weight"] = torch.zeros(3)
    elif change == "large":
        size = sum(one.nbytes for name, one in weights.items() if ".layers." in name)
        monkeypatch.setattr(plain_decoder, "MOST_BYTES", size)
        assert PlainDecoder.load(tmp_path, settings, torch.float32) is not None
        monkeypatch.setattr(plain_decoder, "MOST_BYTES", size - 1)
    save_file(weights, tmp_path / WEIGHTS, metadata={"format": "pt"})
    if change == "cut":
        (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-50])
    assert PlainDecoder.load(tmp_path, settings, torch.float32) is None

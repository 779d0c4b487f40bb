"""What makes two readings the same, and what does not. Tiny random model."""

from __future__ import annotations

import copy
import hashlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import build_model

from esa_cli.qa.presets.cache_key import SAMPLES, digest_model, make_cache_key
from esa_cli.qa.presets.preset import load_preset
from esa_cli.qa.presets.resolved_preset import explain_why_not_storable, resolve_preset
from esa_cli.storage.library import Layout

LAYOUT = Layout(2, 2, 8, "float32")


def of(model: Any, loaded: Any, *overrides: str, head: tuple[int, ...] = (1,)) -> str:
    chosen = load_preset("tiny-random", overrides)
    facts = digest_model(model, loaded.tokenizer)
    return make_cache_key(facts, head, chosen, resolve_preset(chosen).method, LAYOUT)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("tiny-random", "c1f3194fce64dd5e"),
        ("default", "7527b29e41e3faec"),
        ("paper", "95c16c3f90018304"),
    ],
)
def test_stored_documents_are_found_again(name: str, digest: str) -> None:
    """The keys of built-in presets, whatever modules their parts are in. If one has to change,
    every stored document is prefilled again: raise FORMAT and say so."""
    chosen = load_preset(name)
    key = make_cache_key({}, [1], chosen, resolve_preset(chosen).method, LAYOUT)
    assert hashlib.sha256(key.encode()).hexdigest()[:16] == digest


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.0.self_attn.v_proj.weight",
                                  "layers.1.mlp.down_proj.weight", "norm.weight"])  # fmt: skip
def test_a_model_that_was_trained_on_is_another(loaded: Any, name: str) -> None:
    other = copy.deepcopy(loaded.model)
    assert of(other, loaded) == of(loaded.model, loaded)
    with torch.no_grad():
        other.get_parameter(f"model.{name}").mul_(1.01)
    assert of(other, loaded) != of(loaded.model, loaded)


def test_another_rope_is_another_model(loaded: Any) -> None:
    other = copy.deepcopy(loaded.model)
    other.config.rope_parameters = {**other.config.rope_parameters, "rope_theta": 77.0}
    assert of(other, loaded) != of(loaded.model, loaded)
    same = copy.deepcopy(loaded.model)
    same.config._name_or_path = "elsewhere"
    assert of(same, loaded) == of(loaded.model, loaded)


@pytest.mark.parametrize(
    ("override", "shapes"),
    [
        ("window.local=32", True),
        ("window.initial=2", True),
        ("compressor.rank=4", True),
        ("window.ending=0", False),
        ("generation.max_new_tokens=3", False),
        ("prompt.after=<{question}>", False),
    ],
)
def test_settings_of_reading_count(loaded: Any, override: str, shapes: bool) -> None:
    plain = of(loaded.model, loaded, "reading=local")
    assert (of(loaded.model, loaded, "reading=local", override) != plain) == shapes


@pytest.mark.parametrize(("reading", "dense", "counts"), [
    ("local", "200", False), ("select", "200", True), ("local", "null", True),
])  # fmt: skip
def test_what_is_selected_counts_where_it_changes_what_is_read(
    loaded: Any, reading: str, dense: str, counts: bool
) -> None:
    """Where reading selects; and without a `dense`, for attention is plain up to I + k + L."""
    given = (f"reading={reading}", f"window.dense={dense}")
    made = [of(loaded.model, loaded, *given, f"window.selected={k}") for k in (16, 32)]
    assert (made[0] != made[1]) == counts


def test_states_are_of_one_version_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are in a form of our own, states in its."""
    chosen = load_preset("tiny-random")
    keys = dict[str, list[str]]()
    for number in ("5.23.0", "5.23.4", "5.24.0"):
        monkeypatch.setattr(
            "esa_cli.qa.presets.cache_key.version", lambda name, found=number: found
        )
        keys[number] = [
            make_cache_key({}, [1], chosen, resolve_preset(chosen).method, one)
            for one in (LAYOUT, replace(LAYOUT, states=1))
        ]
    assert keys["5.23.0"] == keys["5.23.4"]
    assert keys["5.23.0"][0] == keys["5.24.0"][0]
    assert keys["5.23.0"][1] != keys["5.24.0"][1]


@pytest.mark.parametrize(
    ("settings", "stored"),
    [
        ([], True),
        (["selector.name=infllm", "position.name=infllm"], False),
        (["compressor.fit_tokens=4096"], True),
        (["compressor.fit_tokens=4097"], False),
        (["score.name=vote", "compressor.fit_tokens=4097"], True),
    ],
)
def test_what_can_be_stored(settings: list[str], stored: bool) -> None:
    """Neither what a selector gathers in a prefill, nor keys fitted on more than a segment."""
    method = resolve_preset(load_preset("tiny-random", settings)).method
    assert (explain_why_not_storable(method) == "") == stored


def test_of_plain_weights_parameters_count_alone(loaded: Any) -> None:
    """What is in libraries already must be found again."""
    model, digest = build_model("qwen3", tie_word_embeddings=True), hashlib.sha256()
    for name, weight in model.named_parameters():
        flat = weight.flatten()
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(flat[:: max(1, len(flat) // SAMPLES)][:SAMPLES].numpy().tobytes())
    assert digest_model(model, loaded.tokenizer)["weights"] == digest.hexdigest()


class Codes(torch.nn.Module):
    """A quantised projection that keeps everything in buffers."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.register_buffer("scale", linear.weight.abs().max() / 127)
        self.register_buffer("codes", (linear.weight / self.scale).round().to(torch.int8))


def test_buffers_of_packed_weights_count(loaded: Any) -> None:
    one = copy.deepcopy(loaded.model)
    layer = one.model.layers[1]
    layer.mlp.down_proj = Codes(layer.mlp.down_proj)
    other = copy.deepcopy(one)
    assert of(other, loaded) == of(one, loaded) != of(loaded.model, loaded)
    other.model.layers[1].mlp.down_proj.codes[0, 0] += 1
    assert of(other, loaded) != of(one, loaded)

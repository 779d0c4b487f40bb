"""LoRA adapters: changes while active, nothing afterwards, and folders as peft writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_files import save_adapter
from conftest import ModelFactory
from safetensors.torch import load_file
from tiny_reader import make_random_adapter

from esa_cli.models.text_passes.text_forward import CONFIG, WEIGHTS, LoraAdapter


@pytest.fixture
def model(make_model: ModelFactory) -> Any:
    return make_model("llama")


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


def test_active_until_the_block_ends(model: Any) -> None:
    before, adapter = logits(model), make_random_adapter(model)
    with adapter.apply():
        adapted = logits(model)
    assert torch.equal(logits(model), before)
    assert not torch.allclose(adapted, before, atol=1e-3)
    with pytest.raises(KeyError), adapter.apply():
        raise KeyError
    assert torch.equal(logits(model), before)
    assert not any(layer._forward_hooks for layer in model.modules())


def test_folder_round_trip(model: Any, tmp_path: Path) -> None:
    adapter = make_random_adapter(model)
    save_adapter(adapter, tmp_path, "a/model")
    again = LoraAdapter.load(tmp_path, model)
    assert again.scale == adapter.scale
    for name, (a, b) in adapter.matrices.items():
        torch.testing.assert_close(again.matrices[name][0].float(), a.data, atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(again.matrices[name][1].float(), b.data, atol=1e-2, rtol=1e-2)
    assert (
        json.loads((tmp_path / CONFIG).read_text("utf-8"))["base_model_name_or_path"] == "a/model"
    )
    assert all(key.startswith("base_model.model.model.") for key in load_file(tmp_path / WEIGHTS))

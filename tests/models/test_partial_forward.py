"""A forward pass that ends behind a layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import ModelFactory

from esa_cli.models.text_passes.layer_calls import hidden_states, padded


@pytest.fixture
def model(make_model: ModelFactory) -> Any:
    return make_model("llama")


def test_states_are_those_of_the_whole_pass(model: Any) -> None:
    ids = torch.arange(1, 15)[None]
    with torch.no_grad():
        every = model.base_model(input_ids=ids, output_hidden_states=True).hidden_states
        found = hidden_states(model, ids, 1)
    wanted = every[1].float()
    wanted = wanted / (wanted.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_later_layers_do_not_run_and_no_hook_stays(model: Any) -> None:
    ran = []
    handle = model.base_model.layers[1].register_forward_hook(lambda *_: ran.append(1))
    with torch.no_grad():
        hidden_states(model, torch.arange(1, 9)[None], 1)
    handle.remove()
    assert not ran
    assert not any(layer._forward_hooks for layer in model.base_model.layers)


def test_padding_changes_nothing(model: Any) -> None:
    ids = padded([[3, 4, 5, 6, 7, 8], [9, 8, 7]])
    with torch.no_grad():
        both = hidden_states(model, ids, 2)
        alone = hidden_states(model, torch.tensor([[9, 8, 7]]), 2)
    torch.testing.assert_close(both[1:, :3], alone, atol=1e-5, rtol=1e-5)

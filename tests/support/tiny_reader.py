"""A random adapter and head with which a tiny model reads passages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from adapter_files import new_adapter, save_adapter
from safetensors.torch import save_file
from torch import Tensor

from esa_cli.models.text_passes.text_forward import LoraAdapter
from esa_cli.qa.presets.preset import HEAD


def make_head(size: int, seed: int = 3) -> dict[str, Tensor]:
    """Returns the vectors of a head for hidden states of this size, to which no question is a
    request."""
    generator = torch.Generator().manual_seed(seed)
    names = ("start", "end", "has", "request")
    head = {name: torch.randn(size, generator=generator) for name in names}
    return head | {"bias": torch.tensor([0.25]), "request_bias": torch.tensor([-100.0])}


def make_random_adapter(model: Any) -> LoraAdapter:
    """Returns an adapter of a model that changes what the model computes."""
    adapter = new_adapter(model, rank=2, alpha=4, seed=1)
    torch.manual_seed(2)
    for _, b in adapter.matrices.values():
        b.data.normal_(std=0.1)
    return adapter


def save_tiny_reader(model: Any, folder: Path) -> str:
    """Writes a random adapter and head of a model to a folder, and returns the folder."""
    save_adapter(make_random_adapter(model), folder, "random:llama")
    save_file(make_head(model.config.hidden_size), folder / HEAD)
    return str(folder)

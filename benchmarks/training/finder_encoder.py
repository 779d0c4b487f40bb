"""A new finder to train, and its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from adapter_files import new_adapter, save_adapter
from safetensors.torch import save_file

from esa_cli.models.text_passes.text_forward import LoraAdapter
from esa_cli.qa.finding.finder import TokenEncoder
from esa_cli.qa.presets.preset_files import MAPS
from esa_cli.system.files import replace_atomically


def new_finder(
    model: Any, tokenizer: Any, *, layers: int, first: int, rank: int, dim: int, seed: int
) -> TokenEncoder:
    """An untrained encoder.

    Args:
        first: of the layers that the adapter changes. rank: of the adapter; its alpha is twice
            that. dim: R.
    """
    whole = new_adapter(model, rank, 2 * rank, seed)
    within = {n: pair for n, pair in whole.matrices.items() if first <= layer_of(n) < layers}
    generator, size = torch.Generator().manual_seed(seed), model.config.hidden_size
    start, _ = torch.linalg.qr(torch.randn(size, dim, generator=generator))
    maps = {
        "query_map": start.clone(), "key_map": start.clone(), "query_weight": torch.zeros(size),
        "query_bias": torch.zeros(1), "scale": torch.full((1,), 3.0),
    }  # fmt: skip
    return TokenEncoder(model, tokenizer, LoraAdapter(model, within, whole.scale), maps, layers)


def save_finder(encoder: TokenEncoder, folder: Path, base: str) -> None:
    """Writes adapter and maps. base: what names the model in the adapter's configuration."""
    save_adapter(encoder.adapter, folder, base)
    facts = {"layers": encoder.layers, "prompt": encoder.prompt, "base": base}
    tensors = {
        name: one.detach().to("cpu", torch.float32).contiguous()
        for name, one in encoder.maps.items()
    }
    with replace_atomically(folder / MAPS) as path:
        # One key: the order of several would differ from file to file.
        save_file(tensors, path, metadata={"finder": json.dumps(facts)})


def layer_of(name: str) -> int:
    """The number of the layer that a module's name stands in; -1 outside."""
    parts = name.split(".")
    at = parts.index("layers") + 1 if "layers" in parts else len(parts)
    return int(parts[at]) if at < len(parts) and parts[at].isdigit() else -1

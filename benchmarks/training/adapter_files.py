"""A new adapter to train, and its folder in peft's format."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from esa_cli.models.text_passes.text_forward import CONFIG, PREFIX, WEIGHTS, LoraAdapter
from esa_cli.system.files import replace_atomically


def new_adapter(model: Any, rank: int, alpha: float, seed: int = 0) -> LoraAdapter:
    """Creates an untrained adapter, without effect, for all linear layers but the output."""
    generator = torch.Generator().manual_seed(seed)
    matrices = {}
    output = model.get_output_embeddings()
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and layer is not output:
            a = torch.rand(rank, layer.in_features, generator=generator) * 2 - 1
            first = nn.Parameter(a / math.sqrt(layer.in_features))
            matrices[name] = first, nn.Parameter(torch.zeros(layer.out_features, rank))
    return LoraAdapter(model, matrices, alpha / rank)


def adapter_rank(adapter: LoraAdapter) -> int:
    """Returns the rank r of an adapter, which is the smaller size of its matrices."""
    return int(next(iter(adapter.matrices.values()))[0].shape[0])


def save_adapter(adapter: LoraAdapter, folder: Path, base_model: str) -> None:
    """Saves an adapter in peft's format; `base_model` is the name of its model."""
    folder.mkdir(parents=True, exist_ok=True)
    rank = adapter_rank(adapter)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": base_model,
        "r": rank, "lora_alpha": adapter.scale * rank, "bias": "none", "use_dora": False,
        "target_modules": sorted({name.rsplit(".", 1)[-1] for name in adapter.matrices}),
    }  # fmt: skip
    tensors = {
        f"{PREFIX}{name}.lora_{half}.weight": matrix.detach().to(torch.bfloat16).contiguous()
        for name, pair in adapter.matrices.items()
        for half, matrix in zip("AB", pair, strict=True)
    }
    with replace_atomically(folder / WEIGHTS) as path:
        save_file(tensors, path, metadata={"format": "pt"})
    with replace_atomically(folder / CONFIG) as path:
        path.write_text(json.dumps(config, indent=1) + "\n", "utf-8")

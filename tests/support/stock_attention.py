"""What tests share that compare attached models with the same models' own attention."""

from __future__ import annotations

from typing import Any

import torch
from conftest import VOCABULARY
from transformers import PreTrainedModel

from esa_cli.attention.method import Method
from esa_cli.attention.positions import TruePositions
from esa_cli.attention.window import Window
from esa_cli.models.attachment.kv_cache import EsaCache

LENGTH = 70
SCALED: dict[str, dict[str, Any]] = {
    "llama3": {
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
}  # fmt: skip


def tokens(count: int = LENGTH, seed: int = 7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCABULARY, (1, count), generator=generator)


def everything(chunk: int, dense: int | None = 0) -> Method:
    """True positions and a budget that holds all tokens; `dense=0` takes the split path."""
    window = Window(initial=5, selected=1000, local=11, chunk=chunk, dense=dense)
    return Method(window=window, position=TruePositions())


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Logits of these models have a standard deviation of 0.4 to 1.7."""
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


def in_pieces(
    model: PreTrainedModel, cache: EsaCache, ids: torch.Tensor, size: int
) -> torch.Tensor:
    """Logits of ids (1, n), which pass the model `size` at a time."""
    pieces = [model(piece, past_key_values=cache).logits for piece in ids.split(size, dim=1)]
    return torch.cat(pieces, dim=1)

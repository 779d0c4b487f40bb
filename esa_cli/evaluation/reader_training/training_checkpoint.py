"""Files from which a training goes on bit for bit: float32 matrices, AdamW's state, the position.

One safetensors file, replaced atomically. Its metadata has the settings, which must be the same in
the training that goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from esa_cli.errors import DocumentError, UsageError
from esa_cli.models.lora_adapter import LoraAdapter
from esa_cli.system.files import replacing, writing_errors

FILE = "checkpoint.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of each matrix."""


@dataclass
class TrainingState:
    """How far a training is.

    `seconds` are those of training steps alone. The next batch is number `batch` of `epoch`.
    `counts` are examples so far and `losses` moving averages of the loss a token, by the examples'
    source. `scores` are those of held-out texts so far, each with the examples it came after.
    """

    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    epoch: int = 0
    batch: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(
    folder: Path,
    adapter: LoraAdapter,
    optimiser: torch.optim.Optimizer,
    state: TrainingState,
    settings: Mapping[str, Any],
) -> None:
    """Raises ResourceError, DocumentError: it cannot be written."""
    tensors: dict[str, Tensor] = {}
    for name, (a, b) in adapter.matrices.items():
        for half, matrix in (("A", a), ("B", b)):
            tensors[f"{half}.{name}"] = matrix.detach()
            for key, value in optimiser.state.get(matrix, {}).items():
                tensors[f"{key}.{half}.{name}"] = value
    metadata = {"state": json.dumps(asdict(state)), "settings": json.dumps(settings)}
    hint = "free some space; the checkpoint before is kept"
    path = folder / FILE
    with (
        writing_errors(path, hint, "name another --out", also=SafetensorError),
        replacing(path) as part,
    ):
        save_file({key: one.cpu().contiguous() for key, one in tensors.items()}, part, metadata)


def load_checkpoint(
    folder: Path,
    adapter: LoraAdapter,
    optimiser: torch.optim.Optimizer,
    settings: Mapping[str, Any],
) -> TrainingState:
    """Sets the matrices and the optimiser to those of the checkpoint.

    Raises:
        UsageError: it is of other settings. DocumentError: it is damaged.
    """
    path = folder / FILE
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            _same(json.loads(metadata["settings"]), settings)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        state = TrainingState(**json.loads(metadata["state"]))
        _restore(tensors, adapter, optimiser)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DocumentError(
            f"the checkpoint {path} cannot be read: {error}", "delete it, and begin again"
        ) from error
    return state


def _restore(
    tensors: Mapping[str, Tensor], adapter: LoraAdapter, optimiser: torch.optim.Optimizer
) -> None:
    for name, pair in adapter.matrices.items():
        for half, matrix in zip("AB", pair, strict=True):
            with torch.no_grad():
                matrix.copy_(tensors[f"{half}.{name}"])
            moments = {key: tensors.get(f"{key}.{half}.{name}") for key in MOMENTS}
            if moments["step"] is not None:
                step, *others = (tensors[f"{key}.{half}.{name}"] for key in MOMENTS)
                placed = (one.to(matrix.device) for one in others)
                optimiser.state[matrix] = dict(zip(MOMENTS, (step, *placed), strict=True))


def _same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(now))
    for key in {**before, **now}:
        if before.get(key) != now.get(key):
            raise UsageError(
                f"{key} must be that of the checkpoint, {before.get(key)!r}, got {now.get(key)!r}",
                "resume with the options that it was begun with, or name another --out",
            )

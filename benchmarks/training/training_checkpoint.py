"""Files from which a training goes on bit for bit: float32 tensors, AdamW's state, the position.

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
from esa_cli.models.text_passes.text_forward import LoraAdapter
from esa_cli.system.files import convert_writing_errors, replace_atomically

FILE = "checkpoint.safetensors"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of each tensor."""


@dataclass
class TrainingState:
    """How far a training is.

    `seconds` are those of training steps alone. The next batch is number `batch` of `epoch`.
    `counts` are examples so far and `losses` moving averages of their loss, by source or kind.
    `scores` are those of held-out texts so far, each with the examples it came after.
    """

    steps: int = 0
    examples: int = 0
    seconds: float = 0.0
    epoch: int = 0
    batch: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    scores: list[dict[str, Any]] = field(default_factory=list)

    def count(self, source: str, loss: float, smoothing: float) -> None:
        """Adds an example's loss; the first examples have their mean."""
        self.counts[source] = self.counts.get(source, 0) + 1
        before = self.losses.get(source, 0.0)
        rate = max(1 - smoothing, 1 / self.counts[source])
        self.losses[source] = before + rate * (loss - before)


def adapter_tensors(adapter: LoraAdapter) -> dict[str, Tensor]:
    """The matrices A and B of an adapter by name."""
    return {
        f"{half}.{name}": matrix
        for name, pair in adapter.matrices.items()
        for half, matrix in zip("AB", pair, strict=True)
    }


def save_checkpoint(
    folder: Path,
    trained: Mapping[str, Tensor],
    optimiser: torch.optim.Optimizer,
    state: TrainingState,
    settings: Mapping[str, Any],
) -> None:
    """Writes the `trained` tensors, which are the optimiser's.

    Raises:
        ResourceError, DocumentError: it cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    for name, one in trained.items():
        tensors[name] = one.detach()
        for key, value in optimiser.state.get(one, {}).items():
            tensors[f"{key}.{name}"] = value
    metadata = {"state": json.dumps(asdict(state)), "settings": json.dumps(settings)}
    hint = "free some space; the checkpoint before is kept"
    path = folder / FILE
    with (
        convert_writing_errors(path, hint, "name another --out", also_caught=SafetensorError),
        replace_atomically(path) as part,
    ):
        save_file({key: one.cpu().contiguous() for key, one in tensors.items()}, part, metadata)


def load_checkpoint(
    folder: Path,
    trained: Mapping[str, Tensor],
    optimiser: torch.optim.Optimizer,
    settings: Mapping[str, Any],
) -> TrainingState:
    """Sets the `trained` tensors and the optimiser to those of the checkpoint.

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
        _restore(tensors, trained, optimiser)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise DocumentError(
            f"the checkpoint {path} cannot be read: {error}", "delete it, and begin again"
        ) from error
    return state


def _restore(
    tensors: Mapping[str, Tensor], trained: Mapping[str, Tensor], optimiser: torch.optim.Optimizer
) -> None:
    for name, one in trained.items():
        with torch.no_grad():
            one.copy_(tensors[name])
        if f"{MOMENTS[0]}.{name}" in tensors:
            step, *others = (tensors[f"{key}.{name}"] for key in MOMENTS)
            placed = (other.to(one.device) for other in others)
            optimiser.state[one] = dict(zip(MOMENTS, (step, *placed), strict=True))


def _same(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(now))
    for key in {**before, **now}:
        if before.get(key) != now.get(key):
            raise UsageError(
                f"{key} must be that of the checkpoint, {before.get(key)!r}, got {now.get(key)!r}",
                "resume with the options that it was begun with, or name another --out",
            )

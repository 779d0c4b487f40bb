"""Writes projections as `esa calibrate` does, for `LearnedCompressor`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file

from esa_cli.attention.compression import Linear, make_named_projection_tensors


def save_learned_projections(
    path: Path | str, layers: Sequence[Linear], metadata: dict[str, str] | None = None
) -> None:
    save_file(make_named_projection_tensors(layers), path, metadata)

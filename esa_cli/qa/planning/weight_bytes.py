"""Bytes that a model's weights take in memory: plain, packed on loading, or as quantised files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from esa_cli.models.loading.quantization import kept_bytes, kept_format, packed_bytes
from esa_cli.qa.planning.model_shape import Shape


def with_packing(
    shape: Shape, config: dict[str, Any], device: str, packing: str, size: int
) -> Shape:
    """The shape of a model with the bytes of its weights on a device.

    Args:
        config: of config.json. device: of `choose_device`. packing: of `QUANTIZATIONS`; "": none.
        size: bytes of a number of the type that is computed in.
    """
    kept = None if packing else kept_format(config, device)
    if kept is None:
        return replace(shape, packed=packed_bytes(packing, size) / size)
    stored = kept_bytes(kept, config) / size
    return replace(shape, packed=1.0 if kept.experts_alone else stored, packed_experts=stored)

"""float64 for sums in which float32 loses digits; on the CPU where the device has no float64."""

from __future__ import annotations

from collections.abc import Container

from torch import Tensor

WITHOUT = ("mps",)
"""Device types without float64."""


def to_float64(x: Tensor, without: Container[str] = WITHOUT) -> Tensor:
    """`x` in float64, perhaps on the CPU: results may need `.to(x.device)`."""
    return (x.cpu() if x.device.type in without else x).double()

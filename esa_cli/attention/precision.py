"""float64, for sums that float32 would spoil; on the processor where the device has none."""

from __future__ import annotations

from collections.abc import Container

from torch import Tensor

WITHOUT = ("mps",)
"""Kinds of device without float64."""


def to_float64(x: Tensor, without: Container[str] = WITHOUT) -> Tensor:
    """`x` in float64. What is made of it is for `.to(x.device)` where it has to be there."""
    return (x.cpu() if x.device.type in without else x).double()

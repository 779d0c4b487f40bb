"""Attention with its log-sum-exp: one file for each kernel, and `attend`, which chooses one."""

from esa_cli.attention.fusion import fuse
from esa_cli.attention.kernels.dispatch import KERNELS, attend, available, choose

__all__ = ["KERNELS", "attend", "available", "choose", "fuse"]

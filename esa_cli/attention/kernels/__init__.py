"""Attention with its log-sum-exp, behind one call; each kernel is tested against `reference`.

`attend` picks the fastest kernel that can run the tensors at hand, or the one asked for by name.
"""

from esa_cli.attention.fusion import fuse
from esa_cli.attention.kernels.dispatch import KERNELS, attend, available, choose

__all__ = ["KERNELS", "attend", "available", "choose", "fuse"]

"""Attention with its log-sum-exp, behind one call; each kernel is tested against `reference`.

`attend` picks the fastest kernel that can run the tensors at hand, or the one asked for by name.
"""

from .dispatch import KERNELS, attend, available, choose
from .merge import merge

__all__ = ["KERNELS", "attend", "available", "choose", "merge"]

"""Reduced keys in 8 bits, simulated: what would be found if a store kept them so.

x is kept as round(x / s) between -127 and 127, with one s for each token or for each dimension.
The scale of a dimension comes from tokens seen before, and what lies beyond it is cut off.
Past the paper, which keeps reduced keys in the type of the model.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 127


def _rounded(x: Tensor, largest: Tensor) -> Tensor:
    scale = largest.clamp_min(torch.finfo(x.dtype).tiny * MOST) / MOST
    return (x / scale).round().clamp(-MOST, MOST) * scale


def by_token(features: Tensor) -> Tensor:
    """Reduced keys (n, R) as 8 bits and one scale a token would give them back."""
    return _rounded(features, features.abs().amax(dim=1, keepdim=True))


def by_dimension(features: Tensor, seen: Tensor) -> Tensor:
    """Reduced keys (n, R) as 8 bits and one scale a dimension would give them back.

    Args:
        seen: reduced keys (m, R) that the scales are taken from.
    """
    return _rounded(features, seen.abs().amax(dim=0, keepdim=True))

"""What a chunk of one layer attended to: for evidence, recall and calibration.

Only a record; it is made when somebody watches.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from esa_cli.attention.interfaces import KVStore, Selection


@dataclass(frozen=True)
class Seen:
    """What one chunk of one layer attended to: for evidence, recall and calibration.

    Args:
        layer: the layer's index. start, stop: absolute positions of the chunk's tokens.
        initial, local: tokens in I and L. queries: (H, C, D), unrotated.
        far: absolute positions (n,) of I and the selected, or one such tensor for each query head.
        lse: (H, C) log-sum-exp of the whole attention. decoding: the chunk is an answer's token.
    """

    layer: int
    start: int
    stop: int
    initial: int
    local: int
    queries: Tensor
    store: KVStore
    far: Selection
    lse: Tensor
    decoding: bool

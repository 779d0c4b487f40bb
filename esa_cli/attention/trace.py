"""Records of the tokens that chunks attended to, for evidence, recall and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from esa_cli.attention.interfaces import KVStore, Positions, Selection
from esa_cli.attention.rope import Rope


@dataclass(frozen=True)
class ChunkTrace:
    """The tokens that one chunk of one layer attended to, with positions and queries.

    Args:
        layer: index of the layer. start, stop: absolute positions of the chunk's tokens.
        initial, local: tokens in I and L. far: absolute positions (n,) of I and the selected
            tokens, or one such tensor for each query head.
        near_positions: of [L, C]. far_positions: of each tensor of `far`.
        queries: (H, C, D), unrotated; scaled: the same times `query_scale`.
        max_distance: see `PositionEncoding`. rope, scale, cap: of the layer.
        lse: (H, C) log-sum-exp of the whole attention. decoding: the chunk is an answer's token, or
            several of them, which all attended to the same far ones.
    """

    layer: int
    start: int
    stop: int
    initial: int
    local: int
    far: Selection
    near_positions: Positions
    far_positions: Sequence[Positions]
    queries: Tensor
    scaled: Tensor
    max_distance: int | None
    rope: Rope
    scale: float
    cap: float
    store: KVStore
    lse: Tensor
    decoding: bool

    @property
    def far_rows(self) -> Sequence[Tensor]:
        """`far` as a sequence: one tensor for all heads, or one for each."""
        return [self.far] if isinstance(self.far, Tensor) else self.far

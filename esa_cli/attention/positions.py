"""Position encodings: where near and far tokens stand when they are attended to.

They return positions only; `attention` does the rotating. In each step the current tokens C see
the far tokens (I and the selected of M) and the near ones (L and C itself).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.interfaces import Positions
from esa_cli.attention.parts import PositionEncoding

ROTATED = "F (I + K + L + C): each key attended to is rotated once"
"""What positions cost a step."""


def consecutive(local: int, chunk: int, first: int = 0) -> Positions:
    """Keys of [L, C] at first, first + 1, ...; queries at the end of them."""
    return Positions(
        torch.arange(first + local, first + local + chunk),
        torch.arange(first, first + local + chunk),
    )


@dataclass(frozen=True)
class FixedDistance(PositionEncoding):
    """The paper's: far queries at w and far keys at 0, near ones in order (Section 3.2).

    Args:
        distance: w, the one relative position at which every far token is seen.
    """

    distance: int = 4096

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return consecutive(local, chunk)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return Positions(
            torch.full((chunk,), self.distance), torch.zeros(at.shape[0], dtype=torch.long)
        )


@dataclass(frozen=True)
class Contiguous(PositionEncoding):
    """Far tokens re-numbered in reading order right before the local ones (as in TokenSelect).

    The model sees a shorter text: order is kept, and neighbours that were both selected stay
    neighbours. Every position stays below I + K + L + C.

    Args:
        distance: where a far token is taken to be when it is scored.
    """

    distance: int = 2048

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return consecutive(local, chunk, first=far)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        count = at.shape[0]
        return Positions(torch.arange(count + local, count + local + chunk), torch.arange(count))


@dataclass(frozen=True)
class TruePositions(PositionEncoding):
    """Every token at its place in the document; beyond the trained window models lose their way.

    Args:
        distance: where a far token is taken to be when it is scored.
    """

    distance: int = 2048

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return consecutive(local, chunk, first=start - local)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return Positions(torch.arange(start, start + chunk), at)

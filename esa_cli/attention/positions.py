"""Position encodings: positions of far tokens (I and M_k) and near tokens (L and C), Section 3.2.

They return positions; `layer` rotates queries and keys to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.step import Positions

ROTATED = "F (I + K + L + C): each key attended to is rotated once"
"""Cost of a position encoding in one step."""


def consecutive(local: int, chunk: int, first: int = 0) -> Positions:
    """Keys of [L, C] at first, first + 1, ...; the queries have the last C of these."""
    return Positions(
        torch.arange(first + local, first + local + chunk),
        torch.arange(first, first + local + chunk),
    )


def on_one_device(device: torch.device, *positions: Tensor) -> Sequence[Tensor]:
    """Positions as they are if they lie together, else on `device`.

    Most are made on the CPU and stay there while they are computed with: reading their largest,
    which rotation does, would synchronise with a GPU.
    """
    if len({one.device for one in positions}) == 1:
        return positions
    return [one.to(device, non_blocking=True) for one in positions]


def token_positions(
    device: torch.device, near: Positions, far: Positions, limit: int | None
) -> tuple[Tensor, Tensor]:
    """Positions (1,) of a single query and (n + l + 1,) of its far and near keys together: far keys
    are where, seen from the near query's position, they are as far away as the encoding wants them.
    The smallest is 0, as only differences count and a rotary table has no others below it.

    Args:
        device: of the query. limit: maximum distance of near keys; None: there is none.
    """
    at, positions, *distant = on_one_device(device, *near, *(far if far.key.shape[0] else ()))
    if limit is not None:
        positions = torch.maximum(positions, at - limit)
    if distant:
        positions = torch.cat((distant[1] + at - distant[0], positions))
    base = positions.min()
    return at - base, positions - base


@dataclass(frozen=True)
class FixedDistance(PositionEncoding):
    """The paper's: far queries at w and far keys at 0, near ones in order (Section 3.2).

    Args:
        distance: w, the relative position of every far token.
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

    To the model this is a shorter text in the same order. All positions are below I + K + L + C.

    Args:
        distance: of far tokens when they are scored rotated.
    """

    distance: int = 2048

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return consecutive(local, chunk, first=far)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        count = at.shape[0]
        return Positions(torch.arange(count + local, count + local + chunk), torch.arange(count))


@dataclass(frozen=True)
class TruePositions(PositionEncoding):
    """Every token at its position in the document, also beyond the trained window.

    Args:
        distance: of far tokens when they are scored rotated.
    """

    distance: int = 2048

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return consecutive(local, chunk, first=start - local)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return Positions(torch.arange(start, start + chunk), at)

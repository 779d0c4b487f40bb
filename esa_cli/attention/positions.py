"""Position encodings: positions of far tokens (I and M_k) and near tokens (L and C), Section 3.2.

They return positions; `layer` rotates queries and keys to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.step import Positions

ROTATED = "F (I + K + L + C): each key attended to is rotated once"
"""Cost of a position encoding in one step."""


def consecutive(local: int, chunk: int, first: int = 0) -> Positions:
    """Keys of [L, C] at first, first + 1, ...; the queries have the last C of these."""
    keys = torch.arange(first, first + local + chunk)
    return Positions(keys[local:], keys)


def token_positions(
    device: torch.device, near: Positions, far: Positions, limit: int | None
) -> tuple[Tensor, Tensor]:
    """Positions (1,) of a single query and (n + l + 1,) of its far and near keys, from 0 on: far
    keys
    are as far from it as the encoding wants, near ones at most `limit`, if there is a limit."""
    positions = [*near, *(far if far.key.shape[0] else ())]
    # Most are made on the CPU and stay there: rotation reads the largest, which would synchronise
    # with a GPU.
    if len({one.device for one in positions}) > 1:
        positions = [one.to(device, non_blocking=True) for one in positions]
    query, keys, *distant = positions
    if limit is not None:
        keys = torch.maximum(keys, query - limit)
    if distant:
        keys = torch.cat((distant[1] + query - distant[0], keys))
    base = keys.min()
    return query - base, keys - base


@dataclass(frozen=True)
class FixedDistance(PositionEncoding):
    """The paper's encoding: far queries at w, far keys at 0, near tokens in order (Section 3.2).

    Args:
        distance: w, the relative position of every far token.
    """

    distance: int = 4096

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return consecutive(local, chunk)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        keys = torch.zeros(at.shape[0], dtype=torch.long)
        return Positions(torch.full((chunk,), self.distance), keys)


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

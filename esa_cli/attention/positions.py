"""Position encodings, which place far and near tokens (Section 3.2 of the ESA paper).

A position encoding only returns positions; `layer.py` rotates queries and keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.step import Positions


def make_consecutive_positions(
    local_count: int, chunk_size: int, first_position: int = 0
) -> Positions:
    """Returns consecutive positions, from `first_position` on, of local and current tokens."""
    keys = torch.arange(first_position, first_position + local_count + chunk_size)
    return Positions(keys[local_count:], keys)


def make_single_query_positions(
    device: torch.device, near: Positions, far: Positions, max_near_distance: int | None
) -> tuple[Tensor, Tensor]:
    """Returns the positions of a single query (1,) and of all its keys (n,), counted from 0. Far
    keys are as far from the query as in `far`, near keys at most `max_near_distance` away."""
    positions = [*near, *(far if far.key.shape[0] else ())]
    # Most are made on the CPU and stay there: rotation reads the largest, which would synchronise
    # with a GPU.
    if len({one.device for one in positions}) > 1:
        positions = [one.to(device, non_blocking=True) for one in positions]
    query, keys, *distant = positions
    if max_near_distance is not None:
        keys = torch.maximum(keys, query - max_near_distance)
    if distant:
        keys = torch.cat((distant[1] + query - distant[0], keys))
    base = keys.min()
    return query - base, keys - base


@dataclass(frozen=True)
class FixedDistancePositions(PositionEncoding):
    """Places all far tokens at one `distance`, and near tokens in order, as in the ESA paper."""

    distance: int = 4096  # w, the relative position of every far token

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return make_consecutive_positions(local, chunk)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        keys = torch.zeros(at.shape[0], dtype=torch.long)
        return Positions(torch.full((chunk,), self.distance), keys)


@dataclass(frozen=True)
class ContiguousPositions(PositionEncoding):
    """Renumbers far tokens in reading order, right before the local tokens, as TokenSelect does."""

    distance: int = 2048  # of far tokens when scores use rotated queries

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return make_consecutive_positions(local, chunk, first_position=far)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        count = at.shape[0]
        return Positions(torch.arange(count + local, count + local + chunk), torch.arange(count))


@dataclass(frozen=True)
class TruePositions(PositionEncoding):
    """Places every token at its position in the document, even beyond the trained window."""

    distance: int = 2048  # of far tokens when scores use rotated queries

    def near(self, local: int, chunk: int, start: int, far: int) -> Positions:
        return make_consecutive_positions(local, chunk, first_position=start - local)

    def far(self, at: Tensor, local: int, chunk: int, start: int) -> Positions:
        return Positions(torch.arange(start, start + chunk), at)

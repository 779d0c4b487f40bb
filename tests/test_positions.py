"""Relative distances each encoding gives, compared with what its words say."""

from __future__ import annotations

import pytest
import torch

from esa_cli.positions import Contiguous, FixedDistance, TruePositions, consecutive
from esa_cli.protocols import Positions

CASES = [(0, 1, 0), (0, 5, 9), (4, 1, 9), (4, 5, 9), (8, 8, 100)]
AT = torch.tensor([0, 1, 2, 10, 11, 40, 57, 58])


def apart(positions: Positions) -> torch.Tensor:
    """(C, n): query position less key position."""
    return positions.query[:, None] - positions.key[None]


def true_apart(local: int, chunk: int, start: int) -> torch.Tensor:
    queries = torch.arange(start, start + chunk)
    return queries[:, None] - torch.arange(start - local, start + chunk)[None]


@pytest.mark.parametrize("encoding", [FixedDistance(70), Contiguous(), TruePositions()])
@pytest.mark.parametrize(("local", "chunk", "start"), CASES)
@pytest.mark.parametrize("far", [0, 3, 8])
def test_near_tokens_are_as_far_as_they_are(
    encoding: FixedDistance | Contiguous | TruePositions,
    local: int,
    chunk: int,
    start: int,
    far: int,
) -> None:
    near = encoding.near(local, chunk, start, far)
    assert near.query.shape == (chunk,)
    assert near.key.shape == (local + chunk,)
    assert torch.equal(apart(near), true_apart(local, chunk, start))


@pytest.mark.parametrize("distance", [0, 1, 70, 5000])
@pytest.mark.parametrize("chunk", [1, 5])
def test_esa_far_is_always_at_w(distance: int, chunk: int) -> None:
    far = FixedDistance(distance).far(AT, 4, chunk, 100)
    assert torch.equal(apart(far), torch.full((chunk, len(AT)), distance))
    assert torch.equal(far.key, torch.zeros(len(AT), dtype=torch.long))


def test_esa_near_is_the_papers_numbering() -> None:
    near = FixedDistance().near(3, 2, 50, 7)
    assert near.key.tolist() == [0, 1, 2, 3, 4]
    assert near.query.tolist() == [3, 4]


@pytest.mark.parametrize("local", [0, 4])
@pytest.mark.parametrize("chunk", [1, 5])
def test_contiguous_has_order_no_gaps_and_stays_inside(local: int, chunk: int) -> None:
    encoding = Contiguous()
    near = encoding.near(local, chunk, 100, len(AT))
    far = encoding.far(AT, local, chunk, 100)
    assert torch.equal(near.query, far.query)
    keys = torch.cat((far.key, near.key))
    assert torch.equal(keys, torch.arange(len(AT) + local + chunk))
    assert int(torch.cat((keys, near.query)).max()) < len(AT) + local + chunk


@pytest.mark.parametrize("local", [0, 4])
@pytest.mark.parametrize("chunk", [1, 5])
def test_true_is_exact(local: int, chunk: int) -> None:
    far = TruePositions().far(AT, local, chunk, 100)
    queries = torch.arange(100, 100 + chunk)
    assert torch.equal(apart(far), queries[:, None] - AT[None])
    near = TruePositions().near(local, chunk, 100, len(AT))
    assert torch.equal(near.query, far.query)


@pytest.mark.parametrize("encoding", [FixedDistance(), Contiguous(), TruePositions()])
def test_no_far_tokens(encoding: FixedDistance | Contiguous | TruePositions) -> None:
    far = encoding.far(torch.arange(0), 4, 5, 9)
    assert (far.query.shape, far.key.shape) == ((5,), (0,))


def test_consecutive() -> None:
    assert consecutive(2, 3, first=10).key.tolist() == [10, 11, 12, 13, 14]
    assert consecutive(2, 3, first=10).query.tolist() == [12, 13, 14]

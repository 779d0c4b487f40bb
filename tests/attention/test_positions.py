"""Relative distances each encoding gives, compared with what its words say."""

from __future__ import annotations

import pytest
import torch

from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.positions import ContiguousPositions, FixedDistancePositions, TruePositions
from esa_cli.attention.step import Positions
from esa_cli.methods.full_attention import (
    DynamicNtkPositions,
    InterpolatedPositions,
    NtkPositions,
    ReRopePositions,
    YarnPositions,
)
from esa_cli.methods.infllm import InfLLMPositions
from esa_cli.methods.streaming import LMInfinitePositions

STRETCHED = [InterpolatedPositions(), NtkPositions(), DynamicNtkPositions(), YarnPositions()]
ENCODINGS = [
    *(FixedDistancePositions(70), ContiguousPositions(), TruePositions()),
    *(InfLLMPositions(), LMInfinitePositions(), ReRopePositions(), *STRETCHED),
]
CASES = [(0, 1, 0), (0, 5, 9), (4, 1, 9), (4, 5, 9), (8, 8, 100)]
AT = torch.tensor([0, 1, 2, 10, 11, 40, 57, 58])


def apart(positions: Positions) -> torch.Tensor:
    """(C, n): query position less key position."""
    return positions.query[:, None] - positions.key[None]


def true_apart(local: int, chunk: int, start: int) -> torch.Tensor:
    queries = torch.arange(start, start + chunk)
    return queries[:, None] - torch.arange(start - local, start + chunk)[None]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize(("local", "chunk", "start"), CASES)
@pytest.mark.parametrize("far", [0, 3, 8])
def test_near_tokens_are_as_far_as_they_are(
    encoding: PositionEncoding, local: int, chunk: int, start: int, far: int
) -> None:
    near = encoding.near(local, chunk, start, far)
    assert near.query.shape == (chunk,)
    assert near.key.shape == (local + chunk,)
    assert torch.equal(apart(near), true_apart(local, chunk, start))


@pytest.mark.parametrize("local", [0, 4])
@pytest.mark.parametrize("chunk", [1, 5])
def test_contiguous_has_order_no_gaps_and_stays_inside(local: int, chunk: int) -> None:
    encoding = ContiguousPositions()
    near = encoding.near(local, chunk, 100, len(AT))
    far = encoding.far(AT, local, chunk, 100)
    assert torch.equal(near.query, far.query)
    keys = torch.cat((far.key, near.key))
    assert torch.equal(keys, torch.arange(len(AT) + local + chunk))
    assert int(torch.cat((keys, near.query)).max()) < len(AT) + local + chunk


@pytest.mark.parametrize("local", [0, 1, 4, 30])
@pytest.mark.parametrize("chunk", [1, 5])
def test_one_fixed_distance_for_all_far_tokens(local: int, chunk: int) -> None:
    """By the window's length, or w; whatever the scoring distance is."""
    rules = {
        InfLLMPositions(77): max(local - 1, 0),
        # Their minimum with all the tokens there are, less one.
        LMInfinitePositions(77): min(local, 100 + chunk - 1),
        ReRopePositions(77): 77,
    }
    for encoding, distance in rules.items():
        far = encoding.far(AT, local, chunk, 100)
        assert torch.equal(apart(far), torch.full((chunk, len(AT)), distance))
        assert encoding.distance == 77


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda one: type(one).__name__)
def test_no_far_tokens(encoding: PositionEncoding) -> None:
    far = encoding.far(torch.arange(0), 4, 5, 9)
    assert (far.query.shape, far.key.shape) == ((5,), (0,))

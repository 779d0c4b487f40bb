"""Relative distances each encoding gives, and rotation of a part of a head and of other pairs,
against plain loops; layers without rotation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from torch import Tensor

from esa_cli.attention.layer import SelectiveAttention
from esa_cli.attention.method import Method
from esa_cli.attention.parts import PositionEncoding
from esa_cli.attention.positions import ContiguousPositions, FixedDistancePositions, TruePositions
from esa_cli.attention.rope import FixedFrequencyRotaryModule, NormWeightedRope, NoRope, Pairs, Rope
from esa_cli.attention.step import Positions
from esa_cli.errors import ModelError
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


DIM = 8
INVERSE = torch.tensor([1.0, 0.3, 0.07])


def looped(x: list[float], position: int, pairs: Pairs, factor: float) -> list[float]:
    """One vector of DIM numbers, of which the first 6 rotate."""
    out, half = list(x), len(INVERSE)
    for i, frequency in enumerate(INVERSE.tolist()):
        one, two = (2 * i, 2 * i + 1) if pairs == "interleaved" else (i, i + half)
        angle = position * frequency * (-1 if pairs == "reversed" else 1)
        cos, sin = factor * math.cos(angle), factor * math.sin(angle)
        out[one] = x[one] * cos - x[two] * sin
        out[two] = x[two] * cos + x[one] * sin
    return out


@pytest.mark.parametrize("factor", [1.0, 1.2])
@pytest.mark.parametrize("pairs", get_args(Pairs))
def test_pairs_of_a_part_of_the_head(pairs: Pairs, factor: float) -> None:
    rope, x, at = (
        Rope(FixedFrequencyRotaryModule(INVERSE, factor), pairs=pairs),
        torch.randn(2, 5, DIM),
        [0, 3, 4, 9, 77],
    )
    want = [
        [looped(row.tolist(), p, pairs, factor) for row, p in zip(h, at, strict=True)] for h in x
    ]
    got = rope.rotate(x, torch.tensor(at))
    torch.testing.assert_close(got, torch.tensor(want), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        x * rope.compute_rotation_scale(x), rope.rotate(x, torch.zeros(5, dtype=torch.long))
    )


def test_the_dtype_of_keys_stays() -> None:
    """Some models compute cosines in float32 whatever their keys are."""

    class Precise(FixedFrequencyRotaryModule):
        def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x.float(), position_ids)

    x = torch.randn(2, 3, DIM, dtype=torch.bfloat16)
    assert Rope(Precise(INVERSE, 1.0)).rotate(x, torch.arange(3)).dtype == torch.bfloat16


@dataclass(frozen=True)
class Slower(TruePositions):
    """Frequencies that are divided by the length, from 5 cached tokens on."""

    def frequencies(
        self, inverse: Tensor, factor: float, length: int
    ) -> tuple[Tensor, float] | None:
        return (inverse / length, 2 * factor) if length >= 5 else None


def test_an_encodings_frequencies_replace_the_models_and_keep_the_pairs() -> None:
    own = Rope(FixedFrequencyRotaryModule(INVERSE, 1.5), pairs="interleaved")
    attention = SelectiveAttention(Method(position=Slower()), own, 1.0)
    assert attention.choose_rope(4) is own
    x, at = torch.randn(1, 4, DIM), [0, 1, 2, 30]
    for length in (5, 9):
        changed = attention.choose_rope(length)
        assert attention.choose_rope(length) is changed
        assert changed.preallocate == (length == 5)
        slow = Rope(FixedFrequencyRotaryModule(INVERSE / length, 3.0), pairs="interleaved")
        assert torch.equal(changed.rotate(x, torch.tensor(at)), slow.rotate(x, torch.tensor(at)))


def test_weights_after_the_rotation() -> None:
    """Logits of a model that rotates, norms and weighs queries and keys, number by number."""
    query_weight = torch.tensor([0.5, -2.0, 1.0, 3.0, 0.7, 1.5, -0.2, 4.0])
    key_weight = torch.tensor([2.0, -1.0, 0.3, 1.0, 0.5, 3.0, -0.4, 0.1])
    q, k = torch.randn(2, 1, 1, DIM)
    plain = Rope(FixedFrequencyRotaryModule(INVERSE, 1.0))
    rope = NormWeightedRope(plain, query_weight, key_weight)

    def normed(x: Tensor) -> Tensor:
        return x / x.square().mean().sqrt()

    def stock(x: Tensor, weight: Tensor, position: int) -> list[float]:
        turned = looped(x.flatten().tolist(), position, "half", 1.0)
        rms = math.sqrt(sum(number * number for number in turned) / DIM)
        return [w * number / rms for w, number in zip(weight.tolist(), turned, strict=True)]

    def logit(query: int, key: int) -> float:
        both = zip(stock(q, query_weight, query), stock(k, key_weight, key), strict=True)
        return sum(a * b for a, b in both)

    # The attached model does not rotate: it norms and weighs what it projects.
    query, key = rope.convert_to_key(normed(q) * query_weight), normed(k) * key_weight
    got = rope.rotate(query, torch.tensor([9])) @ rope.rotate(key, torch.tensor([4])).mT
    assert got.item() == pytest.approx(logit(9, 4), rel=1e-5)
    assert (rope.rotate_to_far_distance(query, 5) @ key.mT).item() == pytest.approx(
        logit(5, 0), rel=1e-5
    )
    half = rope.copy_with_frequencies(INVERSE / 2, 1.0, preallocate=False)
    slow = half.rotate(query, torch.tensor([18]))
    torch.testing.assert_close(slow, rope.rotate(query, torch.tensor([9])))
    with pytest.raises(ModelError, match="same sign"):
        NormWeightedRope(plain, query_weight, -key_weight)


def test_without_rotation_positions_do_not_count() -> None:
    rope, x = NoRope(), torch.randn(2, 3, DIM)
    assert rope.rotate(x, torch.tensor([5, 1, 900])) is x
    assert torch.equal(x * rope.compute_rotation_scale(x), x)
    assert SelectiveAttention(Method(position=Slower()), rope, 1.0).choose_rope(9) is rope

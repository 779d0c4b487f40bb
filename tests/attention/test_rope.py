"""Rotation of a part of a head and of other pairs, against plain loops; layers without rotation."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from esa_cli.attention.rope import Angles, NoRope, Pairs, Rope, Ropes

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
        Rope(Angles(INVERSE, factor), pairs=pairs),
        torch.randn(2, 5, DIM),
        [0, 3, 4, 9, 77],
    )
    want = [
        [looped(row.tolist(), p, pairs, factor) for row, p in zip(h, at, strict=True)] for h in x
    ]
    got = rope.rotate(x, torch.tensor(at))
    torch.testing.assert_close(got, torch.tensor(want), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x * rope.gain(x), rope.rotate(x, torch.zeros(5, dtype=torch.long)))


def test_the_dtype_of_keys_stays() -> None:
    """Some models compute cosines in float32 whatever their keys are."""

    class Precise(Angles):
        def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(x.float(), position_ids)

    x = torch.randn(2, 3, DIM, dtype=torch.bfloat16)
    assert Rope(Precise(INVERSE, 1.0)).rotate(x, torch.arange(3)).dtype == torch.bfloat16


def test_changed_frequencies_keep_the_pairs() -> None:
    rope = Ropes(Rope(Angles(INVERSE, 1.0), pairs="interleaved"))
    changed = rope.at(5, lambda inverse, factor, length: (inverse / 2, factor))
    x, at = torch.randn(1, 4, DIM), torch.arange(4)
    half = Rope(Angles(INVERSE / 2, 1.0), pairs="interleaved")
    assert torch.equal(changed.rotate(x, at), half.rotate(x, at))


def test_without_rotation_positions_do_not_count() -> None:
    rope, x = NoRope(), torch.randn(2, 3, DIM)
    assert rope.rotate(x, torch.tensor([5, 1, 900])) is x
    assert torch.equal(x * rope.gain(x), x)
    assert Ropes(rope).at(9, lambda *given: pytest.fail("it has no frequencies")) is rope

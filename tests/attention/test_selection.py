"""Eq. (8) and the top-k selector."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import reference
import torch
from conftest import build_step

from esa_cli.attention.selection import LogitSum, TopKSelector, proximity
from esa_cli.attention.step import Step
from esa_cli.attention.window import QuestionAndText
from esa_cli.methods.voting import VoteScore


@dataclass(frozen=True)
class Given:
    """A score that is what the test says."""

    values: torch.Tensor
    features: bool = False

    def scores(self, step: Step) -> torch.Tensor:
        return self.values


@pytest.mark.parametrize("epsilon", [0, 1, 2, 3, 10, 19, 20, 21, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 20])
def test_proximity_is_eq_8(count: int, epsilon: int) -> None:
    scores = torch.randn(count)
    if count:
        assert proximity(scores, epsilon).tolist() == reference.proximity(scores.tolist(), epsilon)
    else:
        assert proximity(scores, epsilon).shape == (0,)


def test_proximity_of_minus_infinity() -> None:
    low = -torch.inf
    scores = torch.tensor([low, low, low, 1.0, low, low, low, low])
    assert proximity(scores, 2).tolist() == [low, 1, 1, 1, 1, 1, low, low]


@pytest.mark.parametrize("score", [LogitSum(), LogitSum(True), VoteScore(), VoteScore(shortlist=9)])
@pytest.mark.parametrize("epsilon", [0, 1, 3])
def test_selection_matches_loops(score: LogitSum | VoteScore, epsilon: int) -> None:
    q, k = torch.randn(6, 3, 8), torch.randn(2, 25, 8)
    step = build_step(q, k, low=3, after=2, score=score)
    settings = reference.Settings(
        initial=3,
        selected=6,
        local=2,
        chunk=3,
        dense=0,
        position="esa",
        distance=29,
        score="sum" if isinstance(score, LogitSum) else "vote",
        rotate=score.rotate,
        scale=0.3,
        epsilon=epsilon,
        shortlist=getattr(score, "shortlist", 0),
    )
    scores = reference.scores_of(settings, reference.plain(q), reference.plain(k))
    want = reference.top_k(reference.proximity(scores, epsilon), 6)
    assert TopKSelector(epsilon).select(step, 6).tolist() == want


def test_neighbours_of_the_best_come_before_lesser_peaks() -> None:
    values = torch.tensor([0.0, 0, 0, 9, 0, 0, 0, 5, 0, 0])
    step = build_step(torch.randn(2, 1, 8), torch.randn(2, 10, 8), score=Given(values))
    assert TopKSelector(0).select(step, 3).tolist() == [0, 3, 7]
    assert TopKSelector(1).select(step, 3).tolist() == [2, 3, 4]
    assert TopKSelector(1).select(step, 6).tolist() == [2, 3, 4, 6, 7, 8]


def test_negative_epsilon_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        TopKSelector(-1)


def test_a_result_for_the_texts_of_a_turn_is_computed_once_a_key() -> None:
    text, calls = QuestionAndText("Who?", lambda: ["a", "b"]), list[str]()

    def compute() -> int:
        calls.append("called")
        return len(text.pieces())

    assert [text.once("size", compute), text.once("size", compute)] == [2, 2]
    assert text.once("other", lambda: 3) == 3
    assert len(calls) == 1

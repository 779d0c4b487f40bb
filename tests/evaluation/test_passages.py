"""Passages from weights: the heaviest stretches, whole sentences, never twice the same text."""

from __future__ import annotations

from itertools import pairwise

import torch

from esa_cli.evaluation.passages import best, widened

TEXT = "One is here. Two stands there.\nThree goes away! Four remains? " * 40
SPANS = [(at, at + 1) for at in range(len(TEXT))]


def weights_at(*places: int) -> torch.Tensor:
    weights = torch.zeros(len(TEXT))
    for rank, at in enumerate(places):
        weights[at] += 1.0 + rank
    return weights


def test_a_passage_is_whole_sentences_around_the_weight() -> None:
    at = TEXT.index("stands", 1000)
    (passage,) = best(weights_at(at, at + 1), SPANS, TEXT, 3)
    assert passage.text(TEXT) == "Two stands there."
    assert passage.start <= at < passage.end
    assert passage.weight == 1.0


def test_heaviest_first_and_none_overlap() -> None:
    places = [200, 900, 1500, 2100]
    found = best(weights_at(*places), SPANS, TEXT, 3)
    assert [min(range(4), key=lambda i: abs(places[i] - p.start)) for p in found] == [3, 2, 1]
    assert [round(p.weight, 6) for p in found] == [0.4, 0.3, 0.2]
    spans = sorted((p.start, p.end) for p in found)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_no_weight_no_passage() -> None:
    assert best(torch.zeros(len(TEXT)), SPANS, TEXT, 3) == []
    assert best(torch.zeros(0), [], "", 3) == []


def test_weight_on_a_token_without_characters_ends() -> None:
    """Tokens of a byte each may cover no character of their own."""
    spans = [(0, 1), (1, 1), (1, 2)]
    assert len(best(torch.tensor([0.0, 1.0, 0.0]), spans, "ab", 3)) == 1


def test_widening_stops_at_what_is_taken_and_at_its_limit() -> None:
    assert widened("aaa. bbb ccc. ddd", 9, 10) == (5, 13)
    assert widened("aaa. bbb ccc. ddd", 9, 10, [(5, 9)]) == (9, 13)
    start, end = widened("x" * 5000, 2000, 2001)
    assert 0 < 2000 - start <= 300
    assert 0 < end - 2001 <= 300

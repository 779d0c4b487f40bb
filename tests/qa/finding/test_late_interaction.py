"""Scores of windows against a loop."""

from __future__ import annotations

import torch

from esa_cli.qa.finding.late_interaction import window_scores


def test_against_a_loop() -> None:
    torch.manual_seed(1)
    queries, keys = torch.randn(5, 4), torch.randn(60, 4)
    queries = torch.nn.functional.normalize(queries, dim=1)
    keys = torch.nn.functional.normalize(keys, dim=1)
    weights = torch.rand(5).softmax(0)
    windows = [(3, 9), (6, 20), (6, 7), (18, 41), (20, 60), (41, 41), (59, 60), (3, 60)]
    first, last = torch.tensor(windows).T
    found = window_scores(queries, weights, keys, first, last)
    for (a, b), score in zip(windows, found.tolist(), strict=True):
        want = -1.0
        if b > a:
            want = sum(
                float(w) * max(float(q @ k) for k in keys[a:b])
                for q, w in zip(queries, weights, strict=True)
            )
        assert abs(score - want) < 1e-5


def test_no_tokens() -> None:
    none = torch.tensor([0, 0])
    assert window_scores(
        torch.ones(2, 3), torch.tensor([0.5, 0.5]), torch.zeros(0, 3), none, none
    ).tolist() == [-1, -1]

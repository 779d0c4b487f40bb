"""Scores of windows against a loop."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esa_cli.qa.finding import finder as late_interaction
from esa_cli.qa.finding.finder import (
    ReducedKeys,
    compute_window_products,
    make_index_layout,
    pool_window_products,
)


def window_scores(
    queries: Tensor, weights: Tensor, keys: Tensor | ReducedKeys, first: Tensor, last: Tensor
) -> Tensor:
    """Scores (W,) of windows."""
    return compute_window_products(queries, keys, first, last) @ weights


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
    none = window_scores(queries, weights, keys[:0], first * 0, last * 0)
    assert none.tolist() == pytest.approx([-float(weights.sum())] * len(windows))


def test_one_window_of_the_whole_text() -> None:
    queries, keys = torch.randn(3, 4), torch.randn(9, 4)
    found = compute_window_products(queries, keys, torch.tensor([0]), torch.tensor([9]))
    torch.testing.assert_close(found, (queries @ keys.T).amax(1)[None], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("windows", [0, 1, 3, 50])
def test_products_around(windows: int) -> None:
    torch.manual_seed(3)
    first = torch.arange(0, 40, 4)
    products = compute_window_products(torch.randn(3, 4), torch.randn(44, 4), first, first + 8)
    found = pool_window_products(products, windows)
    assert found.shape == products.shape
    for at, row in enumerate(found):
        assert torch.equal(row, products[max(0, at - windows) : at + windows + 1].amax(0))
    assert pool_window_products(products[:0], windows).shape == (0, 3)


def in_one_product(
    queries: Tensor, weights: Tensor, keys: Tensor, first: Tensor, last: Tensor
) -> Tensor:
    """The scores of windows with tokens from one product of all keys."""
    products = keys @ queries.T
    best = [products[a:b].amax(0) for a, b in zip(first.tolist(), last.tolist(), strict=True)]
    return torch.stack(best) @ weights


@pytest.mark.parametrize("tile", [1, 7, 64, 4096])
def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch, tile: int) -> None:
    monkeypatch.setattr(late_interaction, "TILE", tile)
    torch.manual_seed(2)
    tokens = 900
    queries = torch.nn.functional.normalize(torch.randn(9, 16), dim=1)
    keys = ReducedKeys.encode(
        torch.nn.functional.normalize(torch.randn(tokens, 16), dim=1), make_index_layout(16)
    )
    weights = torch.rand(9).softmax(0)
    # Windows of all lengths, within a tile and over several, that overlap and leave gaps.
    first = torch.randint(5, tokens - 20, (200,)).sort()[0]
    last = (first + torch.randint(1, 150, (200,))).clamp(max=tokens - 3)
    want = in_one_product(queries, weights, keys.decode_keys(0, tokens), first, last)
    found = window_scores(queries, weights, keys, first, last)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=0)
    plain = window_scores(queries, weights, keys.decode_keys(0, tokens), first, last)
    assert torch.equal(plain, found)

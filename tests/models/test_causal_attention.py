"""Attention in blocks of queries equals PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from esa_cli.models.text_passes import small_decoder as module
from esa_cli.models.text_passes.small_decoder import causal_attention


@pytest.mark.parametrize("block", [1, 3, 7, 64])
@pytest.mark.parametrize(("count", "length"), [(11, 11), (4, 11), (1, 11)])
def test_equals_pytorchs_attention(
    count: int, length: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    torch.manual_seed(count)
    query = torch.randn(2, 6, count, 8)
    key, value = torch.randn(2, 2, 2, length, 8)
    seen = torch.arange(length) <= torch.arange(length - count, length)[:, None]
    wanted = scaled_dot_product_attention(query, key, value, seen, enable_gqa=True)
    torch.testing.assert_close(causal_attention(query, key, value), wanted.transpose(1, 2))

"""Scores of passages for questions by late interaction, through which gradients pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from finder_texts import PassageCrop
from torch import Tensor

from esa_cli.qa.finding.finder import TokenEncoder


def late_interaction(queries: Tensor, weights: Tensor, keys: Tensor, within: Tensor) -> Tensor:
    """Scores (B, P): of each question's tokens i, the sum of w_i * max over a passage's tokens j of
    q_i . k_j.

    Args:
        queries: (B, M, R). weights: (B, M). keys: (P, T, R). within: (P, T), True for the tokens
            that are a passage's own.
    """
    products = torch.einsum("bmr,ptr->bpmt", queries, keys)
    best = products.masked_fill(~within[None, :, None], -1.0).amax(-1)
    return (best * weights[:, None]).sum(-1)


def crop_keys(encoder: TokenEncoder, crops: Sequence[PassageCrop]) -> tuple[Tensor, Tensor]:
    """Reduced keys (P, T, R), and which are a crop's own (P, T)."""
    keys = encoder.encode_token_sequences([crop.ids for crop in crops])
    places = torch.arange(keys.shape[1])
    starts = torch.tensor([crop.start for crop in crops])[:, None]
    ends = torch.tensor([len(crop.ids) for crop in crops])[:, None]
    return keys, ((places >= starts) & (places < ends)).to(keys.device)

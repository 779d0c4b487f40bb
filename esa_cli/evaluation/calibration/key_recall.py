"""Recall@k: how many of the k best keys are still found by reduced scores (the paper's figure).

For every query the k keys with the largest q . k are the truth, of all keys given; its recall is
the share of them among the k keys with the largest reduced score. Ties go where the device's
top-k puts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from esa_cli.attention.compression import Linear
from esa_cli.evaluation.calibration.quantise import by_dimension, by_token

QUERIES = 512
"""Most held-out queries that are asked, evenly spaced over those there are."""
STORED = ("float", "int8 by token", "int8 by dimension")
"""How reduced keys may be kept; see `quantise`."""


def spaced(x: Tensor, most: int) -> Tensor:
    """At most `most` rows of x (n, F), evenly spaced."""
    if x.shape[0] <= most:
        return x
    return x[torch.linspace(0, x.shape[0] - 1, most, device=x.device).long()]


def recall(full: Tensor, reduced: Tensor, k: int) -> float:
    """Mean recall@k over queries, of scores (Q, n) by reduced scores (Q, n)."""
    truth = torch.zeros(full.shape, dtype=torch.bool, device=full.device)
    truth.scatter_(1, full.topk(k, dim=1).indices, True)
    found = truth.gather(1, reduced.topk(k, dim=1).indices)
    return float(found.double().mean())


@dataclass(frozen=True)
class Heldout:
    """Tokens of one layer that nothing was fitted on.

    Args:
        queries, keys: folded, (n, F). seen: folded keys (m, F) that were fitted on; int8 scales are
            taken from them.
    """

    queries: Tensor
    keys: Tensor
    seen: Tensor

    def scores(self) -> Tensor:
        """Full scores (Q, n) of the queries that are asked."""
        return spaced(self.queries, QUERIES) @ self.keys.T

    def reduced(self, maps: Linear) -> dict[str, Tensor]:
        """Reduced scores (Q, n), by how the reduced keys are stored."""
        queries = maps.queries(spaced(self.queries, QUERIES))
        keys = maps.keys(self.keys)
        stored = {
            STORED[0]: keys,
            STORED[1]: by_token(keys),
            STORED[2]: by_dimension(keys, maps.keys(self.seen)),
        }
        return {name: queries @ features.T for name, features in stored.items()}


def error(full: Tensor, reduced: Tensor) -> float:
    """Eq. 6 over the pairs of scores (Q, n), relative to the full scores' square."""
    return float((full - reduced).square().sum() / full.square().sum())


def limited(ks: Sequence[int], keys: int) -> list[int]:
    """The ks, at most half of the keys each, without those that become equal."""
    return sorted({max(1, min(k, keys // 2)) for k in ks})


def recalls(
    full: Tensor, reduced: Mapping[str, Tensor], ks: Sequence[int]
) -> dict[str, list[float]]:
    """Recall at every k, by how the reduced keys are stored."""
    return {name: [recall(full, scores, k) for k in ks] for name, scores in reduced.items()}

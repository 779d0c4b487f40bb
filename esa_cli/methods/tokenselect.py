"""TokenSelect: tokens by softmax scores summed over heads, for the chunk's mean query.

    q_h    = mean over c of R(q_h,c, L + c)        the chunk's queries at their positions after L
    S(m)   = sum over h of softmax_m( q_h . k_g(h),m )      keys unrotated, no 1/sqrt(D)
    choice   the k best of S, after an optional maximum over `pool` neighbours

Source: Wu et al., "TokenSelect: Efficient Long-Context Inference and Length Extrapolation for LLMs
via Dynamic Token-Level KV Cache Selection", arXiv 2411.02886, and its published code. Unlike it,
- query head h is scored with the key head it attends with, h // (H / G); the code takes h % G;
- it has a selection cache, off by default in the code; here there is none;
- windows, chunk and k are the preset's (there 128, 512, 512 and 2048);
- `pool` is odd; ESA's epsilon is (pool - 1) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.parts import Selector, check_odd
from esa_cli.attention.selection import proximity, top_k
from esa_cli.attention.step import Step
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.registry import OWN_SCORE, Base, recipe, register
from esa_cli.methods.voting import VoteScore

VOTE = VoteScore(rule="softmax", rotate=False)


@register("selector", "tokenselect", about="softmax scores of all heads, for the mean query")
@dataclass(frozen=True)
class TokenSelect(Selector):
    """One selection for all heads, by softmax scores summed over heads.

    Args:
        pool: tokens over which the maximum of the scores is taken, odd; 1: none.
    """

    pool: int = 1

    def __post_init__(self) -> None:
        check_odd(pool=self.pool)

    def select(self, step: Step, budget: int) -> Tensor:
        """(K,) int64 offsets into M."""
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        mean = replace(step, queries=mean_query(step)[:, None], scale=1.0)
        return top_k(proximity(VOTE.scores(mean), self.pool // 2), budget)


def mean_query(step: Step) -> Tensor:
    """(H, D): the chunk's queries, rotated to their positions after L, averaged."""
    chunk = step.queries.shape[1]
    at = torch.arange(step.local, step.local + chunk, device=step.queries.device)
    rotated = step.rope.rotate(step.queries, at) * step.rope.gain(step.queries)
    return rotated.float().mean(dim=1).to(step.queries.dtype)


@recipe(
    "tokenselect",
    about="tokens by softmax scores of all heads for the chunk's mean query; re-numbered in order",
    source="Wu et al., TokenSelect: Efficient Long-Context Inference and Length Extrapolation for "
    "LLMs via Dynamic Token-Level KV Cache Selection, arXiv 2411.02886",
    cost=f"F M + {ATTENDED}",
)
def tokenselect(base: Base) -> dict[str, Any]:
    return {
        "selector": {"name": "tokenselect", "pool": 1},
        **OWN_SCORE,
        "position": {"name": "contiguous"},
        "reading": "select",
    }

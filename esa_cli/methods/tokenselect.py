"""TokenSelect: tokens by softmax scores summed over heads, for the chunk's mean query.

    q_h    = mean over c of R(q_h,c, L + c)        the chunk's queries at their positions after L
    S(m)   = sum over h of softmax_m( q_h . k_g(h),m )      keys unrotated, no 1/sqrt(D)
    choice   the k best of S, after an optional maximum over `pool` neighbours

Selection cache (`reuse`): the last selection is used again while cos(q, q of that selection) is at
least `reuse`. The paper's threshold is 0.9.

Source: Wu et al., "TokenSelect: Efficient Long-Context Inference and Length Extrapolation for LLMs
via Dynamic Token-Level KV Cache Selection", arXiv 2411.02886, and its published code. Unlike it,
- query head h is scored with the key head it attends with, h // (H / G); the code takes h % G;
- `reuse` is off by default, as in the code, and for tokens of an answer only. The cosine is that of
  all heads' mean queries concatenated;
- windows, chunk and k are the preset's (there 128, 512, 512 and 2048);
- `pool` is odd; ESA's epsilon is (pool - 1) / 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.parts import Selector, check_odd
from esa_cli.attention.selection import proximity, top_k
from esa_cli.attention.step import LayerState, Step
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.registry import OWN_SCORE, Base, recipe, register
from esa_cli.methods.voting import VoteScore

VOTE = VoteScore(rule="softmax", rotate=False)


@dataclass(frozen=True)
class ReusableSelection:
    """A selection that the answer's next token may use again.

    Args:
        query: (H, D). chosen: absolute positions (K,).
    """

    query: Tensor
    budget: int
    chosen: Tensor


@dataclass
class TokenSelectState(LayerState):
    """The layer's last selection; a crop drops it."""

    last: ReusableSelection | None = None

    def crop(self, length: int) -> None:
        self.last = None


@register("selector", "tokenselect", about="softmax scores of all heads, for the mean query")
@dataclass(frozen=True)
class TokenSelect(Selector):
    """One selection for all heads, by softmax scores summed over heads.

    Args:
        pool: tokens over which the maximum of the scores is taken, odd; 1: none.
        reuse: least cosine at which an answer's token uses the last selection; None: never.
    """

    pool: int = 1
    reuse: float | None = None

    def __post_init__(self) -> None:
        check_odd(pool=self.pool)

    def new_layer_state(self) -> TokenSelectState:
        return TokenSelectState()

    def select(self, step: Step, budget: int) -> Tensor:
        """(K,) int64 offsets into M."""
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        query = mean_query(step)
        if self.reuse is None:
            return self._choose(step, query, budget)
        state: TokenSelectState = step.layer_state(self)
        kept, state.last = state.last, None
        if not step.decoding:
            return self._choose(step, query, budget)
        if kept is None or kept.budget != budget or cosine(query, kept.query) < self.reuse:
            kept = ReusableSelection(query, budget, self._choose(step, query, budget) + step.low)
        state.last = kept
        return kept.chosen - step.low

    def _choose(self, step: Step, query: Tensor, budget: int) -> Tensor:
        one = replace(step, queries=query[:, None], scale=1.0)
        return top_k(proximity(VOTE.scores(one), self.pool // 2), budget)


def mean_query(step: Step) -> Tensor:
    """(H, D): the chunk's queries, rotated to their positions after L, averaged."""
    chunk = step.queries.shape[1]
    at = torch.arange(step.local, step.local + chunk, device=step.queries.device)
    rotated = step.rope.rotate(step.queries, at) * step.rope.gain(step.queries)
    return rotated.float().mean(dim=1).to(step.queries.dtype)


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of two queries (H, D), all heads together."""
    return float(functional.cosine_similarity(a.float().flatten(), b.float().flatten(), dim=0))


@recipe(
    "tokenselect",
    about="tokens by softmax scores of all heads for the chunk's mean query; re-numbered in order",
    source="Wu et al., TokenSelect: Efficient Long-Context Inference and Length Extrapolation for "
    "LLMs via Dynamic Token-Level KV Cache Selection, arXiv 2411.02886",
    cost=f"F M + {ATTENDED}",
)
def tokenselect(base: Base) -> dict[str, Any]:
    return {
        "selector": {"name": "tokenselect", "pool": 1, "reuse": None},
        **OWN_SCORE,
        "position": {"name": "contiguous"},
        "reading": "select",
    }

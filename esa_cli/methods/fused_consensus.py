"""The selector `fused-consensus`: retrieval heads and words together.

    z(w)   a window's mean score, less the mean over all windows, by their standard deviation
    F(w)   z of the scores summed over layers + weight * z of the second score

A window is any `passage` neighbouring tokens. Both are standardised for each question, so that a
score that finds nothing in particular does not outvote one that does. Ours; recipe
`esa-consensus-bm25`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.attention.parts import Score, check_at_least
from esa_cli.attention.precision import to_float64
from esa_cli.attention.step import Step
from esa_cli.methods import part_registry as registry
from esa_cli.methods.consensus import Consensus, esa_consensus
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import Base, recipe
from esa_cli.methods.token_windows import mean_scores


def standardised(scores: Tensor, size: int) -> Tensor:
    """Scores (M,) shifted and scaled so that the means of all windows of `size` tokens have mean 0
    and standard deviation 1; zeros where all windows have the same mean.

    Tokens without a score (-inf) count as the lowest that has one.
    """
    finite = to_float64(scores)
    finite = torch.where(finite.isneginf(), finite.nan_to_num(neginf=torch.inf).amin(), finite)
    finite = finite.nan_to_num(posinf=0.0)
    means = mean_scores(finite[None], min(size, scores.shape[0]))[0]
    spread = means.std(correction=0)
    if float(spread) <= 1e-12 * float(means.abs().amax()):
        return torch.zeros_like(finite)
    return (finite - means.mean()) / spread


@register(
    "selector",
    "fused-consensus",
    about="as consensus, with a second score added",
    source="this project, after ESA, arXiv 2502.14477",
    cost="that of consensus and of the second score",
)
@dataclass(frozen=True)
class FusedConsensus(Consensus):
    """Token windows by two standardised scores: the preset's, summed over layers, and another.

    Args:
        second: name of a score that compares words (`step.text`), with its default settings.
            weight: its factor; 0: none.
    """

    passage: int = 64
    second: str = "bm25"
    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(0, weight=self.weight)
        self._second()

    def _second(self) -> Score:
        score: Score = registry.build("score", {"name": self.second})
        return score.for_single_layers()

    def best(self, scores: Tensor, step: Step, budget: int) -> Tensor:
        size = self.passage or self.smooth
        second = standardised(self._second().scores(step), size)
        both = standardised(scores, size) + self.weight * second.to(scores.device)
        return super().best(both, step, budget)


@recipe(
    "esa-consensus-bm25",
    about="as esa-consensus by the preset's heads, with BM25 of the question's words added",
    source="this project, after the paper and Robertson et al. 1994, Okapi at TREC-3",
    cost=f"F M for a question, 0 for an answer's token, + {ATTENDED}",
)
def esa_consensus_bm25(base: Base) -> dict[str, Any]:
    whole = esa_consensus(base)
    fused = {"name": "fused-consensus", "second": "bm25", "weight": 1.0}
    score = {key: value for key, value in whole["score"].items() if key != "heads"}
    return {**whole, "selector": {**whole["selector"], **fused}, "score": score}

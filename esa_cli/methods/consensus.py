"""Selection by agreement: what earlier layers found, later layers read too.

The paper selects in every layer for itself. In a small model few layers find a passage (their
heads match the question's words), and the layers that would use it do not select it once M is
large: that is why answers collapse between 12k and 24k tokens (docs/results.md). Here each layer
adds its votes to those of the layers before it, and selects passages by the sum; no training. The
last layer's selection then serves the answer's tokens, and with two rounds the question's, too.

Few whole passages serve a small model better than many torn ones (docs/results.md): `passage` takes
windows of that many tokens, each with the most votes left, until the budget is used.

A forward call may hold several chunks, and the host runs all of them through a layer before the
next layer: agreements are kept by the position at which their chunk starts.

Not in the paper; measured against it in docs/results.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.parts import Selector
from esa_cli.attention.selection import proximity, top_k
from esa_cli.attention.step import Step
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import Base, recipe
from esa_cli.methods.token_windows import best_windows
from esa_cli.methods.voting import PLAIN, esa_vote


@dataclass
class LayerScores:
    """Votes for the tokens from position `low` on, summed over the layers up to `layer`."""

    start: int
    layer: int
    low: int
    votes: Tensor
    chosen: Tensor | None = None


def passages(votes: Tensor, count: int, smooth: int, epsilon: int) -> Tensor:
    """Ascending offsets (count,) of the passages with the most votes.

    Args:
        votes: (M,). smooth: tokens over which votes are averaged, odd; a passage that many words
            of the question ask for then beats a single token. epsilon: of Eq. (8); passages are at
            least 2 epsilon + 1 tokens long.
    """
    if smooth > 1 and votes.numel():
        votes = votes - votes.amin().clamp(max=0.0)  # beyond the borders there are zeros
        votes = functional.avg_pool1d(votes[None], smooth, stride=1, padding=smooth // 2)[0]
    return top_k(proximity(votes, epsilon), count)


@dataclass
class ConsensusTurn:
    """The accumulated scores of a turn, by the position at which their chunk starts; `surveyed`:
    those of the question's survey pass, with which its second pass selects."""

    agreements: dict[int, LayerScores] = field(default_factory=dict)
    surveyed: LayerScores | None = None


@register(
    "selector",
    "consensus",
    about="whole passages, by the votes of all layers so far",
    source="this project, after ESA, arXiv 2502.14477",
    cost="the score's, and M for each passage; a question is read twice",
)
@dataclass(frozen=True)
class Consensus(Selector):
    """Passages that the layers so far agree on, by the sum of their scores.

    Args:
        smooth: tokens over which votes are averaged, odd. proximity: epsilon, see `passages`.
        passage: tokens of a whole passage; 0: tokens are taken by `smooth` and `proximity`, and
            `share` says nothing. share: see `token_windows.best_windows`.
        rounds: how often a session reads the question; the second time every layer has what all
            layers agreed on the first time.
        answer: what selects while the answer is written: `keep`, the question's agreement, or
            `vote`, which adds the new token's votes in every step.
    """

    smooth: int = 33
    proximity: int = 16
    answer: Literal["keep", "vote"] = "keep"
    passage: int = 0
    share: float = 0.0
    rounds: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        if self.passage < 0 or not 0 <= self.share <= 1 or self.rounds not in (1, 2):
            raise ValueError("passage is at least 0, share from 0 to 1, rounds 1 or 2")
        if self.smooth < 1 or self.smooth % 2 == 0:
            raise ValueError("smooth must be odd and at least 1")
        if self.proximity < 0:
            raise ValueError("proximity must not be negative")
        if self.answer not in ("keep", "vote"):
            raise ValueError("answer is keep or vote")
        if self.rounds == 2 and self.answer == "vote":
            raise ValueError("with rounds 2 the agreement is kept: answer must be keep")

    @property
    def sums_layers(self) -> bool:
        return True

    @property
    def surveys(self) -> bool:
        return self.rounds == 2

    @property
    def window_size(self) -> int:
        return self.passage

    def new_turn_state(self) -> ConsensusTurn:
        return ConsensusTurn()

    def select(self, step: Step, budget: int) -> Tensor:
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        turn: ConsensusTurn = step.turn_state(self)
        if turn.surveyed is not None:
            return self._kept(turn.surveyed, step, budget)
        agreements = turn.agreements
        earlier = [start for start in agreements if start < step.start] if step.decoding else []
        asked = agreements[max(earlier)] if earlier else None
        if asked is not None and self.answer == "keep":
            return self._kept(asked, step, budget)
        same = agreements.get(step.start)
        if same is None or same.layer >= step.layer:
            same = asked
            # What lies beyond this layer is left over from an earlier pass through the layers.
            for start in [
                s for s, a in agreements.items() if a.layer > step.layer and a is not asked
            ]:
                del agreements[start]
        scores = step.scores()
        # A token without a score is worth no more than the worst that has one.
        worst = scores.masked_fill(scores.isneginf(), 0.0).amin().clamp(max=0.0)
        votes = self._base(same, step) + torch.where(scores.isneginf(), worst, scores.nan_to_num())
        agreements[step.start] = LayerScores(step.start, step.layer, step.low, votes)
        if step.query.surveying:
            # What half of the layers would pick is not shown to the others: it sways their votes.
            return torch.arange(0, device=step.queries.device)
        return self._best(votes, budget)

    def survey_complete(self, step: Step) -> bool:
        """Whether all scoring layers have scored the last chunk of the question."""
        turn: ConsensusTurn = step.turn_state(self)
        last, stop = step.last_scoring_layer, step.start + step.queries.shape[1]
        scored = step.start in turn.agreements and stop == len(step.store)
        return scored and last is not None and step.layer >= last

    def after_survey(self, turn: ConsensusTurn | None) -> ConsensusTurn:
        agreements = turn.agreements if turn else {}
        return ConsensusTurn(surveyed=agreements[max(agreements)] if agreements else None)

    def _best(self, votes: Tensor, budget: int) -> Tensor:
        if self.passage:
            return best_windows(votes, budget, self.passage, self.share)
        return passages(votes, budget, self.smooth, self.proximity)

    def _base(self, known: LayerScores | None, step: Step) -> Tensor:
        """Votes so far (M,); of middle tokens that had none, the fewest that any has."""
        base = torch.zeros(step.middle, device=step.queries.device)
        if known is not None and known.low == step.low and known.votes.numel():
            count = min(base.shape[0], known.votes.shape[0])
            base[:count] = known.votes[:count]
            base[count:] = known.votes.amin().clamp(max=0.0)
        return base

    def _kept(self, known: LayerScores, step: Step, budget: int) -> Tensor:
        """The question's last agreement, worked out once for all layers and later tokens."""
        if known.chosen is None or known.chosen.shape[0] > budget:
            known.chosen = self._best(known.votes, budget) + known.low
        chosen = known.chosen.to(step.queries.device) - step.low
        return chosen[(chosen >= 0) & (chosen < step.middle)]


@recipe(
    "esa-consensus",
    about="whole passages that the layers agree on, seen right before the question",
    source="this project, after the paper",
    cost=f"F M for a question, 0 for an answer's token, + {ATTENDED}",
)
def esa_consensus(base: Base) -> dict[str, Any]:
    agreed = {"name": "consensus", "passage": 64, "share": 0.5, "rounds": 2, "answer": "keep"}
    vote = {"name": "vote", "rule": "softmax", "rotate": True, "contrast": True}
    return {
        **esa_vote(base),
        "selector": agreed,
        "score": {**PLAIN, **vote},
        "position": {"name": "contiguous", "distance": min(1024, base.context // 2)},
        "window": {"ending": 0},
        "reading": "local",
    }

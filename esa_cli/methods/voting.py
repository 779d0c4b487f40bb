"""Scores by votes: each head normalises over M before the heads are put together.

A head with large logits cannot outweigh the few that retrieve. Recipes: `esa-vote`, and
`esa-individual`, the paper's ablation over heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from esa_cli.attention.parts import Score
from esa_cli.attention.scoring import SumScore, twice
from esa_cli.attention.selection import top_k
from esa_cli.attention.step import Step
from esa_cli.errors import PresetError
from esa_cli.methods.paper import ATTENDED, PAPER, esa
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import Base, recipe

PLAIN: dict[str, Any] = {
    "shortlist": 0,
    "contrast": False,
    "normalise": "head",
    "heads": [],
}


def vote(
    logits: Tensor,
    normaliser: Tensor,
    rule: str,
    sides: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """(H, C, n) logits and each row's normaliser (H, C) -> (n,) scores.

    Args:
        sides: (C,) each, which queries are the question's own words, and which the prompt's around
            them: their votes are then taken off.
    """
    shifted = logits - normaliser[..., None]
    heads = shifted.exp_().sum(dim=0) if rule == "softmax" else shifted.amax(dim=0)
    if sides is None:
        return heads.amax(dim=0)
    own, around = sides
    return (heads[own].amax(dim=0) - heads[around].amax(dim=0)).clamp_min_(0)


@register(
    "score",
    "vote",
    about="every head has one vote, then the loudest query",
    source="this project, after ESA, arXiv 2502.14477, whose individual selection is rule max",
    cost="F M; with a shortlist of S tokens R M + F S; nothing in layers without a head of `heads`",
)
@dataclass(frozen=True)
class VoteScore(Score):
    """Each head normalises over M, then the heads are put together, then the chunk.

    Args:
        rule: `softmax`: sum over heads of each head's attention weight over M;
            `max`: maximum over heads of the logit less that head's maximum.
        normalise: of rule max, what is taken off first: `head`, each head's own maximum over M, or
            `query`, the largest of all heads', which is Eq. (4) with the maximum over heads for the
            sum of Eq. (3) (the paper's individual selection).
        rotate: score the logit that attention at the far distance will see.
        contrast: where the question's own words are known, take off what the words around them vote
            for: a token that any prompt asks for (an attention sink, the document's title) is not
            an answer to this one. Ours; measured in docs/results-archive.md. Needs rule softmax.
        heads: (layer, query head) pairs that vote, empty: all. Other layers give every token 0 and
            read no keys. Only for selectors that sum the layers (`sums_layers`, as consensus has);
            with any other all heads vote. In a small model a handful of heads find what a question
            asks for (docs/evaluation.md); `esa heads` looks for them.
        shortlist: 0 votes over all of M; otherwise only over the best by `sum`, which reads the
            reduced keys instead of every key.
    """

    rule: Literal["softmax", "max"] = "softmax"
    rotate: bool = True
    shortlist: int = 0
    contrast: bool = False
    normalise: Literal["head", "query"] = "head"
    heads: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        for pair in self.heads:
            if len(pair) != 2 or not all(isinstance(i, int) and i >= 0 for i in pair):
                raise ValueError(f"heads holds pairs of a layer and a head, not {pair!r}")
        if self.normalise not in ("head", "query"):
            raise ValueError("normalise is head or query")
        if self.normalise == "query" and self.rule != "max":
            raise ValueError("normalise query needs rule max")
        if self.contrast and self.rule != "softmax":
            raise ValueError("contrast needs rule softmax")
        if self.rule not in ("softmax", "max"):
            raise ValueError("rule is softmax or max")
        if self.shortlist < 0:
            raise ValueError("shortlist must not be negative")

    @property
    def features(self) -> bool:
        return self.shortlist > 0

    @property
    def rotates(self) -> bool:
        return self.rotate

    def for_single_layers(self) -> VoteScore:
        """A layer that selects for itself needs its own heads' votes, so all heads vote."""
        return replace(self, heads=())

    @property
    def last_layer(self) -> int | None:
        """The last layer that votes; None: all do."""
        return max((layer for layer, _ in self.heads), default=None)

    def _for_all(self, normaliser: Tensor) -> Tensor:
        """(H, C), or (1, C) where all heads have the same taken off."""
        return normaliser.amax(dim=0, keepdim=True) if self.normalise == "query" else normaliser

    def _sides(self, step: Step) -> tuple[Tensor, Tensor] | None:
        """The question's own words and those around them, where both are among the queries."""
        own, around = (step.own, step.around) if self.contrast else (None, None)
        if own is None or around is None or not bool(own.any()) or not bool(around.any()):
            return None
        return own, around

    def _normaliser(self, logits: Tensor) -> Tensor:
        return logits.logsumexp(dim=-1) if self.rule == "softmax" else logits.amax(dim=-1)

    def _voters(self, step: Step) -> list[int] | None:
        """Which heads of the step's layer vote; None: all."""
        if not self.heads:
            return None
        voters = [head for layer, head in self.heads if layer == step.layer]
        beyond = [head for head in voters if head >= step.queries.shape[0]]
        if beyond:
            raise PresetError(
                f"score.heads names head {beyond[0]} of layer {step.layer}, and the model has "
                f"{step.queries.shape[0]} heads",
                "the heads were found for another model; set score.heads=[]",
            )
        return voters

    def scores(self, step: Step) -> Tensor:
        voters = self._voters(step)
        if voters == []:
            return torch.zeros(step.middle, device=step.queries.device)
        if 0 < self.shortlist < step.middle:
            return self._from_shortlist(step, voters)
        heads, chunk, _ = step.queries.shape
        heads = heads if voters is None else len(voters)
        first, second = twice(
            lambda: step.head_logits(self.rotate, voters), heads * chunk * step.middle
        )
        total: Tensor | None = None
        join = torch.logaddexp if self.rule == "softmax" else torch.maximum
        for _, logits in first:
            part = self._normaliser(logits)
            total = part if total is None else join(total, part)
        out = torch.empty(step.middle, device=step.queries.device)
        if total is None:
            return out
        sides, total = self._sides(step), self._for_all(total)
        for offset, logits in second():
            out[offset : offset + logits.shape[2]] = vote(logits, total, self.rule, sides)
        return out

    def _from_shortlist(self, step: Step, voters: list[int] | None) -> Tensor:
        chosen = top_k(SumScore(rotate=self.rotate).scores(step), self.shortlist)
        logits = step.head_logits_at(chosen, self.rotate, voters).float()
        out = torch.full((step.middle,), float("-inf"), device=logits.device)
        normaliser = self._for_all(self._normaliser(logits))
        out[chosen] = vote(logits, normaliser, self.rule, self._sides(step))
        return out


@recipe(
    "esa-individual",
    about="as esa, but a token's score is the highest that any head gives it, on whole keys",
    source=f"{PAPER}; its ablation over heads",
    cost=f"F M + {ATTENDED}",
)
def esa_individual(base: Base) -> dict[str, Any]:
    vote = {"name": "vote", "rule": "max", "rotate": False, **PLAIN, "normalise": "query"}
    return {**esa(base), "score": vote}


@recipe(
    "esa-vote",
    about="as esa, but every head votes by its softmax over the logits attention will see",
    source="this project, after the paper",
    cost=f"F M + {ATTENDED}",
)
def esa_vote(base: Base) -> dict[str, Any]:
    vote = {"name": "vote", "rule": "softmax", "rotate": True, **PLAIN}
    return {**esa(base), "selector": {"name": "topk", "proximity": 1}, "score": vote}

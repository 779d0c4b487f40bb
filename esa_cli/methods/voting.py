"""The score `vote`: each head's logits are normalised over M before heads are combined.

A head with large logits then cannot outweigh the few retrieval heads. Recipes: `esa-vote`, and
`esa-individual`, the paper's ablation over heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from esa_cli.attention.parts import Score, check_at_least
from esa_cli.attention.selection import SumScore, top_k, two_passes
from esa_cli.attention.step import Step
from esa_cli.errors import PresetError
from esa_cli.methods.paper import ATTENDED, PAPER, esa
from esa_cli.methods.registry import Base, recipe, register

PLAIN: dict[str, Any] = {"shortlist": 0, "contrast": False, "normalise": "head", "heads": []}


def vote(
    logits: Tensor, normaliser: Tensor, rule: str, sides: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """(H, C, n) logits and each row's normaliser (H, C) -> (n,) scores.

    Args:
        sides: (C,) bool each: queries inside the question span, and those of the prompt around it,
            whose scores are then subtracted.
    """
    shifted = logits - normaliser[..., None]
    heads = shifted.exp_().sum(dim=0) if rule == "softmax" else shifted.amax(dim=0)
    if sides is None:
        return heads.amax(dim=0)
    own, around = sides
    return (heads[own].amax(dim=0) - heads[around].amax(dim=0)).clamp_min_(0)


@register("score", "vote", about="heads normalised over M, maximum over queries")
@dataclass(frozen=True)
class VoteScore(Score):
    """Logits normalised over M by head, then combined over heads, then over the chunk.

    Args:
        rule: `softmax`: sum over heads of each head's attention weight over M;
            `max`: maximum over heads of the logit less that head's maximum.
        normalise: for rule max, the maximum subtracted first: `head`, each head's over M, or
            `query`, that of all heads, which is Eq. (4) with the maximum over heads for the sum of
            Eq. (3) (the paper's individual selection).
        rotate: score the logit of attention at the far distance.
        contrast: where the question span is known, subtract the scores of the prompt around it: a
            token that any prompt attends to (a sink, the document's title) answers no question.
            Ours; measured in benchmarks/NOTES.md. Needs rule softmax.
        heads: (layer, query head) pairs that score; empty: all. Other layers score 0 and read no
            keys. Only for selectors that sum the layers (`sums_layers`, as consensus does); with
            others all heads score. `esa heads` finds a model's retrieval heads.
        shortlist: tokens preselected by `sum` on reduced keys; 0: all of M is scored.
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
                raise ValueError(f"heads must be pairs of a layer and a head, got {pair!r}")
        if self.normalise == "query" and self.rule != "max":
            raise ValueError(f"rule must be max where normalise is query, got {self.rule!r}")
        if self.contrast and self.rule != "softmax":
            raise ValueError(f"rule must be softmax where contrast is on, got {self.rule!r}")
        check_at_least(0, shortlist=self.shortlist)

    @property
    def features(self) -> bool:
        return self.shortlist > 0

    @property
    def rotates(self) -> bool:
        return self.rotate

    def for_single_layers(self) -> VoteScore:
        """All heads score, since each layer selects for itself."""
        return replace(self, heads=())

    @property
    def last_layer(self) -> int | None:
        """The last layer with scoring heads; None: all layers have them."""
        return max((layer for layer, _ in self.heads), default=None)

    def _for_all(self, normaliser: Tensor) -> Tensor:
        """(H, C), or (1, C) where all heads share the maximum."""
        return normaliser.amax(dim=0, keepdim=True) if self.normalise == "query" else normaliser

    def _sides(self, step: Step) -> tuple[Tensor, Tensor] | None:
        """Queries inside the question span and around it, where the chunk has both."""
        own, around = (step.own, step.around) if self.contrast else (None, None)
        if own is None or around is None or not bool(own.any()) or not bool(around.any()):
            return None
        return own, around

    def _normaliser(self, logits: Tensor) -> Tensor:
        return logits.logsumexp(dim=-1) if self.rule == "softmax" else logits.amax(dim=-1)

    def _scoring_heads(self, step: Step) -> list[int] | None:
        """Heads of the step's layer that score; None: all."""
        if not self.heads:
            return None
        chosen_heads = [head for layer, head in self.heads if layer == step.layer]
        beyond = [head for head in chosen_heads if head >= step.queries.shape[0]]
        if beyond:
            raise PresetError(
                f"score.heads must name heads below {step.queries.shape[0]}, got head {beyond[0]} "
                f"of layer {step.layer}",
                "the heads were found for another model; set score.heads=[]",
            )
        return chosen_heads

    def scores(self, step: Step) -> Tensor:
        chosen_heads = self._scoring_heads(step)
        if chosen_heads == []:
            return torch.zeros(step.middle, device=step.queries.device)
        if 0 < self.shortlist < step.middle:
            return self._from_shortlist(step, chosen_heads)
        heads, chunk, _ = step.queries.shape
        heads = heads if chosen_heads is None else len(chosen_heads)
        blocks = partial(step.head_logits, self.rotate, chosen_heads)
        passes = two_passes(blocks, heads * chunk * step.middle)
        total = torch.full((heads, chunk), -torch.inf, device=step.queries.device)
        join = torch.logaddexp if self.rule == "softmax" else torch.maximum
        for _, logits in passes():
            total = join(total, self._normaliser(logits))
        out = torch.empty(step.middle, device=step.queries.device)
        sides, total = self._sides(step), self._for_all(total)
        for offset, logits in passes():
            out[offset : offset + logits.shape[2]] = vote(logits, total, self.rule, sides)
        return out

    def _from_shortlist(self, step: Step, chosen_heads: list[int] | None) -> Tensor:
        chosen = top_k(SumScore(rotate=self.rotate).scores(step), self.shortlist)
        logits = step.head_logits_at(chosen, self.rotate, chosen_heads).float()
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
    about="as esa, but by each head's softmax over the logits of attention, summed over heads",
    source="this project, after the paper",
    cost=f"F M + {ATTENDED}",
)
def esa_vote(base: Base) -> dict[str, Any]:
    vote = {"name": "vote", "rule": "softmax", "rotate": True, **PLAIN}
    return {**esa(base), "selector": {"name": "topk", "proximity": 1}, "score": vote}

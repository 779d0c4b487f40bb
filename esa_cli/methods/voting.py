"""The score `vote`, which normalises each head's logits over the middle tokens.

Since logits are normalised, a head with large logits cannot outweigh the few retrieval heads. The
methods `esa-vote`, `esa-individual` (the paper's ablation) and `tokenselect` use the score.

The method `tokenselect` takes the mean of a chunk's rotated queries, and in each head the softmax
of the dot products with the unrotated keys of middle tokens. The k tokens with the highest sum over
heads are selected. Unlike the published code of TokenSelect, esa caches no selection, and takes
windows, chunk and k from the preset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Literal

import torch
from torch import Tensor

from esa_cli.attention.parts import Score, Selector, require_at_least
from esa_cli.attention.selection import LogitSum, cache_scores_if_few, proximity, top_k
from esa_cli.attention.step import Step
from esa_cli.errors import PresetError
from esa_cli.methods.paper import ATTENDED, PAPER, build_esa_settings
from esa_cli.methods.registry import OWN_SCORE, PresetSizes, recipe, register

PLAIN: dict[str, Any] = {"shortlist": 0, "contrast": False, "normalise": "head", "heads": []}


def combine_heads(
    logits: Tensor, normaliser: Tensor, rule: str, query_masks: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Combines logits (H, C, n), less their normalisers (H, C), into scores (n,). With two
    `query_masks` (C,), scores by the second mask's queries are subtracted."""
    shifted = logits - normaliser[..., None]
    heads = shifted.exp_().sum(dim=0) if rule == "softmax" else shifted.amax(dim=0)
    if query_masks is None:
        return heads.amax(dim=0)
    own, around = query_masks
    return (heads[own].amax(dim=0) - heads[around].amax(dim=0)).clamp_min_(0)


@register("score", "vote", about="heads normalised over M, maximum over queries")
@dataclass(frozen=True)
class VoteScore(Score):
    """A score that normalises each head's logits over middle tokens, and then combines heads: the
    rule `softmax` sums the heads' attention weights over M, and `max` takes the maximum over heads
    of the logit less a maximum over M."""

    rule: Literal["softmax", "max"] = "softmax"
    rotate: bool = True  # whether scores use the logits of attention at the far distance
    shortlist: int = 0  # number of tokens that the score `sum` preselects; 0 stands for all
    # Whether the rule softmax subtracts the scores of the prompt around the question, since a token
    # that any prompt attends to answers no question (esa's addition).
    contrast: bool = False
    # Which maximum the rule max subtracts: each head's, or that of all heads, as in the paper's
    # individual selection.
    normalise: Literal["head", "query"] = "head"
    # Pairs of a layer and a query head that score; empty stands for all. Other layers score 0 and
    # load no keys. With selectors that do not sum the layers, all heads score.
    heads: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        for pair in self.heads:
            if len(pair) != 2 or not all(isinstance(i, int) and i >= 0 for i in pair):
                raise ValueError(f"score.heads must be pairs of a layer and a head, got {pair!r}")
        if self.normalise == "query" and self.rule != "max":
            raise ValueError(f"score.rule must be max if normalise is query, got {self.rule!r}")
        if self.contrast and self.rule != "softmax":
            raise ValueError(f"score.rule must be softmax if contrast is on, got {self.rule!r}")
        require_at_least(0, shortlist=self.shortlist)

    @property
    def features(self) -> bool:
        return self.shortlist > 0

    @property
    def rotates(self) -> bool:
        return self.rotate

    def for_single_layers(self) -> VoteScore:
        return replace(self, heads=())  # each layer selects for itself

    @property
    def last_layer(self) -> int | None:
        return max((layer for layer, _ in self.heads), default=None)

    def scores(self, step: Step) -> Tensor:
        chosen_heads = self._list_scoring_heads(step)
        if chosen_heads == [] or not step.middle:
            return torch.zeros(step.middle, device=step.queries.device)
        masks = self._make_question_and_prompt_masks(step)
        if 0 < self.shortlist < step.middle:
            chosen = top_k(LogitSum(rotate=self.rotate).scores(step), self.shortlist)
            logits = step.head_logits_at(chosen, self.rotate, chosen_heads).float()
            out = torch.full((step.middle,), -torch.inf, device=logits.device)
            total = self._merge_normalisers_of_heads(self._compute_normaliser(logits))
            out[chosen] = combine_heads(logits, total, self.rule, masks)
            return out
        heads, chunk, _ = step.queries.shape
        heads = heads if chosen_heads is None else len(chosen_heads)
        blocks = partial(step.head_logits, self.rotate, chosen_heads)
        passes = cache_scores_if_few(blocks, heads * chunk * step.middle)
        join = torch.logaddexp if self.rule == "softmax" else torch.maximum
        each = (self._compute_normaliser(logits) for _, logits in passes())
        total = self._merge_normalisers_of_heads(reduce(join, each))
        return torch.cat([combine_heads(logits, total, self.rule, masks) for _, logits in passes()])

    def _list_scoring_heads(self, step: Step) -> list[int] | None:
        """Returns the heads that score in the layer of this step; None stands for all heads."""
        if not self.heads:
            return None
        chosen_heads = [head for layer, head in self.heads if layer == step.layer]
        if beyond := [head for head in chosen_heads if head >= step.queries.shape[0]]:
            raise PresetError(
                f"score.heads must name heads below {step.queries.shape[0]}, got head {beyond[0]} "
                f"of layer {step.layer}",
                "score.heads were found for another model; set score.heads=[]",
            )
        return chosen_heads

    def _make_question_and_prompt_masks(self, step: Step) -> tuple[Tensor, Tensor] | None:
        """Returns masks (C,) of the queries inside and around the question, if both exist."""
        own, around = (step.own, step.around) if self.contrast else (None, None)
        if own is None or around is None or not bool(own.any()) or not bool(around.any()):
            return None
        return own, around

    def _compute_normaliser(self, logits: Tensor) -> Tensor:
        """Returns the numbers (H, C) by which logits (H, C, n) are normalised over the n tokens."""
        return logits.logsumexp(dim=-1) if self.rule == "softmax" else logits.amax(dim=-1)

    def _merge_normalisers_of_heads(self, normaliser: Tensor) -> Tensor:
        """Returns normalisers (H, C), or their maximum (1, C) if `normalise` is `query`."""
        return normaliser.amax(dim=0, keepdim=True) if self.normalise == "query" else normaliser


@recipe(
    "esa-individual",
    about="as esa, but a token's score is the highest that any head gives it, on whole keys",
    source=f"{PAPER}; its ablation over heads",
    cost=f"F M + {ATTENDED}",
)
def build_esa_individual_settings(preset: PresetSizes) -> dict[str, Any]:
    vote = {"name": "vote", "rule": "max", "rotate": False, **PLAIN, "normalise": "query"}
    return {**build_esa_settings(preset), "score": vote}


@recipe(
    "esa-vote",
    about="as esa, but by each head's softmax over the logits of attention, summed over heads",
    source="this project, after the paper",
    cost=f"F M + {ATTENDED}",
)
def build_esa_vote_settings(preset: PresetSizes) -> dict[str, Any]:
    vote = {"name": "vote", "rule": "softmax", "rotate": True, **PLAIN}
    topk = {"name": "topk", "proximity": 1}
    return {**build_esa_settings(preset), "selector": topk, "score": vote}


@register("selector", "tokenselect", about="softmax scores of all heads, for the mean query")
@dataclass(frozen=True)
class TokenSelectSelector(Selector):
    """Selects tokens by softmax scores, summed over heads and max-pooled over `pool` tokens."""

    pool: int = 1

    def __post_init__(self) -> None:
        if self.pool < 1 or self.pool % 2 == 0:
            raise ValueError(f"pool must be odd and at least 1, got {self.pool}")

    def select(self, step: Step, budget: int) -> Tensor:
        if budget >= step.middle:
            return torch.arange(step.middle, device=step.queries.device)
        chunk = step.queries.shape[1]
        at = torch.arange(step.local, step.local + chunk, device=step.queries.device)
        scale = step.rope.compute_rotation_scale(step.queries)
        rotated = step.rope.rotate(step.queries, at) * scale
        mean = rotated.float().mean(dim=1, keepdim=True).to(step.queries.dtype)
        votes = VoteScore(rotate=False).scores(replace(step, queries=mean, scale=1.0))
        return top_k(proximity(votes, self.pool // 2), budget)


@recipe(
    "tokenselect",
    about="tokens by softmax scores of all heads for the chunk's mean query; re-numbered in order",
    source="Wu et al., TokenSelect: Efficient Long-Context Inference and Length Extrapolation for "
    "LLMs via Dynamic Token-Level KV Cache Selection, arXiv 2411.02886",
    cost=f"F M + {ATTENDED}",
)
def build_tokenselect_settings(preset: PresetSizes) -> dict[str, Any]:
    parts = {"selector": {"name": "tokenselect", "pool": 1}, "position": {"name": "contiguous"}}
    return {**parts, **OWN_SCORE, "reading": "select"}

"""InfiniRetri: whole sentences by the last layer's attention from the question.

    a_h(c, m) = softmax over m of the logits of head h of the last layer
    s(m)      = sum over heads h, the question's tokens c and |phrase| neighbours j of a_h(c, j)
    choice      the whole sentences of the `tokens` best of s

Source: Ye et al., "Infinite Retrieval: Attention Enhanced LLMs in Long-Context Processing", arXiv
2502.12962, and its published package. As published: the last layer alone, the sum over heads and
over the question's tokens, phrases of 8 tokens (4 before, the token, 3 behind), 300 tokens, whole
sentences, no training. Not as published:
- There the text passes the model in pieces of 1,024 tokens, each with the sentences kept so far and
  the question, and attention is within that piece. Here the question passes once after the stored
  document, and the softmax is over all of M, at the far distance.
- There the sentences are read again as text. Here their stored rows are attended to, at
  consecutive positions, by the default's prompt.
- Sentences are taken by their best token until the budget is used; there all of the 300 tokens.
- The package weights each of the question's tokens by its attention to the others, squared, which
  the paper does not have; here all count the same.
- Sentences end at . ! ? before a space, at their Chinese marks, and at empty lines; the package
  also joins pieces of 8 characters or less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.parts import Score, check_at_least
from esa_cli.attention.scoring import twice
from esa_cli.attention.step import Step
from esa_cli.methods.consensus import esa_consensus
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.part_registry import register
from esa_cli.methods.recipes import Base, recipe


def phrase_sums(scores: Tensor, phrase: int) -> Tensor:
    """(M,): sums over `phrase` tokens: half of them before each token, itself, the rest after."""
    before = phrase // 2
    padded = functional.pad(scores, (before, phrase - 1 - before))
    return padded.unfold(0, phrase, 1).sum(dim=1) if scores.shape[0] else scores


@register(
    "score",
    "infiniretri",
    about="the last layer's attention, summed over phrases",
    source="Ye et al., InfiniRetri, arXiv 2502.12962",
    cost="F M in the last layer, nothing in others",
)
@dataclass(frozen=True)
class PhraseScore(Score):
    """Attention weights over M of all heads and question tokens, summed over phrases.

    Args:
        phrase: tokens of a phrase.
        layers: `last`: other layers score 0, for selectors that sum the layers; `all`: every layer
            scores, as other selectors need.
    """

    phrase: int = 8
    layers: Literal["last", "all"] = "last"

    def __post_init__(self) -> None:
        check_at_least(1, phrase=self.phrase)
        if self.layers not in ("last", "all"):
            raise ValueError(f"layers must be last or all, got {self.layers!r}")

    @property
    def rotates(self) -> bool:
        return True

    def for_single_layers(self) -> PhraseScore:
        return replace(self, layers="all")

    def scores(self, step: Step) -> Tensor:
        out = torch.zeros(step.middle, device=step.queries.device)
        if (self.layers == "last" and not step.is_last) or not step.middle:
            return out
        own = step.own
        if own is not None and bool(own.any()):
            step = replace(step, queries=step.queries[:, own])
        heads, chunk, _ = step.queries.shape
        first, second = twice(lambda: step.head_logits(True), heads * chunk * step.middle)
        total = torch.full((heads, chunk), float("-inf"), device=out.device)
        for _, logits in first:
            total = torch.logaddexp(total, logits.logsumexp(dim=-1))
        for offset, logits in second():
            weights = (logits - total[..., None]).exp().sum(dim=(0, 1))
            out[offset : offset + logits.shape[2]] = weights
        return phrase_sums(out, self.phrase)


@recipe(
    "infiniretri",
    about="whole sentences by the last layer's attention, as InfiniRetri chooses them",
    source="Ye et al., Infinite Retrieval: Attention Enhanced LLMs in Long-Context Processing, "
    "arXiv 2502.12962; their stored rows in place of a second reading",
    cost=f"F M in the last layer for a question, 0 for an answer's token, + {ATTENDED}",
)
def infiniretri(base: Base) -> dict[str, Any]:
    return {
        **esa_consensus(base),
        "selector": {"name": "sentences", "tokens": 300, "rounds": 2, "answer": "keep"},
        "score": {"name": "infiniretri", "phrase": 8, "layers": "last"},
    }

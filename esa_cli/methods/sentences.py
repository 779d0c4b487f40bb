"""Methods that select whole sentences: InfiniRetri and ReContext.

InfiniRetri: whole sentences by the last layer's attention from the question.

    a_h(c, m) = softmax over m of the logits of head h of the last layer
    s(m)      = sum over heads h, the question's tokens c and |phrase| neighbours j of a_h(c, j)
    choice      the whole sentences of the `tokens` best of s

Source: Ye et al., "Infinite Retrieval: Attention Enhanced LLMs in Long-Context Processing", arXiv
2502.12962, and its published package. As published: the last layer alone, the sum over heads and
over the question's tokens, phrases of 8 tokens (4 before, the token, 3 after), 300 tokens, whole
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

ReContext: whole sentences of the tokens that retrieval heads attend to, before the question.

Source: "ReContext: Recursive Evidence Replay as an LLM Harness for Long-Context Reasoning", arXiv
2607.02509, and its published code. As published: retrieval heads score, whole sentences of the 8 to
32 best tokens (here 32), placed right before the question, no training. Not as published:
- There the sentences are inserted as text and the whole document stays in view. Here their stored
  rows are attended to at consecutive positions right before the question, and nothing else is: what
  is compared is the choice of sentences.
- There 16 heads, found on question/passage pairs, are averaged over the last tokens of the prompt
  with a decay of 0.75. Here the preset's `score.heads` vote (all heads where it has none): summed
  over heads, the maximum over the tokens of question and prompt.
- There several rounds may each add sentences; here one.
- Sentences end as above; there by a trained splitter where one is installed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.parts import Score, check_at_least
from esa_cli.attention.selection import two_passes
from esa_cli.attention.step import Step
from esa_cli.methods.consensus import LayerSums, esa_consensus
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.registry import Base, recipe, register

END = re.compile(r"(?<![.!?])[.!?]+[\"'”’)\]]*(?=\s)|[。！？]+[\"”’」』]*|\n\s*\n")
"""Where a sentence ends: at its mark, or before an empty line."""
WITHOUT_TEXT = 32
"""Tokens that count as a sentence where the text is not known (stock `generate`)."""


def sentence_starts(pieces: Sequence[str]) -> Tensor:
    """Ascending positions of the first tokens of sentences, (S,); the last is the text's end.

    Args:
        pieces: the text of each token. A token on both sides of an end belongs to the earlier one.
    """
    ends = [found.end() for found in END.finditer("".join(pieces))]
    starts = numpy.array([0, *accumulate(map(len, pieces))])
    at = numpy.searchsorted(starts, ends)
    return torch.from_numpy(numpy.unique([0, *at, len(pieces)])).long()


@register("selector", "sentences", about="whole sentences of the best tokens of all layers")
@dataclass(frozen=True)
class WholeSentences(LayerSums):
    """Whole sentences of the `tokens` best tokens by the sum of the layers' scores.

    Sentences are taken in the order of their best tokens, until the budget is used; of the last,
    what fits around its best token. Tokens with the lowest score of all choose nothing.
    """

    rounds: Literal[1, 2] = 2
    tokens: int = 300

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, tokens=self.tokens)

    def best(self, scores: Tensor, step: Step, budget: int) -> Tensor:
        bounds = self._bounds(step)
        ranked = torch.argsort(scores, descending=True, stable=True)[: self.tokens].cpu()
        ranked = ranked[(scores > scores.min()).cpu()[ranked]]
        taken, left = torch.zeros(scores.shape[0], dtype=torch.bool), budget
        for token, after in zip(
            ranked.tolist(), torch.searchsorted(bounds, ranked, right=True).tolist(), strict=True
        ):
            first, last = int(bounds[after - 1]), int(bounds[after])
            if taken[token] or not left:
                continue
            if last - first > left:
                first = min(max(first, token - left // 2), last - left)
                last = first + left
            taken[first:last] = True
            left -= last - first
        return torch.nonzero(taken)[:, 0].to(scores.device)

    def _bounds(self, step: Step) -> Tensor:
        """Ascending offsets into M of the borders of sentences, 0 and M included."""
        if step.text is None:
            inner = torch.arange(step.low, step.high, WITHOUT_TEXT)
        else:
            text = step.text
            inner = text.once("sentences", lambda: sentence_starts(text.pieces()))
        inside = inner[(inner > step.low) & (inner < step.high)] - step.low
        return torch.cat((torch.tensor([0]), inside, torch.tensor([step.middle])))


def phrase_sums(scores: Tensor, phrase: int) -> Tensor:
    """(M,): sums over `phrase` tokens: half of them before each token, itself, the rest after."""
    before = phrase // 2
    padded = functional.pad(scores, (before, phrase - 1 - before))
    return padded.unfold(0, phrase, 1).sum(dim=1) if scores.shape[0] else scores


@register("score", "infiniretri", about="the last layer's attention, summed over phrases")
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
        passes = two_passes(partial(step.head_logits, True), heads * chunk * step.middle)
        total = torch.full((heads, chunk), float("-inf"), device=out.device)
        for _, logits in passes():
            total = torch.logaddexp(total, logits.logsumexp(dim=-1))
        for offset, logits in passes():
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


@recipe(
    "recontext",
    about="whole sentences of the retrieval heads' 32 best tokens, as ReContext chooses them",
    source="ReContext: Recursive Evidence Replay as an LLM Harness for Long-Context Reasoning, "
    "arXiv 2607.02509; stored rows in place of replayed text",
    cost=f"F M for a question, 0 for an answer's token, + {ATTENDED}",
)
def recontext(base: Base) -> dict[str, Any]:
    whole = esa_consensus(base)
    score = {key: value for key, value in whole["score"].items() if key != "heads"}
    return {
        **whole,
        "selector": {"name": "sentences", "tokens": 32, "rounds": 2, "answer": "keep"},
        "score": {**score, "contrast": False},
    }

"""The methods InfiniRetri and ReContext, which select whole sentences.

InfiniRetri (Ye et al., arXiv 2502.12962) sums the last layer's attention weights over heads, the
question's tokens and the tokens of a phrase, and selects the sentences of the best tokens.
InfiniRetri as published has phrases of 8 tokens, and selects the sentences of the best 300 tokens.
InfiniRetri as published passes the text through the model in pieces, together with the sentences
selected so far; in esa the question passes once after the stored document.

ReContext (arXiv 2607.02509) selects the sentences of the 32 tokens that retrieval heads attend to.
ReContext as published inserts the sentences as text in several rounds; esa attends to the KV cache
of the sentences right before the question."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate
from typing import Any, Literal

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.parts import Score, require_at_least
from esa_cli.attention.selection import cache_scores_if_few
from esa_cli.attention.step import Step
from esa_cli.methods.consensus import LayerSumSelector, build_esa_consensus_settings
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.registry import PresetSizes, recipe, register

SENTENCE_END = re.compile(r"(?<![.!?])[.!?]+[\"'”’)\]]*(?=\s)|[。！？]+[\"”’」』]*|\n\s*\n")
TOKENS_WITHOUT_TEXT = 32
"""The number of tokens that count as a sentence if the text is unknown (stock `generate`)."""


def find_sentence_starts(token_texts: Sequence[str]) -> Tensor:
    """Returns the ascending positions of the first tokens of sentences, then the number of tokens.
    A token that spans a sentence's end belongs to the earlier sentence."""
    ends = [found.end() for found in SENTENCE_END.finditer("".join(token_texts))]
    starts = numpy.array([0, *accumulate(map(len, token_texts))])
    at = numpy.searchsorted(starts, ends)
    return torch.from_numpy(numpy.unique([0, *at, len(token_texts)])).long()


@register("selector", "sentences", about="whole sentences of the best tokens of all layers")
@dataclass(frozen=True)
class WholeSentenceSelector(LayerSumSelector):
    """Selects the whole sentences of the `tokens` best tokens by the sum of the layers' scores.

    Sentences are selected in the order of their best tokens until the budget is used; the last
    sentence may be selected in part. A token with the lowest score does not select its sentence."""

    rounds: Literal[1, 2] = 2
    tokens: int = 300

    def __post_init__(self) -> None:
        require_at_least(1, tokens=self.tokens)

    def select_best_tokens(self, scores: Tensor, step: Step, budget: int) -> Tensor:
        bounds = self._find_sentence_bounds(step)
        ranked = torch.argsort(scores, descending=True, stable=True)[: self.tokens].cpu()
        ranked = ranked[(scores > scores.min()).cpu()[ranked]]
        taken, left = torch.zeros(scores.shape[0], dtype=torch.bool), budget
        ends = torch.searchsorted(bounds, ranked, right=True).tolist()
        for token, after in zip(ranked.tolist(), ends, strict=True):
            first, last = int(bounds[after - 1]), int(bounds[after])
            if taken[token] or not left:
                continue
            if last - first > left:
                first = min(max(first, token - left // 2), last - left)
                last = first + left
            taken[first:last] = True
            left -= last - first
        return torch.nonzero(taken)[:, 0].to(scores.device)

    def _find_sentence_bounds(self, step: Step) -> Tensor:
        """Returns ascending offsets into M at which sentences begin or end, including 0 and M."""
        if step.text is None:
            inner = torch.arange(step.low, step.high, TOKENS_WITHOUT_TEXT)
        else:
            text = step.text
            inner = text.once("sentences", lambda: find_sentence_starts(text.pieces()))
        inside = inner[(inner > step.low) & (inner < step.high)] - step.low
        return torch.cat((torch.tensor([0]), inside, torch.tensor([step.middle])))


def sum_scores_over_phrases(scores: Tensor, phrase_length: int) -> Tensor:
    """Sums scores (M,) over `phrase_length` tokens around each token, half before the token."""
    before = phrase_length // 2
    padded = functional.pad(scores, (before, phrase_length - 1 - before))
    return padded.unfold(0, phrase_length, 1).sum(dim=1) if scores.shape[0] else scores


@register("score", "infiniretri", about="the last layer's attention, summed over phrases")
@dataclass(frozen=True)
class PhraseAttentionScore(Score):
    """A score that sums attention weights over all heads, the question's tokens and short phrases.
    Selectors that sum layers use the last layer alone."""

    phrase: int = 8  # number of tokens in a phrase
    layers: Literal["last", "all"] = "last"
    rotates = True

    def __post_init__(self) -> None:
        require_at_least(1, phrase=self.phrase)

    def for_single_layers(self) -> PhraseAttentionScore:
        return replace(self, layers="all")

    def scores(self, step: Step) -> Tensor:
        out = torch.zeros(step.middle, device=step.queries.device)
        last_layer = max(step.layers, default=0)
        if (self.layers == "last" and step.layer < last_layer) or not step.middle:
            return out
        own = step.own
        if own is not None and bool(own.any()):
            step = replace(step, queries=step.queries[:, own])
        heads, chunk, _ = step.queries.shape
        passes = cache_scores_if_few(partial(step.head_logits, True), heads * chunk * step.middle)
        total = reduce(torch.logaddexp, (logits.logsumexp(dim=-1) for _, logits in passes()))
        weights = [(logits - total[..., None]).exp().sum(dim=(0, 1)) for _, logits in passes()]
        return sum_scores_over_phrases(torch.cat(weights), self.phrase)


@recipe(
    "infiniretri",
    about="whole sentences by the last layer's attention, as InfiniRetri chooses them",
    source="Ye et al., Infinite Retrieval: Attention Enhanced LLMs in Long-Context Processing, "
    "arXiv 2502.12962; the stored KV cache in place of a second prefill",
    cost=f"F M in the last layer for a question, 0 for an answer's token, + {ATTENDED}",
)
def build_infiniretri_settings(preset: PresetSizes) -> dict[str, Any]:
    selector = {"name": "sentences", "tokens": 300, "rounds": 2}
    score = {"name": "infiniretri", "phrase": 8, "layers": "last"}
    return {**build_esa_consensus_settings(preset), "selector": selector, "score": score}


@recipe(
    "recontext",
    about="whole sentences of the retrieval heads' 32 best tokens, as ReContext chooses them",
    source="ReContext: Recursive Evidence Replay as an LLM Harness for Long-Context Reasoning, "
    "arXiv 2607.02509; the stored KV cache in place of replayed text",
    cost=f"F M for a question, 0 for an answer's token, + {ATTENDED}",
)
def build_recontext_settings(preset: PresetSizes) -> dict[str, Any]:
    whole = build_esa_consensus_settings(preset)
    score = {key: value for key, value in whole["score"].items() if key != "heads"}
    return {
        **whole,
        "selector": {"name": "sentences", "tokens": 32, "rounds": 2},
        "score": {**score, "contrast": False},
    }

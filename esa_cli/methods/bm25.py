"""The score `bm25`, which finds windows of tokens by the question's words, and the method `bm25`.

A token's score is the highest BM25 score (Robertson et al., Okapi at TREC-3, 1994) of a window with
the token for the question's words. The whole text is cut into windows of `window` tokens, one of
which begins every half window. The score `bm25` uses neither queries nor keys. The method `bm25`
has the windows, prompt and positions of `esa-consensus`, so that a comparison of both methods
compares only how windows are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

import numpy
import torch
from torch import Tensor
from torch.nn import functional

from esa_cli.attention.parts import Score
from esa_cli.attention.step import Step
from esa_cli.methods.consensus import build_esa_consensus_settings
from esa_cli.methods.paper import ATTENDED
from esa_cli.methods.registry import PresetSizes, recipe, register
from esa_cli.system.text import (
    Bm25Index,
    detect_language,
    find_question_words,
    locate_content_words,
)


def make_token_scorer(pieces: Sequence[str], window: int) -> Callable[[str], Tensor]:
    """Returns a function that scores the tokens `pieces` by the words of their windows."""
    tokens, half = len(pieces), window // 2
    vocabulary: dict[str, int] = {}
    halves: list[list[int]] = [[] for _ in range(-(-tokens // half))]
    starts = numpy.array([0, *accumulate(map(len, pieces))])
    text = "".join(pieces)
    language = detect_language(text)
    words = list(locate_content_words(text, language))
    # The last token that starts there or before: tokens without text start where the next does.
    at = numpy.searchsorted(starts[:-1], [first for first, _, _ in words], side="right") - 1
    for token, (_, _, word) in zip(at.tolist(), words, strict=True):
        halves[token // half].append(vocabulary.setdefault(word, len(vocabulary)))
    # Window w is halves w and w + 1; a text of one half is one window.
    texts = [first + second for first, second in pairwise(halves)] or halves
    index = Bm25Index(texts, len(vocabulary))

    def score_tokens(question: str) -> Tensor:
        stems = sum(find_question_words(question, [language]), ())
        windows = index.compute_scores([vocabulary[stem] for stem in stems if stem in vocabulary])
        if tokens > half:  # a half is in the windows that begin with it and before it
            padded = (functional.pad(windows, size) for size in ((0, 1), (1, 0)))
            windows = torch.maximum(*padded)
        return windows.repeat_interleave(half)[:tokens]

    return score_tokens


@register("score", "bm25", about="windows of tokens by the question's words")
@dataclass(frozen=True)
class Bm25Score(Score):
    """A score that gives each token the highest BM25 score of a window with the token for the
    question's words, or 0 if the text is unknown. Selectors that sum layers use layer 0 alone."""

    window: int = 64  # tokens, an even number
    layers: Literal["first", "all"] = "first"

    def __post_init__(self) -> None:
        if self.window < 2 or self.window % 2:
            raise ValueError(f"window must be even and at least 2, got {self.window}")

    @property
    def last_layer(self) -> int | None:
        return 0 if self.layers == "first" else None

    def for_single_layers(self) -> Bm25Score:
        return replace(self, layers="all")

    def scores(self, step: Step) -> Tensor:
        out = torch.zeros(step.middle, device=step.queries.device)
        text, first_layer = step.text, min(step.layers, default=0)
        if text is None or (self.layers == "first" and step.layer > first_layer):
            return out
        key = "bm25", self.window
        score_tokens = text.once(key, lambda: make_token_scorer(text.pieces(), self.window))
        scores = score_tokens(text.question)[step.low : step.high]
        out[: scores.shape[0]] = scores.to(out)
        return out


@recipe(
    "bm25",
    about="windows of the text by the question's words alone (BM25), positioned as esa-consensus",
    source="this project: Robertson et al. 1994, Okapi at TREC-3, in place of attention scores",
    cost=f"M once a question, + {ATTENDED}",
)
def build_bm25_settings(preset: PresetSizes) -> dict[str, Any]:
    score = {"name": "bm25", "window": 64, "layers": "first"}
    return {**build_esa_consensus_settings(preset), "score": score}

"""The selector `sentences`: the whole sentences of the tokens with the highest scores.

InfiniRetri and ReContext choose what is read again this way; see `infiniretri` and `recontext`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy
import torch
from torch import Tensor

from esa_cli.attention.parts import check_at_least
from esa_cli.attention.step import Step
from esa_cli.methods.consensus import LayerSums
from esa_cli.methods.part_registry import register

END = re.compile(r"(?<![.!?])[.!?]+[\"'”’)\]]*(?=\s)|[。！？]+[\"”’」』]*|\n\s*\n")
"""Where a sentence ends: at its mark, or before an empty line."""
WITHOUT_TEXT = 32
"""Tokens that count as a sentence where the text is not known (stock `generate`)."""


def sentence_starts(pieces: Sequence[str]) -> Tensor:
    """Ascending positions of the first tokens of sentences, (S,); the last is behind the text.

    Args:
        pieces: the text of each token. A token on both sides of an end belongs to the earlier one.
    """
    ends = [found.end() for found in END.finditer("".join(pieces))]
    starts = numpy.array([0, *accumulate(map(len, pieces))])
    at = numpy.searchsorted(starts, ends)
    return torch.from_numpy(numpy.unique([0, *at, len(pieces)])).long()


@register(
    "selector",
    "sentences",
    about="whole sentences of the best tokens of all layers",
    source="as Ye et al., InfiniRetri, arXiv 2502.12962, chooses what is kept",
    cost="the score's, and M; a question passes the model twice",
)
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

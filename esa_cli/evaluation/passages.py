"""From weights on tokens to passages of text: the best few stretches, as characters.

Knows nothing about layers, methods or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

WIDTH = 48
"""Tokens of a passage before it is widened to whole sentences."""
ENDS = ".!?\n"
LONGEST = 600
"""Characters a passage is widened to at most."""


@dataclass(frozen=True)
class Passage:
    """Characters [start, end) of the text, and the share of all weight that lies on them."""

    start: int
    end: int
    weight: float

    def text(self, document: str) -> str:
        return document[self.start : self.end]


def best(
    weights: Tensor, spans: Sequence[tuple[int, int]], document: str, count: int
) -> list[Passage]:
    """The `count` passages with the most weight, heaviest first, none overlapping.

    Args:
        weights: (n,) of the document's tokens, not negative.
        spans: each token's first character and the one behind its last.
    """
    left = weights.double().clone()
    total = float(left.sum())
    places = torch.tensor(spans).reshape(-1, 2)
    out: list[Passage] = []
    while len(out) < count and float(left.sum()) > 0:
        heat = functional.avg_pool1d(left[None], WIDTH, stride=1, padding=WIDTH // 2)[0]
        middle = int(heat[: left.shape[0]].argmax())
        low = max(0, middle - WIDTH // 2)
        held = torch.nonzero(left[low : middle + WIDTH // 2])[:, 0] + low
        first, last = int(places[held[0], 0]), int(places[held[-1], 1])
        start, end = widened(document, first, last, [(one.start, one.end) for one in out])
        inside = (places[:, 0] < end) & (places[:, 1] > start)
        inside[held] = True
        out.append(Passage(start, end, float(left[inside].sum()) / total))
        left[inside] = 0
    return sorted(out, key=lambda passage: -passage.weight)


def widened(
    document: str, start: int, end: int, taken: Sequence[tuple[int, int]] = ()
) -> tuple[int, int]:
    """[start, end) out to the ends of its sentences, not into what is taken."""
    floor = max([0, start - LONGEST // 2, *(e for _, e in taken if e <= start)])
    ceiling = min([len(document), end + LONGEST // 2, *(s for s, _ in taken if s >= end)])
    while start > floor and document[start - 1] not in ENDS:
        start -= 1
    while end < ceiling and document[end - 1] not in ENDS:
        end += 1
    while start < end and document[start].isspace():
        start += 1
    while end > start and document[end - 1].isspace():
        end -= 1
    return start, end

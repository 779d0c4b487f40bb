"""Reads found passages with a question, and orders them by how likely they answer it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from esa_cli.qa.finding.passages_apart import FoundPassage
from esa_cli.qa.reading.passage_reader import PassageReader


def read_passages(
    reader: PassageReader,
    question: str,
    found: Sequence[FoundPassage],
    texts: Sequence[str],
    *,
    prior: float,
    spans: int,
) -> list[FoundPassage]:
    """The passages as read, by score, but that of the best span first. A span's rank is its
    log-probability plus its passage's score; the search for one that cannot be the best ends early.

    Args:
        texts: of the passages. prior: weight of their scores in finding. spans: passages with the
            highest scores whose most probable span is looked for.
    """
    with reader.reading():
        reading = reader.read(question, texts)
        passages = [
            replace(one, score=odds + prior * one.score, log_odds=odds)
            for one, odds in zip(found, reading.log_odds, strict=True)
        ]
        order = sorted(range(len(found)), key=lambda n: -passages[n].score)
        best, highest = -1, -math.inf
        for n in order[:spans]:
            if span := reading.span(n, highest - passages[n].score):
                passages[n] = replace(passages[n], span=span)
                best, highest = n, span.log_probability + passages[n].score
    return [passages[n] for n in sorted(order, key=lambda n: n != best)]

"""The most probable span of a passage as the answer: beam search over its words.

A language model's free answer to a question is often no quotation at all; among the spans of the
passage its probabilities are good (exact-extract, arXiv 2108.05857). Each hypothesis is the text of
the passage from some word on, and ends with a line end where a word ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

BEAMS = 3
LONGEST = 32
"""Tokens of a span."""
CANDIDATES = 256
"""Most probable tokens of a step that are looked at."""
WORD_START = re.compile(r"(?<![\w'’-])[\w$£€]")


class NextTokens(Protocol):
    """Logits behind continuations of one prompt; see `models.prompt_batch.Continuation`."""

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor: ...


@dataclass(frozen=True)
class FoundSpan:
    """Characters [start, end) of the passage, and their log-probability as the answer."""

    start: int
    end: int
    log_probability: float


@dataclass(frozen=True)
class _Hypothesis:
    """Text of the passage from each of `starts` on, as generated so far."""

    log_probability: float
    text: str
    starts: tuple[int, ...]


def most_probable_span(
    passage: str,
    first: Tensor,
    continuation: NextTokens,
    piece: Callable[[int], str],
    line_end: int,
) -> FoundSpan | None:
    """The span that the model answers with the highest probability, or None if none is likely.

    Args:
        passage: in one line, as the model read it. first: logits (vocabulary,) of the answer's
            first token. piece: the text of a token. line_end: the token that ends an answer.
    """
    starts = tuple(found.start() for found in WORD_START.finditer(passage))
    live = [_Hypothesis(0.0, "", starts)]
    logits, best = first[None], None
    for _ in range(LONGEST):
        grown: list[tuple[float, int, int, _Hypothesis]] = []
        for row, (hypothesis, line) in enumerate(zip(live, logits.log_softmax(-1), strict=True)):
            ended = _ended(passage, hypothesis, float(line[line_end]))
            if ended and (best is None or ended.log_probability > best.log_probability):
                best = ended
            grown += _extensions(passage, hypothesis, line, piece, row)
        grown.sort(key=lambda entry: -entry[0])
        least = best.log_probability if best else -torch.inf
        grown = [entry for entry in grown[:BEAMS] if entry[0] > least]
        if not grown:
            break
        live = [entry[3] for entry in grown]
        logits = continuation.append([entry[1] for entry in grown], [entry[2] for entry in grown])
    return best


def _extensions(
    passage: str, hypothesis: _Hypothesis, line: Tensor, piece: Callable[[int], str], row: int
) -> list[tuple[float, int, int, _Hypothesis]]:
    """(log-probability, row, token, hypothesis) of the likely tokens that go on in the passage."""
    out = []
    values, tokens = line.topk(min(CANDIDATES, line.shape[0]))
    for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
        text = hypothesis.text + piece(token)
        if not hypothesis.text:
            text = text.removeprefix(" ")  # the space between `Answer:` and the answer
        if not text or text == hypothesis.text:
            continue
        starts = tuple(at for at in hypothesis.starts if passage.startswith(text, at))
        if starts:
            total = hypothesis.log_probability + value
            out.append((total, row, token, _Hypothesis(total, text, starts)))
            if len(out) == BEAMS:
                break
    return out


def _ended(passage: str, hypothesis: _Hypothesis, line_end: float) -> FoundSpan | None:
    text = hypothesis.text.rstrip()
    for start in hypothesis.starts if text else ():
        end = start + len(text)
        if end == len(passage) or not (passage[end - 1].isalnum() and passage[end].isalnum()):
            return FoundSpan(start, end, hypothesis.log_probability + line_end)
    return None

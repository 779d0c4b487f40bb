"""The most probable span of a passage as the answer: beam search over its words.

A language model's free answer to a question is often no quotation at all; among the spans of the
passage its probabilities are good (exact-extract, arXiv 2108.05857). Each hypothesis is the text of
the passage from some word on, and ends with a line end where a word ends. Texts are compared as
UTF-8: a token may end within a character. What belongs to the first or last word of a span is part
of it: `-5`, `¥500`, `--keep`, `/etc`, `5%`, `1,306`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from esa_cli.qa.finding.passages_apart import Span
from esa_cli.qa.reading.whole_words import WholeWords

BEAMS = 3
LONGEST = 32
"""Tokens of a span."""
CANDIDATES = 256
"""Most probable tokens of a step that are looked at."""
PATIENCE = 3
"""So many times `LONGEST` in passages with a script without spaces, whose characters take several
tokens each."""


class NextTokens(Protocol):
    """Logits behind continuations of one prompt; see `text_forward.Continuation`."""

    def append(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor: ...


@dataclass(frozen=True)
class _Hypothesis:
    """Bytes of the passage from each of `starts` on, as generated so far.

    `spaced`: behind the space between `Answer:` and the answer, which may be a token of its own.
    """

    log_probability: float
    text: bytes
    starts: tuple[int, ...]
    spaced: bool = False


class _EncodedPassage:
    """A passage as UTF-8, with the places where a span may start and end."""

    def __init__(self, text: str) -> None:
        self.raw, self._words = text.encode(), WholeWords(text)
        self._at = {0: 0}
        """Place in `raw` -> place in `text`, of whole characters."""
        place = 0
        for number, character in enumerate(text, 1):
            place += len(character.encode())
            self._at[place] = number
        self.starts = tuple(raw for raw, own in self._at.items() if self._words.starts(own))
        self.longest = LONGEST * (PATIENCE if self._words.spaceless else 1)

    def span(self, start: int, end: int, wanted: bool) -> tuple[int, int] | None:
        """Characters of the bytes [start, end) with what belongs to their words; None where they
        end within a word.

        Args:
            wanted: whether the model wants to end here more than to go on.
        """
        last = self._at.get(end)
        if last is None or not self._words.ends(last, wanted):
            return None
        return self._words.whole(self._at[start], last)


def most_probable_span(
    passage: str,
    first: Tensor,
    continuation: NextTokens,
    piece: Callable[[int], bytes],
    line_end: int,
    above: float = -math.inf,
) -> Span | None:
    """The span that the model answers with the highest probability, or None if none is likely.

    Args:
        passage: in one line, as the model read it. first: logits (vocabulary,) of the answer's
            first token. piece: the bytes of a token. line_end: the token that ends an answer.
        above: the least log-probability that is looked for. A hypothesis only gets less likely as
            it grows, so the search ends where all are below.
    """
    text = _EncodedPassage(passage)
    live = [_Hypothesis(0.0, b"", text.starts)]
    logits, best = first[None], None
    for _ in range(text.longest):
        grown: list[tuple[float, int, int, _Hypothesis]] = []
        for row, (hypothesis, line) in enumerate(zip(live, logits.log_softmax(-1), strict=True)):
            longer = _extensions(text.raw, hypothesis, line, piece, row)
            goes_on = longer[0][0] - hypothesis.log_probability if longer else -math.inf
            ended = _ended(text, hypothesis, float(line[line_end]), goes_on)
            if ended and ended.log_probability > above:
                best, above = ended, ended.log_probability
            grown += longer
        grown.sort(key=lambda entry: -entry[0])
        grown = [entry for entry in grown[:BEAMS] if entry[0] > above]
        if not grown:
            break
        live = [entry[3] for entry in grown]
        logits = continuation.append([entry[1] for entry in grown], [entry[2] for entry in grown])
    return best


def _extensions(
    passage: bytes, hypothesis: _Hypothesis, line: Tensor, piece: Callable[[int], bytes], row: int
) -> list[tuple[float, int, int, _Hypothesis]]:
    """(log-probability, row, token, hypothesis) of the likely tokens that go on in the passage."""
    out = []
    values, tokens = line.topk(min(CANDIDATES, line.shape[0]))
    for value, token in zip(values.tolist(), tokens.tolist(), strict=True):
        more, spaced = piece(token), hypothesis.spaced
        if not more:
            continue
        if not hypothesis.text and not spaced and more.startswith(b" "):
            more, spaced = more[1:], True
        text = hypothesis.text + more
        if text not in passage:  # most are not, and one look costs less than one for each start
            continue
        starts = tuple([at for at in hypothesis.starts if passage.startswith(text, at)])
        if starts:
            total = hypothesis.log_probability + value
            out.append((total, row, token, _Hypothesis(total, text, starts, spaced)))
            if len(out) == BEAMS:
                break
    return out


def _ended(
    passage: _EncodedPassage, hypothesis: _Hypothesis, line_end: float, goes_on: float
) -> Span | None:
    """The span that ends with a hypothesis, if a word does.

    Args:
        line_end, goes_on: log-probabilities of the line end, and of the likeliest token that goes
            on in the passage.
    """
    text = hypothesis.text.rstrip()
    for start in hypothesis.starts if text else ():
        if found := passage.span(start, start + len(text), line_end >= goes_on):
            return Span(*found, hypothesis.log_probability + line_end)
    return None

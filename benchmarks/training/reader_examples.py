"""Examples for the reader: one question with one passage, and the answer or that it has none.

Right passages are windows of whole sentences around the answer, of random length. Passages without
the answer are those of questions that the text does not tell, right passages of a question about
another name, and the windows that BM25, or a finder, returns for a question although they do not
contain its answer.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from question_pairs import AnswerPair, Span, TrainingText
from swapped_questions import frequent_names, swapped_question

from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.qa.finding.words import LexicalIndex, find_sentence_spans
from esa_cli.qa.reading.span import collapse_spaces

WORDS = (25, 105)
"""Fewest and most words of a window around an answer; it ends with the sentence."""
ABSENT_WORDS = (50, 110)
"""Of a window around the passage of a question that the text does not answer."""
LONGEST = 1000
"""Characters of a window at most."""
WRONG = 8
"""Best windows that wrong ones are drawn from, the first more often."""
DECAY = 0.7
"""Rate of that exponential draw."""


@dataclass(frozen=True)
class ReaderExample:
    """A question and a passage, with the answer's words or None.

    `source`: pair, absent, wrong (a window that BM25 or a finder ranks high), swapped (the question
    is about another name) or cloze.
    """

    question: str
    passage: str
    answer: str | None
    source: str


class ExampleText:
    """A training text with its sentences, from which examples are drawn.

    Args:
        ranked: a finder's windows by the question's id; BM25's where it has none.
    """

    def __init__(
        self, text: TrainingText, ranked: Mapping[str, Sequence[Span]] | None = None
    ) -> None:
        self.name, self.text, self.pairs = text.name, text.text, text.pairs
        self._ranked = ranked or {}
        self.spans = find_sentence_spans(self.text)
        self.counts = [len(self.text[a:b].split()) for a, b in self.spans]
        self._starts = [start for start, _ in self.spans]
        self._wrong: dict[AnswerPair, list[str]] = {}

    @cached_property
    def sentences(self) -> tuple[int, int]:
        """[first, last) of the sentences between the first and the last pair's passage: what is
        outside may be a licence, which is much alike in all books."""
        start = min(pair.passage[0] for pair in self.pairs)
        end = max(pair.passage[1] for pair in self.pairs)
        first = max(0, bisect_right(self._starts, start) - 1)
        return first, max(first + 1, bisect_left(self._starts, end))

    @cached_property
    def index(self) -> LexicalIndex:
        return LexicalIndex([self.text])

    @cached_property
    def names(self) -> list[str]:
        """Names that the text mentions often."""
        start, end = self.sentences
        return frequent_names(self.text[self.spans[start][0] : self.spans[end - 1][1]])

    def examples(
        self, rng: StableRandom, wrong: float, swapped: float = 0.0
    ) -> Iterator[ReaderExample]:
        """One of each pair, with the probability `wrong` one of a wrong window, and with the
        probability `swapped` one of the right window and a question about another name, where
        window and question have one in common."""
        for pair in self.pairs:
            example = self.right(pair, rng) if pair.answer else self.absent(pair, rng)
            if example is not None:
                yield example
            if example is not None and example.answer and rng.draw_fraction() < swapped:
                other = swapped_question(example.question, example.passage, self.names, rng)
                if other is not None:
                    yield ReaderExample(other, example.passage, None, "swapped")
            if (
                pair.answer
                and rng.draw_fraction() < wrong
                and (windows := self.wrong_windows(pair))
            ):
                place = int(-math.log(1 - rng.draw_fraction()) / DECAY)
                window = windows[min(place, len(windows) - 1)]
                yield ReaderExample(pair.question, window, None, "wrong")

    def right(self, pair: AnswerPair, rng: StableRandom) -> ReaderExample | None:
        """The question with a window around its answer; None where that is too long."""
        assert pair.answer is not None
        start, end = self.around(pair.answer, WORDS, rng)
        if end - start > LONGEST:
            return None
        answer = collapse_spaces(self.text[slice(*pair.answer)])
        return ReaderExample(pair.question, collapse_spaces(self.text[start:end]), answer, "pair")

    def absent(self, pair: AnswerPair, rng: StableRandom) -> ReaderExample | None:
        """A question that its passage does not answer, with that or with a window around it."""
        start, end = pair.passage
        if rng.draw_fraction() < 0.5:
            middle = (start + end) // 2
            start, end = self.around((middle, middle + 1), ABSENT_WORDS, rng)
        if end - start > LONGEST:
            return None
        return ReaderExample(pair.question, collapse_spaces(self.text[start:end]), None, "absent")

    def around(self, span: Span, words: tuple[int, int], rng: StableRandom) -> Span:
        """Characters of a run of sentences that contains `span`, with a random number of words."""
        first = max(0, bisect_right(self._starts, span[0]) - 1)
        last = max(first, bisect_left(self._starts, span[1]) - 1)
        wanted = words[0] + rng.draw_integer_below(words[1] - words[0] + 1)
        total = sum(self.counts[first : last + 1])
        while total < wanted:
            before = rng.draw_fraction() < 0.5
            if before and first > 0:
                first -= 1
                total += self.counts[first]
            elif not before and last + 1 < len(self.spans):
                last += 1
                total += self.counts[last]
            else:
                break
        return min(self.spans[first][0], span[0]), max(self.spans[last][1], span[1])

    def wrong_windows(self, pair: AnswerPair) -> list[str]:
        """The best windows for the question that contain neither its answer nor its passage."""
        if pair not in self._wrong:
            self._wrong[pair] = list(self._find_wrong(pair))
        return self._wrong[pair]

    def _find_wrong(self, pair: AnswerPair) -> Iterator[str]:
        assert pair.answer is not None
        answer = collapse_spaces(self.text[slice(*pair.answer)])
        telling = re.compile(rf"(?<!\w){re.escape(answer)}(?!\w)", re.IGNORECASE)
        taken: list[Span] = [pair.passage]
        for first, last in self._ranked.get(pair.id) or self._best(pair.question):
            if any(first < end and start < last for start, end in taken):
                continue
            taken.append((first, last))
            text = collapse_spaces(self.text[first:last])
            if not telling.search(text):
                yield text
            if len(taken) > WRONG:
                return

    def _best(self, question: str) -> list[Span]:
        """BM25's best windows."""
        best = self.index.compute_bm25_scores(question).argsort(descending=True, stable=True)
        windows = [self.index.windows[place] for place in best[: 8 * WRONG].tolist()]
        return [(window.start, window.end) for window in windows]

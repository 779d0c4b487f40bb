"""Cloze questions from a text alone (recurring span selection, arXiv 2101.00438).

A name, a number or a run of words that stands in one sentence of a window and again in the rest of
it becomes a blank in the sentence; the rest is the passage, and the span is the answer. A quarter
gets another passage, without the span.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from name_pattern import BEGINNINGS, NAME
from reader_examples import ExampleText, ReaderExample

from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.qa.reading.span import collapse_spaces

BLANK = "____"
SENTENCE_WORDS = range(8, 41)
WINDOW_WORDS = (45, 105)
RUNS = (4, 3, 2)
"""Words of a recurring run."""
RUN_CHARACTERS = 10
"""Fewest characters of one."""
ABSENT = 0.25
TRIES = 60
"""Draws for each cloze question that is wanted: most sentences have no recurring span."""
_ENDINGS = "the a of to and in is was that"
ENDINGS = frozenset(_ENDINGS.split())
"""Words that end no answer."""


def cloze_examples(
    texts: Sequence[ExampleText], count: int, rng: StableRandom
) -> Iterator[ReaderExample]:
    """About `count` cloze questions; fewer where the texts have few recurring spans."""
    made = 0
    for _ in range(TRIES * count):
        if made == count:
            return
        example = cloze_example(texts[rng.draw_integer_below(len(texts))], rng)
        if example is not None:
            made += 1
            yield example


def cloze_example(text: ExampleText, rng: StableRandom) -> ReaderExample | None:
    """A cloze question of a random window, None where none can be made of it."""
    first, last = _window(text, rng)
    chosen = first + rng.draw_integer_below(last - first)
    if text.counts[chosen] not in SENTENCE_WORDS:
        return None
    start, end = text.spans[chosen]
    sentence = collapse_spaces(text.text[start:end])
    before = text.text[text.spans[first][0] : start]
    after = text.text[end : text.spans[last - 1][1]]
    rest = collapse_spaces(f"{before} {after}")
    spans = recurring_spans(sentence, rest)
    if not spans:
        return None
    answer = spans[rng.draw_integer_below(len(spans))]
    question = sentence.replace(answer, BLANK)
    if rng.draw_fraction() >= ABSENT:
        return ReaderExample(question, rest, answer, "cloze")
    first, last = _window(text, rng)
    other = collapse_spaces(text.text[text.spans[first][0] : text.spans[last - 1][1]])
    return None if answer in other else ReaderExample(question, other, None, "cloze")


def recurring_spans(sentence: str, rest: str) -> list[str]:
    """Names, numbers and runs of words that are once in the sentence, and in the rest."""
    found = [match.group() for match in NAME.finditer(sentence)]
    found = [name for name in found if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", rest)]
    words = sentence.split()
    for length in RUNS:
        for at in range(1, len(words) - length):
            run = " ".join(words[at : at + length]).strip('.,;:!?"“”')
            if len(run) >= RUN_CHARACTERS and run in rest and _is_answer(run):
                found.append(run)
    return [one for one in found if sentence.count(one) == 1 and one.lower() not in BEGINNINGS]


def _is_answer(run: str) -> bool:
    return run.lower().split()[-1] not in ENDINGS


def _window(text: ExampleText, rng: StableRandom) -> tuple[int, int]:
    """Sentences [first, last) of a window of random place and length."""
    wanted = WINDOW_WORDS[0] + rng.draw_integer_below(WINDOW_WORDS[1] - WINDOW_WORDS[0] + 1)
    begin, end = text.sentences
    first = last = begin + rng.draw_integer_below(end - begin)
    words = 0
    while last < end and words < wanted:
        words += text.counts[last]
        last += 1
    return first, last

"""What a reader scores on texts that it was not trained on, read as `qa.reading` reads passages.

On right passages: spans that are the text's answers (exact match and F1 of words), and passages
that it takes for such that do not tell (missed: log-odds below 0). On passages of questions that
the text does not answer: the share noticed, by the same rule. And how well the log-odds rank right
passages above BM25's best wrong windows: the area under the ROC curve.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from question_pairs import AnswerPair
from reader_examples import ExampleText

from esa_cli.evaluation.metrics import compute_word_bag_f1, split_bare_words
from esa_cli.evaluation.tasks.task_sample import StableRandom
from esa_cli.qa.reading.span import PassageReader

MOST = 200
"""Pairs of a text that are scored; of more, so many are drawn, always the same."""
SEED = "held out"


@dataclass(frozen=True)
class ReaderScores:
    """Shares from 0 to 1 of one text; None where it has no such questions."""

    text: str
    answered: int
    exact: float | None
    f1: float | None
    missed: float | None
    auc: float | None
    absent: int
    noticed: float | None


def area_under_curve(right: Sequence[float], wrong: Sequence[float]) -> float:
    """Probability that a number of `right` is above one of `wrong`; ties count half."""
    one, other = torch.tensor(right)[:, None], torch.tensor(wrong)
    return float(((one > other).float() + 0.5 * (one == other).float()).mean())


@dataclass
class _Tally:
    """Log-odds of passages, and the answers to questions that have one."""

    right: list[float] = field(default_factory=list)
    wrong: list[float] = field(default_factory=list)
    absent: list[float] = field(default_factory=list)
    exact: list[float] = field(default_factory=list)
    f1: list[float] = field(default_factory=list)


@torch.no_grad()
def score_text(
    text: ExampleText, reader: PassageReader, progress: Callable[[int, int], None] | None = None
) -> ReaderScores:
    """Scores the reader's model as it is, with an adapter if one is active.

    Args:
        progress: called with pairs done and pairs in all.
    """
    tally = _Tally()
    pairs = StableRandom(SEED, text.name).draw_items(text.pairs, min(MOST, len(text.pairs)))
    for done, pair in enumerate(pairs, 1):
        _add(tally, pair, text, reader)
        if progress:
            progress(done, len(pairs))
    both = tally.right and tally.wrong
    return ReaderScores(
        text.name,
        len(tally.right),
        _mean(tally.exact),
        _mean(tally.f1),
        _mean([odds < 0 for odds in tally.right]),
        area_under_curve(tally.right, tally.wrong) if both else None,
        len(tally.absent),
        _mean([odds < 0 for odds in tally.absent]),
    )


def _add(tally: _Tally, pair: AnswerPair, text: ExampleText, reader: PassageReader) -> None:
    """Reads a pair's passage, and BM25's best wrong window where the question has an answer."""
    rng = StableRandom(SEED, pair.id)
    example = text.right(pair, rng) if pair.answer else text.absent(pair, rng)
    if example is None:
        return
    windows = text.wrong_windows(pair)[:1] if pair.answer else []
    reading = reader.read_passages(pair.question, [example.passage, *windows])
    if example.answer is None:
        tally.absent.append(reading.log_odds[0])
        return
    tally.right.append(reading.log_odds[0])
    tally.wrong += reading.log_odds[1:]
    span = reading.find_span(0)
    said = example.passage[span.start : span.end] if span else ""
    tally.exact.append(split_bare_words(said) == split_bare_words(example.answer))
    tally.f1.append(compute_word_bag_f1(split_bare_words(said), split_bare_words(example.answer)))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

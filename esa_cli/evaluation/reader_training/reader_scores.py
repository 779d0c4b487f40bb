"""What a reader scores on texts that it was not trained on.

On right passages: answers that are the text's (exact match and F1 of words) and those that it says
are not told (missed). On passages of questions that the text does not tell: the share noticed. And
how well the log-odds of being told rank a question's right passage above BM25's best wrong window:
the area under the ROC curve.
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from esa_cli.evaluation.reader_training.answer_logits import log_probabilities
from esa_cli.evaluation.reader_training.example_batches import TokenExample, encode
from esa_cli.evaluation.reader_training.greedy_answers import greedy_answers
from esa_cli.evaluation.reader_training.reader_examples import ExampleText, ReaderExample
from esa_cli.evaluation.tasks.stable_random import StableRandom
from esa_cli.qa.reading.passage_prompt import PassagePrompt

MOST = 200
"""Pairs of a text that are scored; of more, so many are drawn, always the same."""
SEED = "held out"
_MARKS = string.punctuation + "“”‘’—–"
_SPACES = str.maketrans(_MARKS, " " * len(_MARKS))
Progress = Callable[[int, int], None]


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


def words(text: str) -> list[str]:
    """Words in lower case, without punctuation and articles."""
    return [
        word for word in text.lower().translate(_SPACES).split() if word not in ("a", "an", "the")
    ]


def word_f1(answer: str, right: str) -> float:
    """Harmonic mean of the shares of words that two answers have in common."""
    one, other = words(answer), words(right)
    common = sum((Counter(one) & Counter(other)).values())
    return 2 * common / (len(one) + len(other)) if common else 0.0


def area_under_curve(right: Tensor, wrong: Tensor) -> float:
    """Probability that a score of `right` (n,) is above one of `wrong` (m,); ties count half."""
    above = (right[:, None] > wrong).double() + 0.5 * (right[:, None] == wrong).double()
    return float(above.mean())


class ReaderScorer:
    """Scores the model as it is, with an adapter if one is active.

    Args:
        batch: prompts that are read together. longest: tokens of a prompt with its answer at most;
            pairs whose passage is longer are not scored.
    """

    def __init__(self, model: Any, prompt: PassagePrompt, batch: int, longest: int) -> None:
        self.model, self.prompt, self.batch, self.longest = model, prompt, batch, longest

    @torch.no_grad()
    def score(self, text: ExampleText, progress: Progress | None = None) -> ReaderScores:
        """Scores of one text."""
        right, absent, wrong = self._examples(text)
        report = _Steps(2 * len(right) + len(absent) + len(wrong), progress)
        said = self._answers([*right, *absent], report)
        told, others = said[: len(right)], said[len(right) :]
        gold = [example.answer or "" for example in right]
        exact = [words(one) == words(other) for one, other in zip(told, gold, strict=True)]
        f1 = [word_f1(one, other) for one, other in zip(told, gold, strict=True)]
        odds = [self._log_odds(examples, report) for examples in (right, wrong)]
        return ReaderScores(
            text.name,
            len(right),
            _mean(exact),
            _mean(f1),
            _mean([self._unanswered(one) for one in told]),
            area_under_curve(*odds) if right and wrong else None,
            len(absent),
            _mean([self._unanswered(one) for one in others]),
        )

    def _examples(
        self, text: ExampleText
    ) -> tuple[list[ReaderExample], list[ReaderExample], list[ReaderExample]]:
        """Right passages, passages of absent answers, and each question's best wrong window."""
        right, absent, wrong = list[ReaderExample](), list[ReaderExample](), list[ReaderExample]()
        pairs = StableRandom(SEED, text.name).some(text.pairs, min(MOST, len(text.pairs)))
        for pair in pairs:
            rng = StableRandom(SEED, pair.id)
            example = text.right(pair, rng) if pair.answer else text.absent(pair, rng)
            if example is None or len(encode(example, self.prompt)) > self.longest:
                continue
            (right if pair.answer else absent).append(example)
            for window in text.wrong_windows(pair)[:1] if pair.answer else ():
                found = ReaderExample(pair.question, window, None, "wrong")
                if len(encode(found, self.prompt)) <= self.longest:
                    wrong.append(found)
        return right, absent, wrong

    def _answers(self, examples: Sequence[ReaderExample], report: _Steps) -> list[str]:
        said = [""] * len(examples)
        for places, batch in self._batches(examples):
            prompts = [example.prompt for example in batch]
            for place, answer in zip(
                places, greedy_answers(self.model, self.prompt, prompts), strict=True
            ):
                said[place] = answer
            report.add(len(batch))
        return said

    def _log_odds(self, examples: Sequence[ReaderExample], report: _Steps) -> Tensor:
        """log of P(told) / P(not told) for each example, (examples,) float64."""
        odds = torch.zeros(len(examples), dtype=torch.float64)
        for places, batch in self._batches(examples):
            absent = [
                TokenExample(one.prompt, self.prompt.unanswered_ids, one.source) for one in batch
            ]
            log_p = log_probabilities(self.model, absent).double().cpu().clamp_max(-1e-12)
            odds[places] = torch.log(-torch.expm1(log_p)) - log_p
            report.add(len(batch))
        return odds

    def _batches(
        self, examples: Sequence[ReaderExample]
    ) -> Iterator[tuple[list[int], list[TokenExample]]]:
        """Places of examples of about one length, and these encoded."""
        encoded = [encode(example, self.prompt) for example in examples]
        order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
        for at in range(0, len(order), self.batch):
            places = order[at : at + self.batch]
            yield places, [encoded[place] for place in places]

    def _unanswered(self, answer: str) -> bool:
        return words(answer) == words(self.prompt.unanswered)


class _Steps:
    """Counts work for a progress callback."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def add(self, count: int) -> None:
        self.done += count
        if self.progress:
            self.progress(self.done, self.total)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None

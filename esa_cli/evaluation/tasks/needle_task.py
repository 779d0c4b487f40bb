"""One needle in a haystack: a plain sentence hidden in a long text, and a question about it.

Source: Kamradt's needle in a haystack (2023): one sentence, one depth, one length a document. There
one needle is used throughout and a model judges the answers. Here there are 32 needles of distinct
forms in `needles.jsonl`, written for this repository, and an answer counts when an accepted one
stands in it as whole words. The exact form keeps one needle a document. The shared form plants all
needles in one document, so that it has to be read only once; each is a distraction for the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.chronicle_task import is_answered
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    depths_of,
    document,
    even,
    plant,
)

LONGEST = 24


@dataclass(frozen=True)
class Needle:
    """A sentence, a question about it and its right answers; `number` is its line, from 1."""

    number: int
    text: str
    question: str
    answers: tuple[str, ...]


@cache
def load_needles() -> tuple[Needle, ...]:
    """All needles, in the order of the file."""
    lines = Path(__file__).with_name("needles.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    return tuple(
        Needle(number, row["needle"], row["question"], tuple(row["answers"]))
        for number, row in enumerate(rows, 1)
    )


def chosen_needles(request: TaskRequest) -> list[Needle]:
    """The first needles of the file, one a sample, shuffled by the seed.

    The order is the same at every length, so that lengths can be compared needle by needle.

    Raises:
        UsageError: there are fewer needles than samples.
    """
    needles = load_needles()
    if request.samples > len(needles):
        raise UsageError(
            f"samples must be at most {len(needles)}, got {request.samples}",
            "there are no more needles",
        )
    return StableRandom("needle", request.seed).some(needles[: request.samples], request.samples)


def ask(needle: Needle, fact: int) -> TaskQuestion:
    """The question about a needle that is the sample's fact number `fact`."""
    key = f"needle-{needle.number:02}"
    return TaskQuestion(key, needle.question, needle.answers, (fact,), LONGEST)


class SingleNeedle:
    name = "needle"

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        needles = chosen_needles(request)
        if not request.exact:
            text, facts = document(
                request, [needle.text for needle in needles], depths_of(request, len(needles))
            )
            questions = tuple(ask(needle, fact) for fact, needle in enumerate(needles))
            yield TaskSample(self.name, request.length, 0, text, facts, questions)
            return
        for index, (needle, depth) in enumerate(pairs(request, needles)):
            text, facts = document(request, [needle.text], [depth])
            yield TaskSample(self.name, request.length, index, text, facts, (ask(needle, 0),))

    def score(self, question: TaskQuestion, output: str) -> float:
        return float(is_answered(output, question.answers))


def pairs(request: TaskRequest, needles: Sequence[Needle]) -> list[tuple[Needle, float]]:
    """Every needle at every requested depth; without any, each at an even depth of its own."""
    if request.depths:
        return [(needle, depth) for needle in needles for depth in request.depths]
    return list(zip(needles, even(len(needles)), strict=True))


class OwnDocument(SingleNeedle):
    """The same needles in the user's own document, whole: a check of that, not a benchmark.

    The requested length plays no part.
    """

    name = "own"

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        if not request.haystack.text:
            raise UsageError(
                f"the haystack of `own` must be a text of yours, got {request.haystack.name}",
                "name a text file",
            )
        needles = chosen_needles(request)
        sentences = [needle.text for needle in needles]
        text, facts = plant(request.haystack.text, sentences, depths_of(request, len(needles)))
        questions = tuple(ask(needle, fact) for fact, needle in enumerate(needles))
        yield TaskSample(self.name, request.size(text), 0, text, facts, questions)

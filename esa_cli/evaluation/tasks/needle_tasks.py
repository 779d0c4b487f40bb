"""Sentences hidden in a long text, and questions about them.

`needle`: Kamradt's needle in a haystack (2023). Here there are 32 needles of distinct forms,
written for this repository, and an answer is right when it contains an accepted one as whole words.
The exact form has one needle a document; in the shared form each is a distraction for the others.
`own`: the same needles in the user's own document.

`needles`: several needles asked for at once, NeedleBench M-RT (Li et al., 2024), version 1, as in
OpenCompass: the questions are joined, and so are the forms of their answers. The needles are ours,
in the same shape. The exact form has three needles a document, each on a line of its own. In the
shared form a document has up to eight questions, each about three to five needles of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    check_samples,
    dealt,
    depths_of,
    document,
    even,
    plant,
    together,
    word_ends,
)

LONGEST = 24
FOLDER = Path(__file__).parent


class Needle(NamedTuple):
    """A sentence, a question about it and its right answers; `number` is its line, from 1."""

    number: int
    text: str
    question: str
    answers: tuple[str, ...]


@cache
def load_needles() -> tuple[Needle, ...]:
    """All needles, in the order of the file."""
    lines = (FOLDER / "needles.jsonl").read_text("utf-8").splitlines()
    rows = enumerate(map(json.loads, lines), 1)
    return tuple(
        Needle(number, row["needle"], row["question"], tuple(row["answers"]))
        for number, row in rows
    )


def chosen_needles(request: TaskRequest) -> list[Needle]:
    """The first needles of the file, one a sample, shuffled by the seed: at every length in the
    same order. Raises UsageError: there are fewer needles than samples."""
    needles = load_needles()
    check_samples(request, len(needles), "there are no more needles")
    return StableRandom("needle", request.seed).some(needles[: request.samples], request.samples)


def needle_questions(needles: Sequence[Needle]) -> tuple[TaskQuestion, ...]:
    """A question for each needle, which is the document's fact of the same number."""
    return tuple(
        TaskQuestion(
            f"needle-{needle.number:02}", needle.question, needle.answers, (fact,), LONGEST
        )
        for fact, needle in enumerate(needles)
    )


def single_needles(request: TaskRequest) -> Iterator[TaskSample]:
    """One document with all needles; in the exact form one for each needle and depth."""
    needles = chosen_needles(request)
    parts: list[tuple[list[Needle], Sequence[float]]]
    if not request.exact:
        parts = [(needles, depths_of(request, len(needles)))]
    elif request.depths:
        parts = [([needle], [depth]) for needle in needles for depth in request.depths]
    else:
        parts = [([n], [depth]) for n, depth in zip(needles, even(len(needles)), strict=True)]
    for index, (some, depths) in enumerate(parts):
        text, facts = document(request, [needle.text for needle in some], depths)
        yield TaskSample("needle", request.length, index, text, facts, needle_questions(some))


def own_document(request: TaskRequest) -> Iterator[TaskSample]:
    """The user's whole text with the needles in it; the length requested plays no part."""
    if not request.haystack.text:
        raise UsageError(
            f"the haystack of `own` must be a text of yours, got {request.haystack.name}",
            "name a text file",
        )
    needles = chosen_needles(request)
    sentences = [needle.text for needle in needles]
    text, facts = plant(request.haystack.text, sentences, depths_of(request, len(needles)))
    length = request.size(text)
    yield TaskSample("own", length, 0, text, facts, needle_questions(needles))


BEFORE = (
    "You are an intelligent AI assistant skilled in answering user questions.\n"
    "Please keep your answers concise and clear. Do not talk about irrelevant topics or repeat "
    "your answers.\nThe document given to you by the user is "
)
AFTER = "\n\nNow, the questions are: {question}\n"
GUIDE = (
    "Before answering, please consider what in the document is most relevant to this question. "
    "Please answer in the format of '{formats}'"
)
JOINT = "、"
LONGEST_OF_MANY = 128
TOGETHER = 8
"""Most questions that share a document; there are no needles for more."""


class NeedleKind(NamedTuple):
    """Needles of one form; `needle` and `format` state the same about {arg1} and {arg2}."""

    needle: str
    question: str
    format: str
    first: Sequence[str]
    second: Sequence[str]


KINDS: tuple[NeedleKind, ...] = tuple(
    NeedleKind(**row) for row in json.loads((FOLDER / "needle_kinds.json").read_text("utf-8"))
)


def many_needles(request: TaskRequest) -> Iterator[TaskSample]:
    """Documents with questions about three to five needles each."""
    kind = KINDS[0]
    longest = kind.needle.format(arg1=kind.first[0], arg2=kind.second[0])
    for index, numbers in enumerate(together(request, TOGETHER, [longest] * 5)):
        counts = [3 if request.exact else 3 + number % 3 for number in numbers]
        yield _many(request, index, counts)


def _many(request: TaskRequest, index: int, counts: Sequence[int]) -> TaskSample:
    """A document with a question for each of the counts of needles."""
    dice = StableRandom("needles", request.length, request.seed, index)
    pairs = [
        (kind, first, other)
        for kind in KINDS
        for first, other in zip(kind.first, dice.some(kind.second, len(kind.second)), strict=True)
    ]
    drawn = dice.some(pairs, sum(counts))
    sentences = [kind.needle.format(arg1=first, arg2=two) for kind, first, two in drawn]
    depths = depths_of(request, len(drawn))
    if request.exact:
        text, facts = document(request, sentences, depths, (word_ends,), ("\n", "\n"))
    else:
        text, facts = document(request, sentences, depths)
    owners = dealt(dice, counts)
    questions = []
    for which, count in enumerate(counts):
        own = [place for place, owner in enumerate(owners) if owner == which]
        mine = [drawn[place] for place in own]
        asked = JOINT.join(kind.question.format(arg1=first) for kind, first, _ in mine)
        formats = JOINT.join(
            kind.format.format(arg1=first, arg2="______") for kind, first, _ in mine
        )
        key = f"{count}-needles" + (f"-{which + 1}" if len(counts) > 1 else "")
        answers = tuple(two for _, _, two in mine)
        guide = GUIDE.format(formats=formats)
        questions.append(TaskQuestion(key, asked + guide, answers, tuple(own), LONGEST_OF_MANY))
    return TaskSample(
        "needles", request.length, index, text, facts, tuple(questions), BEFORE, AFTER
    )

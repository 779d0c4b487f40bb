"""Sentences hidden in a long text, and questions about them; questions share documents.

`needle`: Kamradt's needle in a haystack (2023), with 32 needles written for this repository, of
which an answer must contain the words. `own`: the same needles in the user's own document.
`needles`: NeedleBench M-RT (Li et al., 2024), version 1, as in OpenCompass: three to five needles
of ours are asked for at once, with joined questions and forms of answers. `stars`: Counting-Stars
(Song et al., 2024), searching and reasoning in turn: an animal counts stars in eight places, in
reasoning with mistakes; the start of the answer is the ESA paper's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from esa_cli.errors import UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    check_samples,
    deal_places,
    even_depths,
    plant_in_haystack,
    plant_sentences,
    share_documents,
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
    """Loads all needles in the order of the file."""
    lines = (FOLDER / "needles.jsonl").read_text("utf-8").splitlines()
    return tuple(
        Needle(number, row["needle"], row["question"], tuple(row["answers"]))
        for number, row in enumerate(map(json.loads, lines), 1)
    )


def choose_needles(request: TaskRequest) -> list[Needle]:
    """Takes one needle a sample from the top of the file, shuffled by the seed. Raises UsageError:
    there are fewer needles than samples."""
    needles = load_needles()
    check_samples(request, len(needles), "there are no more needles")
    return StableRandom("needle", request.seed).some(needles[: request.samples], request.samples)


def needle_questions(needles: Sequence[Needle]) -> tuple[TaskQuestion, ...]:
    """Asks a question about each needle, which is the document's fact of the same number."""
    return tuple(
        TaskQuestion(
            f"needle-{needle.number:02}", needle.question, needle.answers, (fact,), LONGEST
        )
        for fact, needle in enumerate(needles)
    )


def make_single_needles(request: TaskRequest) -> Iterator[TaskSample]:
    """Makes one document with all needles."""
    needles = choose_needles(request)
    text, facts = plant_in_haystack(request, [needle.text for needle in needles])
    yield TaskSample("needle", request.length, 0, text, facts, needle_questions(needles))


def make_own_document(request: TaskRequest) -> Iterator[TaskSample]:
    """Plants the needles in the user's whole text; the requested length plays no part."""
    if not request.haystack.text:
        raise UsageError(
            f"the haystack of `own` must be a text of yours, got {request.haystack.name}",
            "name a text file",
        )
    needles = choose_needles(request)
    sentences = [needle.text for needle in needles]
    text, facts = plant_sentences(request.haystack.text, sentences, even_depths(len(needles)))
    yield TaskSample("own", request.size(text), 0, text, facts, needle_questions(needles))


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
SHARED_QUESTIONS = 8
"""Most questions that share a document; there are no needles for more."""


KINDS: list[dict[str, Any]] = json.loads((FOLDER / "needle_kinds.json").read_text("utf-8"))
"""Forms of needles: `needle`, `question` and `format` are about {arg1} and {arg2}, of which `first`
and `second` list the values."""


def make_many_needles(request: TaskRequest) -> Iterator[TaskSample]:
    """Makes documents with questions about three to five needles each."""
    kind = KINDS[0]
    longest = kind["needle"].format(arg1=kind["first"][0], arg2=kind["second"][0])
    for index, numbers in enumerate(share_documents(request, SHARED_QUESTIONS, [longest] * 5)):
        counts = [3 + number % 3 for number in numbers]
        dice = StableRandom("needles", request.length, request.seed, index)
        pairs = [
            (kind, first, second)
            for kind in KINDS
            for first, second in zip(
                kind["first"], dice.some(kind["second"], len(kind["second"])), strict=True
            )
        ]
        drawn = dice.some(pairs, sum(counts))
        sentences = [
            kind["needle"].format(arg1=first, arg2=second) for kind, first, second in drawn
        ]
        text, facts = plant_in_haystack(request, sentences)
        owners = deal_places(dice, counts)
        questions = []
        for which, count in enumerate(counts):
            places = [place for place, owner in enumerate(owners) if owner == which]
            needles = [drawn[place] for place in places]
            asked = JOINT.join(kind["question"].format(arg1=first) for kind, first, _ in needles)
            formats = JOINT.join(
                kind["format"].format(arg1=first, arg2="______") for kind, first, _ in needles
            )
            key = f"{count}-needles" + (f"-{which + 1}" if len(counts) > 1 else "")
            asked += GUIDE.format(formats=formats)
            answers = tuple(second for _, _, second in needles)
            questions.append(TaskQuestion(key, asked, answers, tuple(places), LONGEST_OF_MANY))
        yield TaskSample(
            "needles", request.length, index, text, facts, tuple(questions), BEFORE, AFTER
        )


STARS = {
    "searching": "\nThe little {who} counted {a} ★\n",
    "reasoning": "\nThe little {who} counted {r} ★, but found that a mistake had been made, so "
    "the counting was done again, and this time {a} ★ was counted correctly.\n",
}
STARS_QUESTION = (
    "On this moonlit and misty night, the little {who} is looking up at the sky and "
    "concentrating on counting ★. Please help the little {who} collect the {correct}number of ★, "
    'for example: {{"little_{who}": [x, x, x,...]}}. The summation is not required, and the '
    "numbers in [x, x, x,...] represent the {correctly}counted number of ★ by the little {who}. "
    "Only output the results in JSON format without any explanation."
)
STARS_AFTER = "\n\n\n\n{question}"
STARS_PRIME = '```json\n{{"little_{who}": ['
STARS_PER_QUESTION = 8
LARGEST = 255
ANIMALS = ("penguin", "otter", "badger", "heron", "rabbit", "tortoise", "squirrel", "hedgehog")
"""The animal of each question; a single question has the benchmark's penguin."""


def make_counting_stars(request: TaskRequest) -> Iterator[TaskSample]:
    """Makes documents with questions of both kinds in turn."""
    longest = STARS["reasoning"].format(who=ANIMALS[0], a=LARGEST, r=LARGEST)
    parts = share_documents(request, len(ANIMALS), [longest] * STARS_PER_QUESTION)
    for index, questions_here in enumerate(parts):
        variants = [tuple(STARS)[number % len(STARS)] for number in questions_here]
        dice = StableRandom("stars", request.length, request.seed, index)
        count = STARS_PER_QUESTION * len(variants)
        numbers = dice.some(range(1, LARGEST + 1), 2 * count)
        right, wrong = numbers[:count], numbers[count:]
        owners = deal_places(dice, [STARS_PER_QUESTION] * len(variants))
        stars = [
            STARS[variants[owner]].format(who=ANIMALS[owner], a=a, r=r)
            for owner, a, r in zip(owners, right, wrong, strict=True)
        ]
        depths = [(i + 1) / count for i in range(count)]
        lines = [star.strip() for star in stars]
        text, facts = plant_in_haystack(request, lines, depths, joints=("\n", "\n"))
        questions = []
        for which, variant in enumerate(variants):
            places = tuple(place for place, owner in enumerate(owners) if owner == which)
            who, reasoning = ANIMALS[which], variant == "reasoning"
            questions.append(
                TaskQuestion(
                    key=variant if len(variants) == 1 else f"{variant}-{who}",
                    text=STARS_QUESTION.format(
                        who=who,
                        correct="correct " if reasoning else "",
                        correctly="correctly " if reasoning else "",
                    ),
                    answers=tuple(str(right[place]) for place in places),
                    facts=places,
                    longest=16 + 8 * len(places),
                    prime=STARS_PRIME.format(who=who),
                    data={"mistaken": tuple(wrong[at] for at in places)} if reasoning else {},
                )
            )
        yield TaskSample(
            "stars", request.length, index, text, facts, tuple(questions), after=STARS_AFTER
        )


def star_score(question: TaskQuestion, output: str) -> float:
    """Scores the listed numbers by the benchmark's rule of the question's kind."""
    right = [int(answer) for answer in question.answers]
    listed = metrics.listed_stars(output, len(right))
    if "mistaken" in question.data:
        return metrics.reasoning_score(listed, right, question.data["mistaken"])
    return metrics.searching_score(listed, right)

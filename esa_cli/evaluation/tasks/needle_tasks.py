"""Self-tests that hide needles, which are sentences, in a long text, and ask about the needles.

The test `needle` is Kamradt's needle in a haystack (2023), with 32 needles written for esa. The
test `own` hides the same needles in the user's own document. The test `needles` is NeedleBench M-RT
(Li et al., 2024), whose questions ask for three to five needles at once. The test `stars` is
Counting-Stars (Song et al., 2024), whose animals count stars in eight places of a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskDocument,
    TaskQuestion,
    TaskRequest,
    assign_facts_to_questions,
    check_sample_count,
    choose_even_depths,
    divide_questions_among_documents,
    plant_sentences,
    plant_sentences_in_haystack,
)
from esa_cli.system.jsonl import read_json_lines

LONGEST = 24
FOLDER = Path(__file__).parent


NEEDLES = list(enumerate(read_json_lines(FOLDER / "needles.jsonl"), 1))
"""The needles by line, as rows with the `needle`, a `question` about it and the right `answers`."""


def draw_needles(request: TaskRequest) -> tuple[list[str], tuple[TaskQuestion, ...]]:
    """Takes a needle for each requested question from the top of the file of needles, shuffled by
    the request's seed; returns needles and questions. Raises UsageError: there are too few."""
    check_sample_count(request, len(NEEDLES), "ask for fewer --samples; esa has no more needles")
    dice = StableRandom("needle", request.seed)
    drawn = dice.draw_items(NEEDLES[: request.samples], request.samples)
    questions = tuple(
        TaskQuestion(f"needle-{line:02}", row["question"], tuple(row["answers"]), (fact,), LONGEST)
        for fact, (line, row) in enumerate(drawn)
    )
    return [row["needle"] for _, row in drawn], questions


def make_single_needle_document(request: TaskRequest) -> Iterator[TaskDocument]:
    """Makes a document of the test `needle`, which contains a needle for each question."""
    needles, questions = draw_needles(request)
    text, facts = plant_sentences_in_haystack(request, needles)
    yield TaskDocument("needle", request.length, 0, text, facts, questions)


def plant_needles_in_user_document(request: TaskRequest) -> Iterator[TaskDocument]:
    """Makes the document of the test `own`, which is the user's whole text with needles."""
    if not request.haystack.text:
        message = f"the self-test `own` needs a text of yours, not {request.haystack.name}"
        raise UsageError(message, "give the text file or folder with --haystack")
    needles, questions = draw_needles(request)
    depths = choose_even_depths(len(needles))
    text, facts = plant_sentences(request.haystack.text, needles, depths)
    yield TaskDocument("own", request.count_tokens(text), 0, text, facts, questions)


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
SHARED_QUESTIONS = 8
"""The largest number of questions about one document, since there are no more needles."""
KINDS: list[dict[str, Any]] = json.loads((FOLDER / "needle_kinds.json").read_text("utf-8"))
"""Templates of needles; `first` and `second` list the values of {arg1} and {arg2}."""


def make_multi_needle_documents(request: TaskRequest) -> Iterator[TaskDocument]:
    """Makes documents of the test `needles`, whose questions ask for three to five needles each."""
    kind = KINDS[0]
    longest = kind["needle"].format(arg1=kind["first"][0], arg2=kind["second"][0])
    parts = divide_questions_among_documents(request, SHARED_QUESTIONS, [longest] * 5)
    for index, numbers in enumerate(parts):
        counts = [3 + number % 3 for number in numbers]
        dice = StableRandom("needles", request.length, request.seed, index)
        pairs = []
        for kind in KINDS:
            shuffled = dice.draw_items(kind["second"], len(kind["second"]))
            pairs += [(kind, *pair) for pair in zip(kind["first"], shuffled, strict=True)]
        drawn = dice.draw_items(pairs, sum(counts))
        sentences = [kind["needle"].format(arg1=one, arg2=two) for kind, one, two in drawn]
        text, facts = plant_sentences_in_haystack(request, sentences)
        owners = assign_facts_to_questions(dice, counts)
        questions = []
        for which, count in enumerate(counts):
            places = [place for place, owner in enumerate(owners) if owner == which]
            needles = [drawn[place] for place in places]
            asked = JOINT.join(kind["question"].format(arg1=first) for kind, first, _ in needles)
            forms = (kind["format"].format(arg1=one, arg2="______") for kind, one, _ in needles)
            key = f"{count}-needles" + (f"-{which + 1}" if len(counts) > 1 else "")
            asked += GUIDE.format(formats=JOINT.join(forms))
            answers = tuple(second for _, _, second in needles)
            questions.append(TaskQuestion(key, asked, answers, tuple(places), max_new_tokens=128))
        yield TaskDocument(
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
"""The animal that counts stars in each question; the benchmark has only the penguin."""


def make_counting_stars_documents(request: TaskRequest) -> Iterator[TaskDocument]:
    """Makes documents of Counting-Stars with questions of the searching and reasoning tasks."""
    longest = STARS["reasoning"].format(who=ANIMALS[0], a=LARGEST, r=LARGEST)
    parts = divide_questions_among_documents(request, len(ANIMALS), [longest] * STARS_PER_QUESTION)
    for index, questions_here in enumerate(parts):
        variants = [tuple(STARS)[number % len(STARS)] for number in questions_here]
        dice = StableRandom("stars", request.length, request.seed, index)
        count = STARS_PER_QUESTION * len(variants)
        numbers = dice.draw_items(range(1, LARGEST + 1), 2 * count)
        right, wrong = numbers[:count], numbers[count:]
        owners = assign_facts_to_questions(dice, [STARS_PER_QUESTION] * len(variants))
        lines = [
            STARS[variants[owner]].format(who=ANIMALS[owner], a=a, r=r).strip()
            for owner, a, r in zip(owners, right, wrong, strict=True)
        ]
        depths = [(i + 1) / count for i in range(count)]
        text, facts = plant_sentences_in_haystack(request, lines, depths, separators=("\n", "\n"))
        questions = []
        for which, variant in enumerate(variants):
            places = tuple(place for place, owner in enumerate(owners) if owner == which)
            who, reasoning = ANIMALS[which], variant == "reasoning"
            correct, correctly = ("correct ", "correctly ") if reasoning else ("", "")
            asked = STARS_QUESTION.format(who=who, correct=correct, correctly=correctly)
            answers = tuple(str(right[place]) for place in places)
            data = {"mistaken": tuple(wrong[place] for place in places)} if reasoning else {}
            key = variant if len(variants) == 1 else f"{variant}-{who}"
            prime, limit = STARS_PRIME.format(who=who), 16 + 8 * len(places)
            questions.append(TaskQuestion(key, asked, answers, places, limit, prime, data))
        yield TaskDocument(
            "stars", request.length, index, text, facts, tuple(questions), after=STARS_AFTER
        )

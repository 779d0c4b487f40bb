"""`stars`: a penguin counts stars in many places of a long text; collect the numbers.

Source: Counting-Stars (Song et al., 2024), searching and reasoning in turn; in reasoning the
penguin first miscounts. Sentences, question and score are the benchmark's; the start of the answer
is the ESA paper's. Numbers and text are ours.

The exact form builds the document as the benchmark does: line breaks become spaces, and the first
j = 0.8 * length words are taken. Then star i replaces the space before word (i + 1) * (j // m) +
i * W of the text that already has the stars before it; W is the number of words in a star, m = 32.
So the length is the benchmark's nominal one, and no number of tokens. The shared form counts tokens
and has 8 stars for a question at every length, so that scores at two lengths compare. Up to eight
questions share a document, each about another animal, and the other animals' stars distract.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from esa_cli.errors import UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.task_sample import (
    SLACK,
    Fact,
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    dealt,
    depths_of,
    document,
    fact_at,
    together,
)

STARS = {
    "searching": "\nThe little {who} counted {a} ★\n",
    "reasoning": "\nThe little {who} counted {r} ★, but found that a mistake had been made, so "
    "the counting was done again, and this time {a} ★ was counted correctly.\n",
}
QUESTION = (
    "On this moonlit and misty night, the little {who} is looking up at the sky and "
    "concentrating on counting ★. Please help the little {who} collect the {correct}number of ★, "
    'for example: {{"little_{who}": [x, x, x,...]}}. The summation is not required, and the '
    "numbers in [x, x, x,...] represent the {correctly}counted number of ★ by the little {who}. "
    "Only output the results in JSON format without any explanation."
)
AFTER = "\n\n\n\n{question}"
PRIME = '```json\n{{"little_{who}": ['
WORDS_PER_TOKEN = 0.8
EXACT_STARS, SHARED_STARS = 32, 8
LARGEST = 255
ANIMALS = ("penguin", "otter", "badger", "heron", "rabbit", "tortoise", "squirrel", "hedgehog")
"""The animal of each question; a single question has the benchmark's penguin."""


def words(text: str) -> int:
    return len(text.split())


def counting_stars(request: TaskRequest) -> Iterator[TaskSample]:
    """Documents with questions of both kinds in turn."""
    longest = STARS["reasoning"].format(who=ANIMALS[0], a=LARGEST, r=LARGEST)
    for index, numbers in enumerate(together(request, len(ANIMALS), [longest] * SHARED_STARS)):
        yield _sample(request, index, [tuple(STARS)[number % len(STARS)] for number in numbers])


def _sample(request: TaskRequest, index: int, variants: Sequence[str]) -> TaskSample:
    """A document with a question for each of the variants."""
    m = EXACT_STARS if request.exact else SHARED_STARS
    dice = StableRandom("stars", request.length, request.seed, index)
    count = m * len(variants)
    numbers = dice.some(range(1, LARGEST + 1), 2 * count)
    right, wrong = numbers[:count], numbers[count:]
    owners = dealt(dice, [m] * len(variants))
    stars = [
        STARS[variants[owner]].format(who=ANIMALS[owner], a=a, r=r)
        for owner, a, r in zip(owners, right, wrong, strict=True)
    ]
    text, facts = _document(request, stars)
    questions = []
    for which, variant in enumerate(variants):
        own = [place for place, owner in enumerate(owners) if owner == which]
        who, reasoning = ANIMALS[which], variant == "reasoning"
        asked = QUESTION.format(
            who=who,
            correct="correct " if reasoning else "",
            correctly="correctly " if reasoning else "",
        )
        questions.append(
            TaskQuestion(
                key=variant if len(variants) == 1 else f"{variant}-{who}",
                text=asked,
                answers=tuple(str(right[place]) for place in own),
                facts=tuple(own),
                longest=16 + 8 * len(own),
                prime=PRIME.format(who=who),
                data={"mistaken": tuple(wrong[place] for place in own)} if reasoning else {},
            )
        )
    return TaskSample("stars", request.length, index, text, facts, tuple(questions), after=AFTER)


def _document(request: TaskRequest, stars: Sequence[str]) -> tuple[str, tuple[Fact, ...]]:
    if not request.exact:
        depths = tuple((i + 1) / len(stars) for i in range(len(stars)))
        depths = depths_of(request, len(stars)) if request.depths else depths
        return document(request, [star.strip() for star in stars], depths, joints=("\n", "\n"))
    if request.depths:
        raise UsageError(
            "--depths must be absent with --exact: its stars have places of their own",
            "leave out --depths, or --exact",
        )
    count = int(WORDS_PER_TOKEN * request.length)
    if count < len(stars):
        raise UsageError(
            f"words must be at least {len(stars)}, as many as stars, got {count}",
            "ask for a greater length",
        )
    # The cut may miss a few words for the sake of a whole sentence.
    parts = request.haystack.cut(words, count + 2 * SLACK, "words")
    return sprinkle("\n\n".join(parts), count, stars)


def sprinkle(text: str, count: int, stars: Sequence[str]) -> tuple[str, tuple[Fact, ...]]:
    """The first `count` space-separated words of the text, with the stars put in."""
    parts = text.replace("\n", " ").split(" ")[:count]
    for i, star in enumerate(stars):
        at = min((i + 1) * (count // len(stars)) + i * len(star.split(" ")), len(parts))
        # Without the space, the two words around the star become parts of its first and last.
        parts[at - 1 : at + 1] = (parts[at - 1] + star + "".join(parts[at : at + 1])).split(" ")
    out = " ".join(parts)
    return out, tuple(fact_at(out, out.index(star) + 1, star.strip()) for star in stars)


def star_score(question: TaskQuestion, output: str) -> float:
    right = [int(answer) for answer in question.answers]
    listed = metrics.listed_stars(output, len(right))
    if "mistaken" in question.data:
        return metrics.reasoning_score(listed, right, question.data["mistaken"])
    return metrics.searching_score(listed, right)

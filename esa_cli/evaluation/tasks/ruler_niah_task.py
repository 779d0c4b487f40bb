"""RULER's needles in a haystack: a magic number for a word; with other words, several numbers.

Source: RULER (Hsieh et al., 2024), niah. Sentences, question, the start of the answer and the score
are the benchmark's: the share of numbers that are in the output. Words and the text
around them are ours, and sentences are kept in their paragraphs.

    single      one word with one number
    multikey    four words with one number each, one asked for
    multivalue  one word with four numbers
    multiquery  four words with one number each, all asked for

The exact form has a document for each of the four in turn, with depths drawn from RULER's forty.
The shared form plants everything in one document, so single has the others as distractions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from esa_cli.errors import UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    depths_of,
    document,
)

BEFORE = (
    "{some} special magic {numbers} hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {v} afterwards.\n"
)
MANY = BEFORE.format(some="Some", numbers="numbers are", v="numbers")
ONE = BEFORE.format(some="A", numbers="number is", v="number")
AFTER = "\n{question}"
NEEDLE = "One of the special magic numbers for {key} is: {value}."
QUESTION_ONE = "What is the special magic number for {query} mentioned in the provided text?"
QUESTION_MANY = "What are all the special magic numbers for {query} mentioned in the provided text?"
PRIME_ONE = " The special magic number for {query} mentioned in the provided text is"
PRIME_MANY = " The special magic numbers for {query} mentioned in the provided text are"
LONGEST = 128
WIDTH = 4
DEPTHS = tuple(round(100 * i / 39) / 100 for i in range(40))
ADJECTIVES = (
    "ashen", "brisk", "candid", "drowsy", "eager", "fluent", "gentle", "hollow", "icy", "jovial",
    "keen", "limber", "mellow", "nimble", "ornate", "placid", "quaint", "rustic", "sturdy", "tidy",
)  # fmt: skip
NOUNS = (
    "abacus", "bagpipe", "cactus", "dolphin", "envelope", "fountain", "glacier", "hammock",
    "iguana", "javelin", "kayak", "lobster", "mandolin", "nutshell", "otter", "parasol",
    "quiver", "rooster", "saxophone", "tulip",
)  # fmt: skip


POOL = tuple(f"{one}-{other}" for one in ADJECTIVES for other in NOUNS)
KINDS = ("single", "multikey", "multivalue", "multiquery")
Numbers = dict[str, tuple[str, ...]]
"""Word -> its numbers."""


def draw(dice: StableRandom, words: Sequence[str], values: int) -> Numbers:
    """Numbers of seven digits for each word."""
    return {word: tuple(dice.digits(7, first="123456789") for _ in range(values)) for word in words}


def sentences(numbers: Numbers) -> list[str]:
    return [NEEDLE.format(key=word, value=value) for word in numbers for value in numbers[word]]


def ask(key: str, numbers: Numbers, planted: Sequence[str]) -> TaskQuestion:
    """The question about all of these words; `planted` are the document's facts in order."""
    words = list(numbers)
    query = ", ".join(words[:-1]) + ", and " + words[-1] if len(words) > 1 else words[0]
    answers = tuple(value for word in words for value in numbers[word])
    one = len(answers) == 1
    return TaskQuestion(
        key=key,
        text=(QUESTION_ONE if one else QUESTION_MANY).format(query=query),
        answers=answers,
        facts=tuple(planted.index(sentence) for sentence in sentences(numbers)),
        longest=LONGEST,
        prime=(PRIME_ONE if one else PRIME_MANY).format(query=query),
    )


class MagicNumbers:
    name = "niah"

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        if not request.exact:
            yield self._shared(request)
            return
        for index in range(request.samples):
            yield self._alone(request, index)

    def _alone(self, request: TaskRequest, index: int) -> TaskSample:
        kind = KINDS[index % len(KINDS)]
        dice = StableRandom(self.name, request.length, request.seed, index)
        words = dice.some(POOL, WIDTH if kind in ("multikey", "multiquery") else 1)
        numbers = draw(dice, words, WIDTH if kind == "multivalue" else 1)
        planted = dice.some(sentences(numbers), len(sentences(numbers)))
        depths = depths_of(request, len(planted))
        if not request.depths:
            depths = tuple(dice.some(DEPTHS, len(planted)))
        text, facts = document(request, planted, depths)
        asked = {words[0]: numbers[words[0]]} if kind == "multikey" else numbers
        question = ask(f"{kind}-{index // len(KINDS)}", asked, planted)
        before = ONE if len(question.answers) == 1 else MANY
        return TaskSample(self.name, request.length, index, text, facts, (question,), before, AFTER)

    def _shared(self, request: TaskRequest) -> TaskSample:
        groups = -(-request.samples // len(KINDS))
        if groups * (WIDTH + 2) > len(POOL):
            most = len(POOL) // (WIDTH + 2) * len(KINDS)
            raise UsageError(
                f"samples must be at most {most}, got {request.samples}",
                "a document has no room for more questions",
            )
        dice = StableRandom(self.name, request.length, request.seed, 0)
        words = dice.some(POOL, groups * (WIDTH + 2))
        numbers: Numbers = {}
        asked: list[tuple[str, Numbers]] = []
        for group in range(groups):
            alone, rich, *four = words[group * (WIDTH + 2) : (group + 1) * (WIDTH + 2)]
            single, many, several = (
                draw(dice, [alone], 1),
                draw(dice, [rich], WIDTH),
                draw(dice, four, 1),
            )
            numbers |= single | many | several
            of_kind = (single, {four[0]: several[four[0]]}, many, several)
            asked += [(f"{kind}-{group}", some) for kind, some in zip(KINDS, of_kind, strict=True)]
        planted = dice.some(sentences(numbers), len(sentences(numbers)))
        text, facts = document(request, planted, depths_of(request, len(planted)))
        questions = tuple(ask(key, some, planted) for key, some in asked[: request.samples])
        return TaskSample(self.name, request.length, 0, text, facts, questions, MANY, AFTER)

    def score(self, question: TaskQuestion, output: str) -> float:
        return metrics.match_all(output, question.answers)

"""Self-tests that hide keys and numbers in a long text, and ask many questions about each document.

`passkey` and `number` are InfiniteBench's Retrieve.PassKey and Retrieve.Number (Zhang et al.,
2024), with InfLLM's prompts; each key belongs to a gate of one colour. `kv` is Retrieve.KV, whose
document is a JSON object of random UUIDs. `niah` is RULER (Hsieh et al., 2024) with esa's own
words, and asks for one number or several.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    check_sample_count,
    choose_even_depths,
    make_fact,
    plant_in_haystack,
)

WORDS: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("key_words.json").read_text("utf-8")
)
"""Lists of the gates' colours, and of adjectives and nouns for RULER's words."""


class KeySentences(NamedTuple):
    """The sentences of a benchmark about keys of one kind.

    Args:
        before: the prompt's text before the document.
        fact, question: templates, which contain {key} and {gate}.
        draw: a function that draws a random key."""

    name: str
    before: str
    fact: str
    question: str
    draw: Callable[[StableRandom], str]


def draw_digit_runs(dice: StableRandom) -> str:
    """Draws ten digits, in runs of one to five equal digits that are hard to copy."""
    out = ""
    while len(out) < 10:
        out += dice.draw_digits(1) * (1 + dice.draw_below(5))
    return out[:10]


PASSKEY = KeySentences(
    name="passkey",
    before="There is an important info hidden inside a lot of irrelevant text. Find it and "
    "memorize them. I will quiz you about the important information there.\n\n",
    fact="The pass key{gate} is {key}. Remember it. {key} is the pass key{gate}.",
    question="What is the pass key{gate}?",
    draw=lambda dice: dice.draw_digits(5),
)
NUMBER = KeySentences(
    name="number",
    before="There is an important info hidden inside a lot of irrelevant text. Find it. I will "
    "quiz you about the important information there.\n\n",
    fact="The sequence of digits{gate} is {key}. Remember it. "
    "{key} is the sequence of digits{gate}.",
    question="What is the sequence of digits{gate}?",
    draw=draw_digit_runs,
)


def make_hidden_keys(words: KeySentences, request: TaskRequest) -> Iterator[TaskSample]:
    """Makes the one document of `passkey` or `number`, which contains all keys."""
    check_sample_count(
        request, len(WORDS["colours"]), "ask for fewer samples; each key needs another colour"
    )
    dice = StableRandom(words.name, request.length, request.seed, 0)
    sentences, questions = [], []
    for fact, colour in enumerate(dice.draw_items(WORDS["colours"], request.samples)):
        key, gate = words.draw(dice), f" of the {colour} gate"
        sentences.append(words.fact.format(key=key, gate=gate))
        asked = words.question.format(gate=gate)
        questions.append(TaskQuestion(colour, asked, (key,), (fact,), max_new_tokens=32))
    text, facts = plant_in_haystack(request, sentences)
    yield TaskSample(
        words.name, request.length, 0, text, facts, tuple(questions), words.before,
        after="\n\n{question}",
    )  # fmt: skip


HEAD, TAIL = "JSON data:\n{", "}"
PAIR_BEFORE = "Extract the value corresponding to the specified key in the JSON object below.\n\n"
PAIR_QUESTION = 'Key: "{key}"\nThe value associated with the specified key is:'


def make_key_values(request: TaskRequest) -> Iterator[TaskSample]:
    """Makes the one document of the test `kv`, a JSON object with all keys of the questions."""
    count, length = request.samples, request.length
    pairs = _draw_pairs(request, StableRandom("kv", length, request.seed, 0))
    if len(pairs) < 2 * count:
        raise UsageError(
            f"{count} questions need at least {2 * count} pairs of key and value, but {length} "
            f"tokens hold only {len(pairs)}",
            "ask for fewer samples or a greater length",
        )
    lines = [f'"{key}": "{value}"' for key, value in pairs]
    text = HEAD + ", ".join(lines) + TAIL
    facts, questions = [], []
    # Questions ask for at most every second pair, so even depths give different pairs.
    for fact, depth in enumerate(choose_even_depths(count)):
        place = int(depth * len(pairs))
        facts.append(make_fact(text, text.index(lines[place]), lines[place]))
        key, value = pairs[place]
        asked = PAIR_QUESTION.format(key=key)
        questions.append(TaskQuestion(f"pair-{fact}", asked, (value,), (fact,), max_new_tokens=100))
    yield TaskSample(
        "kv", length, 0, text, tuple(facts), tuple(questions), PAIR_BEFORE, "\n\n\n{question} "
    )


def _draw_pairs(request: TaskRequest, dice: StableRandom) -> list[tuple[str, str]]:
    """Draws as many random pairs of key and value as fit into the requested number of tokens."""
    left = request.length - request.count_tokens(HEAD + TAIL)
    out: list[tuple[str, str]] = []
    # Tokens are counted after another pair, since tokenizers may merge across pairs.
    lead = '"a": "b", '
    while True:
        key, value = dice.draw_uuid(), dice.draw_uuid()
        taken = request.count_tokens(f'{lead}"{key}": "{value}", ') - request.count_tokens(lead)
        # The last pair is added if more than half of it fits, so that the length is nearest.
        if left < taken / 2:
            return out
        left -= taken
        out.append((key, value))


MAGIC_BEFORE = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the numbers afterwards.\n"
)
NEEDLE = "One of the special magic numbers for {key} is: {value}."
ASK_ONE = "What is the special magic number for {query} mentioned in the provided text?"
ASK_MANY = "What are all the special magic numbers for {query} mentioned in the provided text?"
PRIME_ONE = " The special magic number for {query} mentioned in the provided text is"
PRIME_MANY = " The special magic numbers for {query} mentioned in the provided text are"
WIDTH = 4
POOL = [f"{first}-{second}" for first in WORDS["adjectives"] for second in WORDS["nouns"]]
KINDS = ("single", "multikey", "multivalue", "multiquery")
Numbers = dict[str, tuple[str, ...]]
"""The magic numbers of each word."""


def make_magic_numbers(request: TaskRequest) -> Iterator[TaskSample]:
    """Makes the one document of the test `niah`, with questions of all four kinds in turn."""
    groups = -(-request.samples // len(KINDS))
    size = WIDTH + 2
    limit = len(POOL) // size * len(KINDS)
    check_sample_count(request, limit, "ask for fewer samples; esa has no words for more questions")
    dice = StableRandom("niah", request.length, request.seed, 0)
    words = dice.draw_items(POOL, groups * size)
    numbers: Numbers = {}
    asked: list[tuple[str, Numbers]] = []
    for group in range(groups):
        alone, rich, *four = words[group * size : (group + 1) * size]
        single = _draw_numbers(dice, [alone], 1)
        multivalue = _draw_numbers(dice, [rich], WIDTH)
        multiquery = _draw_numbers(dice, four, 1)
        numbers |= single | multivalue | multiquery
        of_kind = (single, {four[0]: multiquery[four[0]]}, multivalue, multiquery)
        asked += [(f"{kind}-{group}", part) for kind, part in zip(KINDS, of_kind, strict=True)]
    sentences = _write_needle_sentences(numbers)
    planted = dice.draw_items(sentences, len(sentences))
    text, facts = plant_in_haystack(request, planted)
    questions = tuple(_make_number_question(*pair, planted) for pair in asked[: request.samples])
    yield TaskSample(
        "niah", request.length, 0, text, facts, questions, MAGIC_BEFORE, after="\n{question}"
    )


def _draw_numbers(dice: StableRandom, words: Sequence[str], values: int) -> Numbers:
    """Draws random numbers of seven digits for each word."""
    return {
        word: tuple(dice.draw_digits(7, first_digits="123456789") for _ in range(values))
        for word in words
    }


def _write_needle_sentences(numbers: Numbers) -> list[str]:
    return [NEEDLE.format(key=word, value=value) for word in numbers for value in numbers[word]]


def _make_number_question(key: str, numbers: Numbers, planted: Sequence[str]) -> TaskQuestion:
    """Makes the question about some words' numbers. `planted` has the document's facts in order."""
    words = list(numbers)
    query = ", ".join(words[:-1]) + ", and " + words[-1] if len(words) > 1 else words[0]
    answers = tuple(value for word in words for value in numbers[word])
    asked, prime = (ASK_ONE, PRIME_ONE) if len(answers) == 1 else (ASK_MANY, PRIME_MANY)
    facts = tuple(planted.index(sentence) for sentence in _write_needle_sentences(numbers))
    return TaskQuestion(
        key, asked.format(query=query), answers, facts, 128, prime.format(query=query)
    )

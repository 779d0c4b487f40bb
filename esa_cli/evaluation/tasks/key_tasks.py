"""Self-tests that hide keys or numbers in a long text, and ask for the keys or numbers.

The tests `passkey`, `number` and `kv` are the tasks Retrieve.PassKey, Retrieve.Number and
Retrieve.KV of InfiniteBench (Zhang et al., 2024), with several questions about each document. The
test `niah` is the needle task of RULER (Hsieh et al., 2024), with words written for esa."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskDocument,
    TaskQuestion,
    TaskRequest,
    check_sample_count,
    choose_even_depths,
    make_planted_fact,
    plant_sentences_in_haystack,
)

WORDS: dict[str, list[str]] = json.loads(
    Path(__file__).with_name("key_words.json").read_text("utf-8")
)
"""Lists of the gates' colours, and of adjectives and nouns for RULER's words."""


class HiddenKeyTemplates(NamedTuple):
    """The templates of prompts and facts for a self-test whose document hides keys."""

    name: str
    before: str  # the prompt's text before the document
    fact: str  # a template with {key} and {gate}
    question: str
    draw_key: Callable[[StableRandom], str]


def draw_digit_runs(dice: StableRandom) -> str:
    """Draws ten digits as runs of one to five equal digits, which are hard to copy."""
    out = ""
    while len(out) < 10:
        out += dice.draw_digits(1) * (1 + dice.draw_integer_below(5))
    return out[:10]


PASSKEY = HiddenKeyTemplates(
    name="passkey",
    before="There is an important info hidden inside a lot of irrelevant text. Find it and "
    "memorize them. I will quiz you about the important information there.\n\n",
    fact="The pass key{gate} is {key}. Remember it. {key} is the pass key{gate}.",
    question="What is the pass key{gate}?",
    draw_key=lambda dice: dice.draw_digits(5),
)
NUMBER = HiddenKeyTemplates(
    name="number",
    before="There is an important info hidden inside a lot of irrelevant text. Find it. I will "
    "quiz you about the important information there.\n\n",
    fact="The sequence of digits{gate} is {key}. Remember it. "
    "{key} is the sequence of digits{gate}.",
    question="What is the sequence of digits{gate}?",
    draw_key=draw_digit_runs,
)


def make_hidden_key_document(
    templates: HiddenKeyTemplates, request: TaskRequest
) -> Iterator[TaskDocument]:
    """Makes a document of the test `passkey` or `number`, which hides a key for each question."""
    colours, hint = WORDS["colours"], "ask for fewer --samples; each key needs another colour"
    check_sample_count(request, len(colours), hint)
    dice = StableRandom(templates.name, request.length, request.seed, 0)
    sentences, questions = [], []
    for fact, colour in enumerate(dice.draw_items(colours, request.samples)):
        key, gate = templates.draw_key(dice), f" of the {colour} gate"
        sentences.append(templates.fact.format(key=key, gate=gate))
        asked = templates.question.format(gate=gate)
        questions.append(TaskQuestion(colour, asked, (key,), (fact,), max_new_tokens=32))
    text, facts = plant_sentences_in_haystack(request, sentences)
    yield TaskDocument(
        templates.name, request.length, 0, text, facts, tuple(questions), templates.before,
        after="\n\n{question}",
    )  # fmt: skip


HEAD, TAIL = "JSON data:\n{", "}"
PAIR_BEFORE = "Extract the value corresponding to the specified key in the JSON object below.\n\n"
PAIR_QUESTION = 'Key: "{key}"\nThe value associated with the specified key is:'


def make_key_value_document(request: TaskRequest) -> Iterator[TaskDocument]:
    """Makes the document of the test `kv`, which is a JSON object with random keys and values."""
    count, length = request.samples, request.length
    pairs = _draw_key_value_pairs(request, StableRandom("kv", length, request.seed, 0))
    if len(pairs) < 2 * count:
        raise UsageError(
            f"{count} questions of the self-test `kv` need at least {2 * count} pairs of key and "
            f"value, but {length} tokens hold only {len(pairs)}",
            "ask for fewer --samples or a greater --len",
        )
    lines = [f'"{key}": "{value}"' for key, value in pairs]
    text = HEAD + ", ".join(lines) + TAIL
    facts, questions = [], []
    # Questions ask for at most every second pair, so even depths give different pairs.
    for fact, depth in enumerate(choose_even_depths(count)):
        place = int(depth * len(pairs))
        facts.append(make_planted_fact(text, text.index(lines[place]), lines[place]))
        key, value = pairs[place]
        asked = PAIR_QUESTION.format(key=key)
        questions.append(TaskQuestion(f"pair-{fact}", asked, (value,), (fact,), max_new_tokens=100))
    yield TaskDocument(
        "kv", length, 0, text, tuple(facts), tuple(questions), PAIR_BEFORE, "\n\n\n{question} "
    )


def _draw_key_value_pairs(request: TaskRequest, dice: StableRandom) -> list[tuple[str, str]]:
    """Draws random pairs of key and value until they fill the requested number of tokens."""
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


def make_magic_number_document(request: TaskRequest) -> Iterator[TaskDocument]:
    """Makes the document of the test `niah`, with questions of RULER's four kinds alternately."""
    groups = -(-request.samples // len(KINDS))
    size = WIDTH + 2
    limit = len(POOL) // size * len(KINDS)
    check_sample_count(request, limit, "ask for fewer --samples; esa has no more words")
    dice = StableRandom("niah", request.length, request.seed, 0)
    words = dice.draw_items(POOL, groups * size)
    numbers: Numbers = {}
    asked: list[tuple[str, Numbers]] = []
    for group in range(groups):
        alone, rich, *four = words[group * size : (group + 1) * size]
        single = _draw_magic_numbers(dice, [alone], 1)
        multivalue = _draw_magic_numbers(dice, [rich], WIDTH)
        multiquery = _draw_magic_numbers(dice, four, 1)
        numbers |= single | multivalue | multiquery
        of_kind = (single, {four[0]: multiquery[four[0]]}, multivalue, multiquery)
        asked += [(f"{kind}-{group}", part) for kind, part in zip(KINDS, of_kind, strict=True)]
    sentences = _write_number_sentences(numbers)
    planted = dice.draw_items(sentences, len(sentences))
    text, facts = plant_sentences_in_haystack(request, planted)
    questions = tuple(_make_magic_number_question(*q, planted) for q in asked[: request.samples])
    yield TaskDocument(
        "niah", request.length, 0, text, facts, questions, MAGIC_BEFORE, after="\n{question}"
    )


def _draw_magic_numbers(dice: StableRandom, words: Sequence[str], numbers_per_word: int) -> Numbers:
    return {
        word: tuple(dice.draw_digits(7, first_digits="123456789") for _ in range(numbers_per_word))
        for word in words
    }


def _write_number_sentences(numbers: Numbers) -> list[str]:
    return [NEEDLE.format(key=word, value=value) for word in numbers for value in numbers[word]]


def _make_magic_number_question(
    question_key: str, numbers: Numbers, planted_sentences: Sequence[str]
) -> TaskQuestion:
    words = list(numbers)
    query = ", ".join(words[:-1]) + ", and " + words[-1] if len(words) > 1 else words[0]
    answers = tuple(value for word in words for value in numbers[word])
    asked, prime = (ASK_ONE, PRIME_ONE) if len(answers) == 1 else (ASK_MANY, PRIME_MANY)
    facts = tuple(planted_sentences.index(one) for one in _write_number_sentences(numbers))
    return TaskQuestion(
        question_key, asked.format(query=query), answers, facts, 128, prime.format(query=query)
    )

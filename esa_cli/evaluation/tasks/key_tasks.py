"""Keys and numbers hidden in a long text.

`passkey`, `number`: InfiniteBench Retrieve.PassKey and Retrieve.Number (Zhang et al., 2024), with
InfLLM's prompts. The exact form hides one key in the benchmark's own noise, at one of 59 depths. In
the shared form each key belongs to a gate of one colour, and the text is the request's haystack.

`kv`: InfiniteBench Retrieve.KV, with InfLLM's prompts: a JSON object of random UUIDs, as many as
the length holds, without a haystack. The benchmark names the key before the object too, so the
exact form has a document for each question; the shared form leaves the key out there.

`niah`: RULER's needles in a haystack (Hsieh et al., 2024); words and text are ours. Single: one
word with one number. Multikey: four words with one number each, one of them asked for. Multivalue:
one word with four numbers. Multiquery: four words with one number each, all asked for. The exact
form has a document for each kind in turn, with depths drawn from RULER's forty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from esa_cli.errors import UsageError
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    check_samples,
    even_depths,
    fact_at,
    haystack_tokens,
    plant_in_haystack,
)

NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)
KEY_DEPTHS = 59
KEY_LONGEST = 32
KEY_AFTER = "\n\n{question}"
COLOURS = (
    "amber", "azure", "beige", "black", "blue", "bronze", "brown", "copper", "coral", "crimson",
    "emerald", "golden", "green", "grey", "indigo", "ivory", "khaki", "lavender", "lilac", "lime",
    "magenta", "maroon", "olive", "orange", "pink", "purple", "red", "scarlet", "silver", "teal",
    "turquoise", "violet", "white", "yellow",
)  # fmt: skip


class KeyWords(NamedTuple):
    """The benchmark's words about keys of one kind.

    Args:
        before: the words before the document.
        fact, question: with {key}, and with {gate}, which is empty in the exact form.
        draw: makes a key.
    """

    name: str
    before: str
    fact: str
    question: str
    draw: Callable[[StableRandom], str]


def draw_runs(dice: StableRandom) -> str:
    """Draws ten digits in runs of one to five, so that a copy has to be counted right."""
    out = ""
    while len(out) < 10:
        out += dice.digits(1) * (1 + dice.below(5))
    return out[:10]


PASSKEY = KeyWords(
    name="passkey",
    before="There is an important info hidden inside a lot of irrelevant text. Find it and "
    "memorize them. I will quiz you about the important information there.\n\n",
    fact="The pass key{gate} is {key}. Remember it. {key} is the pass key{gate}.",
    question="What is the pass key{gate}?",
    draw=lambda dice: dice.digits(5),
)
NUMBER = KeyWords(
    name="number",
    before="There is an important info hidden inside a lot of irrelevant text. Find it. I will "
    "quiz you about the important information there.\n\n",
    fact="The sequence of digits{gate} is {key}. Remember it. "
    "{key} is the sequence of digits{gate}.",
    question="What is the sequence of digits{gate}?",
    draw=draw_runs,
)


def hidden_keys(words: KeyWords, request: TaskRequest) -> Iterator[TaskSample]:
    """Makes one document with all keys; in the exact form one document a key."""
    name, length = words.name, request.length
    if not request.exact:
        check_samples(request, len(COLOURS), "a document has a key for each of these colours")
        dice = StableRandom(name, length, request.seed, 0)
        sentences, questions = [], []
        for fact, colour in enumerate(dice.some(COLOURS, request.samples)):
            key, gate = words.draw(dice), f" of the {colour} gate"
            sentences.append(words.fact.format(key=key, gate=gate))
            asked = words.question.format(gate=gate)
            questions.append(TaskQuestion(colour, asked, (key,), (fact,), KEY_LONGEST))
        text, facts = plant_in_haystack(request, sentences)
        yield TaskSample(name, length, 0, text, facts, tuple(questions), words.before, KEY_AFTER)
        return
    for index in range(request.samples):
        key = words.draw(StableRandom(name, length, request.seed, index))
        sentence = words.fact.format(key=key, gate="")
        lines = haystack_tokens(request, [sentence], "") * 100 // request.size(NOISE * 100)
        # A single key is in the middle: every method attends to the very beginning.
        share = index / (request.samples - 1) if request.samples > 1 else 0.5
        ahead = round(round(share * (KEY_DEPTHS - 1)) / (KEY_DEPTHS - 1) * lines)
        text = f"{NOISE * ahead}{sentence}\n{NOISE * (lines - ahead)}"
        fact_there = (fact_at(text, len(NOISE) * ahead, sentence),)
        asked = words.question.format(gate="")
        question = (TaskQuestion(name, asked, (key,), (0,), KEY_LONGEST),)
        yield TaskSample(name, length, index, text, fact_there, question, words.before, KEY_AFTER)


HEAD, TAIL = "JSON data:\n{", "}"
PAIR_BEFORE = (
    "Extract the value corresponding to the specified key{key} in the JSON object below.\n\n"
)
PAIR_AFTER = "\n\n\n{question} "
PAIR_QUESTION = 'Key: "{key}"\nThe value associated with the specified key is:'
PAIR_LONGEST = 100


def key_values(request: TaskRequest) -> Iterator[TaskSample]:
    """Makes one object with all keys that are asked for; in the exact form one object a key."""
    even = even_depths(request.samples)
    for index, depths in enumerate([(depth,) for depth in even] if request.exact else [even]):
        pairs = _draw_pairs(request, StableRandom("kv", request.length, request.seed, index))
        if len(pairs) < 2 * len(depths):
            raise UsageError(
                f"pairs must be at least {2 * len(depths)} for {len(depths)} questions, got "
                f"{len(pairs)} in {request.length} tokens",
                "ask for fewer samples or a greater length",
            )
        lines = [f'"{key}": "{value}"' for key, value in pairs]
        text = HEAD + ", ".join(lines) + TAIL
        places = pair_places(depths, len(pairs))
        facts = tuple(fact_at(text, text.index(lines[place]), lines[place]) for place in places)
        questions = []
        for fact, place in enumerate(places):
            key, value = pairs[place]
            asked = PAIR_QUESTION.format(key=key)
            questions.append(TaskQuestion(f"pair-{fact}", asked, (value,), (fact,), PAIR_LONGEST))
        before = PAIR_BEFORE.format(key=f' "{pairs[places[0]][0]}"' if request.exact else "")
        yield TaskSample(
            "kv", request.length, index, text, facts, tuple(questions), before, PAIR_AFTER
        )


def _draw_pairs(request: TaskRequest, dice: StableRandom) -> list[tuple[str, str]]:
    """Draws as many pairs as the length allows."""
    left = request.length - request.size(HEAD + TAIL)
    out: list[tuple[str, str]] = []
    # Counted after another pair, since tokenizers may merge the two.
    lead = '"a": "b", '
    while True:
        key, value = dice.uuid(), dice.uuid()
        taken = request.size(f'{lead}"{key}": "{value}", ') - request.size(lead)
        # The last pair is in if more than half of it fits, so the length is nearest.
        if left < taken / 2:
            return out
        left -= taken
        out.append((key, value))


def pair_places(depths: Sequence[float], count: int) -> list[int]:
    """Returns indices of different pairs at these depths, or next to them."""
    taken: list[int] = []
    for depth in depths:
        wanted = min(int(depth * count), count - 1)
        free = (at for at in range(count) if at not in taken)
        taken.append(min(free, key=lambda at: abs(at - wanted)))
    return taken


MAGIC_BEFORE = (
    "{some} special magic {numbers} hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {v} afterwards.\n"
)
MANY = MAGIC_BEFORE.format(some="Some", numbers="numbers are", v="numbers")
ONE = MAGIC_BEFORE.format(some="A", numbers="number is", v="number")
MAGIC_AFTER = "\n{question}"
NEEDLE = "One of the special magic numbers for {key} is: {value}."
ASK_ONE = "What is the special magic number for {query} mentioned in the provided text?"
ASK_MANY = "What are all the special magic numbers for {query} mentioned in the provided text?"
PRIME_ONE = " The special magic number for {query} mentioned in the provided text is"
PRIME_MANY = " The special magic numbers for {query} mentioned in the provided text are"
MAGIC_LONGEST = 128
WIDTH = 4
MAGIC_DEPTHS = tuple(round(100 * i / 39) / 100 for i in range(40))
ADJECTIVES = (
    "ashen", "brisk", "candid", "drowsy", "eager", "fluent", "gentle", "hollow", "icy", "jovial",
    "keen", "limber", "mellow", "nimble", "ornate", "placid", "quaint", "rustic", "sturdy", "tidy",
)  # fmt: skip
NOUNS = (
    "abacus", "bagpipe", "cactus", "dolphin", "envelope", "fountain", "glacier", "hammock",
    "iguana", "javelin", "kayak", "lobster", "mandolin", "nutshell", "otter", "parasol", "quiver",
    "rooster", "saxophone", "tulip",
)  # fmt: skip
POOL = tuple(f"{adjective}-{noun}" for adjective in ADJECTIVES for noun in NOUNS)
KINDS = ("single", "multikey", "multivalue", "multiquery")
Numbers = dict[str, tuple[str, ...]]
"""Word -> its numbers."""


def magic_numbers(request: TaskRequest) -> Iterator[TaskSample]:
    """Makes one document with questions of all kinds; in the exact form one a question."""
    if not request.exact:
        yield _shared_numbers(request)
        return
    for index in range(request.samples):
        kind = KINDS[index % len(KINDS)]
        dice = StableRandom("niah", request.length, request.seed, index)
        words = dice.some(POOL, WIDTH if kind in ("multikey", "multiquery") else 1)
        numbers = _draw_numbers(dice, words, WIDTH if kind == "multivalue" else 1)
        planted = dice.some(_sentences(numbers), len(_sentences(numbers)))
        text, facts = plant_in_haystack(request, planted, dice.some(MAGIC_DEPTHS, len(planted)))
        asked = {words[0]: numbers[words[0]]} if kind == "multikey" else numbers
        question = _number_question(f"{kind}-{index // len(KINDS)}", asked, planted)
        before = ONE if len(question.answers) == 1 else MANY
        yield TaskSample(
            "niah", request.length, index, text, facts, (question,), before, MAGIC_AFTER
        )


def _shared_numbers(request: TaskRequest) -> TaskSample:
    groups = -(-request.samples // len(KINDS))
    size = WIDTH + 2
    limit = len(POOL) // size * len(KINDS)
    check_samples(request, limit, "a document has no room for more questions")
    dice = StableRandom("niah", request.length, request.seed, 0)
    words = dice.some(POOL, groups * size)
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
    planted = dice.some(_sentences(numbers), len(_sentences(numbers)))
    text, facts = plant_in_haystack(request, planted)
    questions = tuple(_number_question(*pair, planted) for pair in asked[: request.samples])
    return TaskSample("niah", request.length, 0, text, facts, questions, MANY, MAGIC_AFTER)


def _draw_numbers(dice: StableRandom, words: Sequence[str], values: int) -> Numbers:
    """Draws numbers of seven digits for each word."""
    return {word: tuple(dice.digits(7, first="123456789") for _ in range(values)) for word in words}


def _sentences(numbers: Numbers) -> list[str]:
    return [NEEDLE.format(key=word, value=value) for word in numbers for value in numbers[word]]


def _number_question(key: str, numbers: Numbers, planted: Sequence[str]) -> TaskQuestion:
    """Asks for the numbers of all these words; `planted` are the document's facts in order."""
    words = list(numbers)
    query = ", ".join(words[:-1]) + ", and " + words[-1] if len(words) > 1 else words[0]
    answers = tuple(value for word in words for value in numbers[word])
    asked, prime = (ASK_ONE, PRIME_ONE) if len(answers) == 1 else (ASK_MANY, PRIME_MANY)
    facts = tuple(planted.index(sentence) for sentence in _sentences(numbers))
    return TaskQuestion(
        key, asked.format(query=query), answers, facts, MAGIC_LONGEST, prime.format(query=query)
    )

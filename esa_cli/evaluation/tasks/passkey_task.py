"""Keys and numbers hidden in a long text: InfiniteBench Retrieve.PassKey and Retrieve.Number.

Source: InfiniteBench (Zhang et al., 2024), with InfLLM's prompts and length of answers; the score
is whether the first run of digits in the output is the key. The exact form hides one key in the
benchmark's own noise, the same line over and over; the key is at one of 59 depths, from the very
beginning to the very end. The shared form reads one document for many keys. Several keys would make
the benchmark's question ambiguous, so each belongs to a gate of one colour, and the text around
them is the request's haystack. Depths that are asked for are used in both. The ten digits of
Retrieve.Number come in runs, so that a copy has to be counted right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from esa_cli.errors import UsageError
from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    depths_of,
    document,
    fact_at,
    room,
)

NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)
DEPTHS = 59
LONGEST = 32
DIGITS = 10
LONGEST_RUN = 5
AFTER = "\n\n{question}"
COLOURS = (
    "amber", "azure", "beige", "black", "blue", "bronze", "brown", "copper", "coral", "crimson",
    "emerald", "golden", "green", "grey", "indigo", "ivory", "khaki", "lavender", "lilac", "lime",
    "magenta", "maroon", "olive", "orange", "pink", "purple", "red", "scarlet", "silver", "teal",
    "turquoise", "violet", "white", "yellow",
)  # fmt: skip


@dataclass
class HiddenKeys:
    """A task with keys of one kind in a long text.

    Args:
        before: the benchmark's words before the document.
        fact, question: the benchmark's words, with {key}; {gate} is empty in the exact form.
        draw: makes a key.
    """

    name: str
    before: str
    fact: str
    question: str
    draw: Callable[[StableRandom], str]

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        if not request.exact:
            yield self._shared(request)
            return
        for index in range(request.samples):
            yield self._alone(request, index)

    def score(self, question: TaskQuestion, output: str) -> float:
        return metrics.first_integer_match(output, question.answers[0])

    def _alone(self, request: TaskRequest, index: int) -> TaskSample:
        key = self.draw(StableRandom(self.name, request.length, request.seed, index))
        fact = self.fact.format(key=key, gate="")
        lines = room(request, [fact], "") * 100 // request.size(NOISE * 100)
        if request.depths:
            depth = depths_of(request, request.samples)[index]
        else:
            # A single key is in the middle: every method attends to the very beginning.
            share = index / (request.samples - 1) if request.samples > 1 else 0.5
            depth = round(share * (DEPTHS - 1)) / (DEPTHS - 1)
        ahead = round(depth * lines)
        text = f"{NOISE * ahead}{fact}\n{NOISE * (lines - ahead)}"
        facts = (fact_at(text, len(NOISE) * ahead, fact),)
        question = TaskQuestion(self.name, self.question.format(gate=""), (key,), (0,), LONGEST)
        return TaskSample(
            self.name, request.length, index, text, facts, (question,), self.before, AFTER
        )

    def _shared(self, request: TaskRequest) -> TaskSample:
        if request.samples > len(COLOURS):
            raise UsageError(
                f"samples must be at most {len(COLOURS)}, got {request.samples}",
                "a document has a key for each of these colours",
            )
        dice = StableRandom(self.name, request.length, request.seed, 0)
        colours = dice.some(COLOURS, request.samples)
        keys = [self.draw(dice) for _ in colours]
        gates = [f" of the {colour} gate" for colour in colours]
        sentences = [
            self.fact.format(key=key, gate=gate) for key, gate in zip(keys, gates, strict=True)
        ]
        text, facts = document(request, sentences, depths_of(request, len(keys)))
        questions = tuple(
            TaskQuestion(colours[i], self.question.format(gate=gates[i]), (key,), (i,), LONGEST)
            for i, key in enumerate(keys)
        )
        return TaskSample(self.name, request.length, 0, text, facts, questions, self.before, AFTER)


def runs(dice: StableRandom) -> str:
    """Ten digits in runs of one to five."""
    out = ""
    while len(out) < DIGITS:
        out += dice.digits(1) * (1 + dice.below(LONGEST_RUN))
    return out[:DIGITS]


PASSKEY = HiddenKeys(
    name="passkey",
    before="There is an important info hidden inside a lot of irrelevant text. Find it and "
    "memorize them. I will quiz you about the important information there.\n\n",
    fact="The pass key{gate} is {key}. Remember it. {key} is the pass key{gate}.",
    question="What is the pass key{gate}?",
    draw=lambda dice: dice.digits(5),
)

NUMBER = HiddenKeys(
    name="number",
    before="There is an important info hidden inside a lot of irrelevant text. Find it. I will "
    "quiz you about the important information there.\n\n",
    fact="The sequence of digits{gate} is {key}. Remember it. "
    "{key} is the sequence of digits{gate}.",
    question="What is the sequence of digits{gate}?",
    draw=runs,
)

"""Several needles asked for at once: NeedleBench, multi-needle retrieval (M-RT), first version.

Source: NeedleBench (Li et al., 2024), as in OpenCompass. Prompt and score are the benchmark's: the
questions are joined, so are the forms of their answers, and the score is the share of needles whose
second argument is in the output, letter case counting. The needles are our own, in the same shape:
two arguments, a sentence, a question with the form of its answer. The text around them is the
request's haystack.

The exact form plants three needles a document, each on a line of its own at its share of the text
(here in characters and behind a word; there in tokens of GPT-4's tokenizer), for one question. In
the shared form one document has up to eight questions, each about three to five needles of its own,
so that a long text is read once; the needles of the other questions, of the same forms, distract.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.task_sample import (
    StableRandom,
    TaskQuestion,
    TaskRequest,
    TaskSample,
    dealt,
    depths_of,
    document,
    together,
    word_ends,
)

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
LONGEST = 128


@dataclass(frozen=True)
class NeedleKind:
    """Needles of one form; `needle` and `format` state the same about {arg1} and {arg2}."""

    needle: str
    question: str
    format: str
    first: Sequence[str]
    second: Sequence[str]


KINDS: tuple[NeedleKind, ...] = tuple(
    NeedleKind(**row)
    for row in json.loads(Path(__file__).with_name("needle_kinds.json").read_text("utf-8"))
)
TOGETHER = 8
"""Most questions that share a document; there are no needles for more."""


def draw(dice: StableRandom, n: int) -> list[tuple[NeedleKind, str, str]]:
    """n needles as (kind, first argument, second argument), without repeated arguments."""
    rows = [
        (kind, one, other)
        for kind in KINDS
        for one, other in zip(kind.first, dice.some(kind.second, len(kind.second)), strict=True)
    ]
    return dice.some(rows, n)


def ask(
    key: str, rows: Sequence[tuple[NeedleKind, str, str]], facts: Sequence[int]
) -> TaskQuestion:
    """The question about the document's needles with these indices."""
    mine = [rows[i] for i in facts]
    questions = JOINT.join(kind.question.format(arg1=one) for kind, one, _ in mine)
    formats = JOINT.join(kind.format.format(arg1=one, arg2="______") for kind, one, _ in mine)
    return TaskQuestion(
        key=key,
        text=questions + GUIDE.format(formats=formats),
        answers=tuple(two for _, _, two in mine),
        facts=tuple(facts),
        longest=LONGEST,
    )


class ManyNeedles:
    name = "needles"

    def samples(self, request: TaskRequest) -> Iterator[TaskSample]:
        one = KINDS[0].needle.format(arg1=KINDS[0].first[0], arg2=KINDS[0].second[0])
        each = together(request, TOGETHER, [one] * 5)
        for index, first in enumerate(range(0, request.samples, each)):
            last = min(first + each, request.samples)
            counts = [3 if request.exact else 3 + i % 3 for i in range(first, last)]
            yield self._sample(request, index, counts)

    def _sample(self, request: TaskRequest, index: int, counts: Sequence[int]) -> TaskSample:
        """A document with a question for each of the counts of needles."""
        dice = StableRandom(self.name, request.length, request.seed, index)
        rows = draw(dice, sum(counts))
        sentences = [kind.needle.format(arg1=one, arg2=two) for kind, one, two in rows]
        depths = depths_of(request, len(rows))
        if request.exact:
            text, facts = document(request, sentences, depths, (word_ends,), ("\n", "\n"))
        else:
            text, facts = document(request, sentences, depths)
        owners = dealt(dice, counts)
        questions = []
        for which, count in enumerate(counts):
            mine = [i for i, owner in enumerate(owners) if owner == which]
            key = f"{count}-needles" + (f"-{which + 1}" if len(counts) > 1 else "")
            questions.append(ask(key, rows, mine))
        return TaskSample(
            self.name, request.length, index, text, facts, tuple(questions), BEFORE, AFTER
        )

    def score(self, question: TaskQuestion, output: str) -> float:
        return metrics.keyword_share(output, question.answers)

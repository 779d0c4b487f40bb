"""Several needles asked for at once: NeedleBench, multi-needle retrieval (M-RT), first version.

Source: NeedleBench (Li et al., 2024), as in OpenCompass. Prompt and score are the benchmark's: the
questions are joined, so are the forms of their answers, and the score is the share of needles whose
second argument stands in the output, case counting. The needles are our own, in the same shape: two
arguments, a sentence, a question with the form of its answer. The text around them is the
request's haystack.

The exact form plants three needles a document, each on a line of its own at its share of the text
(here in characters and behind a word; there in tokens of GPT-4's tokenizer). The shared form plants
three to five behind sentences. A document serves one question in both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .dice import Dice
from .plant import depths_of, document, word_ends
from .sample import Question, Request, Sample

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
class Kind:
    """Needles of one form: `needle` and `format` say the same thing of {arg1} and {arg2}."""

    needle: str
    question: str
    format: str
    first: tuple[str, ...]
    second: tuple[str, ...]


KINDS = (
    Kind(
        needle="Brewed only in the town of {arg1} is the celebrated {arg2}.",
        question="What celebrated drink is brewed only in the town of {arg1}?",
        format="The celebrated drink brewed only in the town of {arg1} is {arg2}",
        first=("Ardenholt", "Brackwell", "Corvinna", "Dellmoor", "Essing", "Farrowgate"),
        second=(
            "Moonberry Ale", "Thunder Cider", "Velvet Mead",
            "Glacier Punch", "Ember Tonic", "Saffron Stout",
        ),
    ),
    Kind(
        needle="The champion of the {arg1} regatta is {arg2}.",
        question="Who is the champion of the {arg1} regatta?",
        format="The champion of the {arg1} regatta is {arg2}",
        first=("Silver Lagoon", "Stork Lake", "Amber Strait", "Gannet Sound", "Long Fjord"),
        second=(
            "Odalys Ferrante", "Ruben Thackeray", "Ingeborg Palsson",
            "Mateo Quintero", "Saoirse Delacroix",
        ),
    ),
    Kind(
        needle="Locked inside the {arg1} vault is the priceless {arg2}.",
        question="What priceless object is locked inside the {arg1} vault?",
        format="The priceless object locked inside the {arg1} vault is the {arg2}",
        first=("Basilisk", "Meridian", "Northstar", "Pelican", "Tourmaline"),
        second=(
            "Clockwork Nightingale", "Glass Trumpet", "Ivory Compass",
            "Weeping Mask", "Obsidian Ladle",
        ),
    ),
)  # fmt: skip


def draw(dice: Dice, n: int) -> list[tuple[Kind, str, str]]:
    """n needles as (kind, first argument, second argument); no argument comes twice."""
    rows = [
        (kind, one, other)
        for kind in KINDS
        for one, other in zip(kind.first, dice.some(kind.second, len(kind.second)), strict=True)
    ]
    return dice.some(rows, n)


class ManyNeedles:
    name = "needles"
    about = "Three to five sentences hidden in a long text, all asked for in one question."
    source = "NeedleBench multi-needle retrieval (Li et al., 2024), with needles of our own"
    differs = (
        "Three to five needles behind sentences of the text; the exact form has three, each on a "
        "line of its own. The needles and the text around them are ours in both."
    )

    def samples(self, request: Request) -> Iterator[Sample]:
        for index in range(request.samples):
            dice = Dice(self.name, request.length, request.seed, index)
            rows = draw(dice, 3 if request.exact else 3 + index % 3)
            sentences = [kind.needle.format(arg1=one, arg2=two) for kind, one, two in rows]
            depths = depths_of(request, len(rows))
            if request.exact:
                text, facts = document(request, sentences, depths, (word_ends,), ("\n", "\n"))
            else:
                text, facts = document(request, sentences, depths)
            questions = JOINT.join(kind.question.format(arg1=one) for kind, one, _ in rows)
            formats = JOINT.join(
                kind.format.format(arg1=one, arg2="______") for kind, one, _ in rows
            )
            question = Question(
                key=f"{len(rows)}-needles",
                text=questions + GUIDE.format(formats=formats),
                answers=tuple(two for _, _, two in rows),
                facts=tuple(range(len(rows))),
                longest=LONGEST,
            )
            yield Sample(self.name, request.length, index, text, facts, (question,), BEFORE, AFTER)

    def score(self, question: Question, output: str) -> float:
        return sum(answer in output for answer in question.answers) / len(question.answers)

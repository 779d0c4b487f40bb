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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from esa_cli.evaluation import metrics
from esa_cli.evaluation.tasks.planting import dealt, depths_of, document, together, word_ends
from esa_cli.evaluation.tasks.stable_random import StableRandom
from esa_cli.evaluation.tasks.task_sample import TaskQuestion, TaskRequest, TaskSample

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
    first: tuple[str, ...]
    second: tuple[str, ...]


KINDS = (
    NeedleKind(
        needle="Brewed only in the town of {arg1} is the celebrated {arg2}.",
        question="What celebrated drink is brewed only in the town of {arg1}?",
        format="The celebrated drink brewed only in the town of {arg1} is {arg2}",
        first=(
            "Ardenholt", "Brackwell", "Corvinna", "Dellmoor", "Essing", "Farrowgate",
            "Gorsebridge", "Hallowick", "Inverlyn", "Kestrelby", "Larkspire", "Morrowdale",
        ),
        second=(
            "Moonberry Ale", "Thunder Cider", "Velvet Mead",
            "Glacier Punch", "Ember Tonic", "Saffron Stout",
            "Juniper Bitter", "Lantern Wine", "Copper Brandy",
            "Thistle Cordial", "Marigold Rum", "Walnut Porter",
        ),
    ),
    NeedleKind(
        needle="The champion of the {arg1} regatta is {arg2}.",
        question="Who is the champion of the {arg1} regatta?",
        format="The champion of the {arg1} regatta is {arg2}",
        first=(
            "Silver Lagoon", "Stork Lake", "Amber Strait", "Gannet Sound", "Long Fjord",
            "Heron Bay", "Mirror Loch", "Otter River", "Pilot Channel", "Reed Basin",
            "Swan Delta", "White Cape",
        ),
        second=(
            "Odalys Ferrante", "Ruben Thackeray", "Ingeborg Palsson",
            "Mateo Quintero", "Saoirse Delacroix", "Bertil Oyelaran",
            "Calliope Strand", "Dmitri Fairweather", "Esperanza Holm",
            "Fergus Nakamura", "Greta Vasconcelos", "Hamish Zielinski",
        ),
    ),
    NeedleKind(
        needle="Locked inside the {arg1} vault is the priceless {arg2}.",
        question="What priceless object is locked inside the {arg1} vault?",
        format="The priceless object locked inside the {arg1} vault is the {arg2}",
        first=(
            "Basilisk", "Meridian", "Northstar", "Pelican", "Tourmaline", "Cardinal",
            "Equinox", "Gargoyle", "Halcyon", "Obelisk", "Rampart", "Zephyr",
        ),
        second=(
            "Clockwork Nightingale", "Glass Trumpet", "Ivory Compass",
            "Weeping Mask", "Obsidian Ladle", "Feathered Crown",
            "Silver Hourglass", "Jade Chessboard", "Bronze Astrolabe",
            "Painted Fan", "Amber Violin", "Coral Sceptre",
        ),
    ),
)  # fmt: skip
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
    about = "Three to five sentences hidden in a long text, all asked for in one question."
    source = "NeedleBench multi-needle retrieval (Li et al., 2024), with needles of our own"
    differs = (
        "Up to eight questions share a document, each about three to five needles of its own, "
        "behind sentences of the text; the exact form has three needles and one question a "
        "document, each needle on a line of its own. Needles and text are ours in both."
    )

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

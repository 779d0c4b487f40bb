"""Ten digits hidden in a long text: InfiniteBench Retrieve.Number.

Source: InfiniteBench (Zhang et al., 2024), with InfLLM's prompts. The same as `passkey.py`, where
document, score and the shared form are described, but for the words, and for the digits: they come
in runs, so that a copy has to be counted right.
"""

from __future__ import annotations

from esa_cli.evaluation.tasks.passkey_task import Hidden
from esa_cli.evaluation.tasks.stable_random import Dice

DIGITS = 10
LONGEST_RUN = 5


def runs(dice: Dice) -> str:
    """Ten digits in runs of one to five."""
    out = ""
    while len(out) < DIGITS:
        out += dice.digits(1) * (1 + dice.below(LONGEST_RUN))
    return out[:DIGITS]


NUMBER = Hidden(
    name="number",
    about="Ten-digit numbers hidden in a long text, one question about each.",
    source="InfiniteBench Retrieve.Number (Zhang et al., 2024)",
    differs="Many numbers stand in one document, each named after a gate, in the test's own text; "
    "the exact form has one number in repeated lines of noise.",
    before="There is an important info hidden inside a lot of irrelevant text. Find it. I will "
    "quiz you about the important information there.\n\n",
    fact="The sequence of digits{gate} is {key}. Remember it. "
    "{key} is the sequence of digits{gate}.",
    question="What is the sequence of digits{gate}?",
    draw=runs,
)

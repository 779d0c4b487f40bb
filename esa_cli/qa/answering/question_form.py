"""Recognises questions that ask for more than a quotation, and answers that repeat earlier ones."""

from __future__ import annotations

import re
from collections.abc import Sequence

from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import Turn
from esa_cli.system.text import has_lone_surrogate

FREE = re.compile(
    r"\s*(?:"
    r"(?:please\s+|(?:can|could) you\s+(?:please\s+)?)(?:contrast|outline|write|list)|"
    r"(?:please\s+|(?:can|could) you\s+(?:please\s+)?)?(?:"
    r"summari[sz]e|explain|describe|compare|discuss|enumerate|tell me (?:more )?about|"
    r"give (?:me )?an? (?:summary|overview|account|description)|"
    r"what are (?:all|the main|the differences?)|what is the difference|"
    # nouns as well: `List price of`, `Contrast ratio of`; with an object they are requests
    r"(?:contrast|outline|write|list)\s+(?:(?:down|out|up|about|me|us)\s+)?(?:"
    r"(?:the|an?|all|both|each|every|some|any|what|which|who|how|why|where|it|them|everything|"
    r"everyone|this|that|these|those|his|her|its|their|my|your|our|two|three|four|five|\d+)\b|"
    r"(?-i:[A-Z])\w*(?:['’]s?\b|\s+(?:and|with|to|from|against)\b))))"
    r"(?![-\w'’])",
    re.IGNORECASE,
)
"""Matches requests: a verb in the imperative, with its object if the word can also be a noun."""
LONGEST = 500
"""The maximum number of characters of a question that completes the next question."""


def validate_question(question: str) -> None:
    """Raises UsageError if a question is empty, or not UTF-8."""
    if not question.strip():
        hint = 'ask for example: esa ask book.txt "Who is Ahab?"'
        raise UsageError("the question must not be empty", hint)
    if has_lone_surrogate(question):
        raise UsageError("the question must be UTF-8", "ask in a terminal whose encoding is UTF-8")


def wants_free_text(question: str) -> bool:
    """Whether a question asks for more than a quotation, such as a summary or a list."""
    return bool(FREE.match(question))


def find_last_answered_turn(history: Sequence[Turn]) -> Turn | None:
    """Returns the last turn that has a question and an answer; None if its question is long."""
    whole = (turn for turn in reversed(history) if turn.question.strip() and turn.answer.strip())
    last = next(whole, None)
    return None if last is None or len(last.question) > LONGEST else last


def repeats_answer(quotation: str, answer: str) -> bool:
    """Whether a quotation contains an answer, or is at least half of the answer."""
    new, old = (" ".join(text.casefold().split()).strip(" .") for text in (quotation, answer))
    return old in new or (new in old and 2 * len(new) >= len(old))

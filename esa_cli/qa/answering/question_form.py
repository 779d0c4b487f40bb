"""Checks questions, and compares them and their answers with earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

from esa_cli.errors import UsageError
from esa_cli.qa.answering.reply import Turn
from esa_cli.system.text import has_lone_surrogate

LONGEST = 500
"""The maximum number of characters of a question that completes the next question."""


def validate_question(question: str) -> None:
    """Raises UsageError if a question is empty, or not UTF-8."""
    if not question.strip():
        hint = 'ask for example: esa ask book.txt "Who is Ahab?"'
        raise UsageError("the question must not be empty", hint)
    if has_lone_surrogate(question):
        raise UsageError("the question must be UTF-8", "ask in a terminal whose encoding is UTF-8")


def find_last_answered_turn(history: Sequence[Turn]) -> Turn | None:
    """Returns the last turn that has a question and an answer; None if its question is long."""
    whole = (turn for turn in reversed(history) if turn.question.strip() and turn.answer.strip())
    last = next(whole, None)
    return None if last is None or len(last.question) > LONGEST else last


def repeats_answer(quotation: str, answer: str) -> bool:
    """Whether a quotation contains an answer, or is at least half of the answer."""
    new, old = (" ".join(text.casefold().split()).strip(" .") for text in (quotation, answer))
    return old in new or (new in old and 2 * len(new) >= len(old))

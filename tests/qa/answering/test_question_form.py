"""Questions that ask for more than a quotation, and answers that repeat the one before."""

from __future__ import annotations

import pytest

from esa_cli.qa.answering.question_form import (
    LONGEST,
    find_last_answered_turn,
    repeats_answer,
    wants_free_text,
)
from esa_cli.qa.answering.reply import Turn

BEFORE = [Turn("Who is Pip?", "A boy."), Turn("Who is Ahab?", "The captain.")]


FREE = [
    "Summarise the book.", " Please explain the end", "Can you describe Ahab?", "Give me a summary",
    "What are the main ships?", "tell me more about him",
    # verbs that are nouns as well, with an object
    "List Ahab's ships", "Contrast Ahab with Starbuck", "Please list ships",
    "write down what he said", "List 3 ships", "Outline the plot",
]  # fmt: skip
QUOTED = [
    "Who is Ahab?", "What is the name of the ship?", "Writer of it?", "", "Did he list them?",
    # nouns at the beginning
    "List price of the Model T?", "Write-offs in 2019", "List Price, 2019", "List: ships",
    "What is the main street called?", "Explained by whom?", "Outline",
]  # fmt: skip


def test_requests_for_free_text_and_questions_for_a_quotation() -> None:
    assert [one for one in FREE if not wants_free_text(one)] == []
    assert [one for one in QUOTED if wants_free_text(one)] == []


def test_only_whole_turns_complete_a_question() -> None:
    noise = [Turn("You are a helpful assistant. Answer them.", ""), Turn("", "How can I help?")]
    for history in (BEFORE, [*noise, *BEFORE], [*BEFORE, *noise]):
        assert find_last_answered_turn(history) == BEFORE[-1]
    for history in ([], noise, [Turn("Who? " * LONGEST, "He.")]):
        assert find_last_answered_turn(history) is None


@pytest.mark.parametrize(
    ("quotation", "answer", "repeats"),
    [
        ("the captain", "The captain.", True),
        ("of\nThe  Captain", "the captain", True),
        ("captain Ahab", "The captain Ahab.", True),
        ("Nantucket", "Ahab is the captain of the Pequod from Nantucket.", False),
        ("the mate", "The captain.", False),
    ],
)
def test_an_answer_is_repeated(quotation: str, answer: str, repeats: bool) -> None:
    assert repeats_answer(quotation, answer) is repeats

"""Questions, and answers that repeat the one before."""

from __future__ import annotations

import pytest

from esa_cli.qa.answering.reply import LONGEST, Turn, find_last_answered_turn, repeats_answer

BEFORE = [Turn("Who is Pip?", "A boy."), Turn("Who is Ahab?", "The captain.")]


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

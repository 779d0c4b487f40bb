"""Questions that ask for more than a quotation, and those that refer to the one before."""

from __future__ import annotations

import pytest

from esa_cli.qa.answering.question_form import LONGEST, completed, referred_to, wants_free_text
from esa_cli.qa.answering.reply import Turn

BEFORE = [Turn("Who is Pip?", "A boy."), Turn("Who is Ahab?", "The captain.")]


@pytest.mark.parametrize(
    "question",
    [
        "Summarise the book.", "summarize it", " Please explain the end", "Can you describe Ahab?",
        "List the ships", "Give me a summary", "What are the main ships?", "Tell me about Ahab",
        "tell me more about him", "What is the difference between them?",
    ],
)  # fmt: skip
def test_free_text(question: str) -> None:
    assert wants_free_text(question)


@pytest.mark.parametrize(
    "question",
    [
        "Who is Ahab?", "What is the name of the ship?", "Who explains it?", "Writer of it?",
        "What are they?", "", "?!", "Did he list them?",
    ],
)  # fmt: skip
def test_a_quotation(question: str) -> None:
    assert not wants_free_text(question)


@pytest.mark.parametrize(
    "question",
    [
        "Where did he live?", "And then?", "Why?", "What about Pip?", "Who were THEY?",
        "Who told the captain that?", "Is that the captain?", "Was that Ahab?", "Who said that?",
        "Who found it?", "How long did it take?", "When was it built?", "Who else was there?",
        "Was it the man that sold his ship?", "What time is it there?", "Did the crew know that?",
        "Who saw the man that sold it?", "Who beat the crew that night?",
        "Why did Ahab say that twice?",
    ],
)  # fmt: skip
def test_a_reference_takes_the_last_turn(question: str) -> None:
    assert referred_to(question, BEFORE) == "Who is Ahab? The captain."
    assert referred_to(question, []) == ""


@pytest.mark.parametrize(
    "question",
    [
        "Who is Starbuck?", "Where is the ship?", "", "?",
        "Who is the man that sold the ship?", "Which of the men is the one that died?",
        "What is a thing that Ahab fears?", "Does Starbuck say that the ship leaks?",
        "Is it true that Ahab lost a leg?", "Does Pip know that Ahab is mad?",
        "What time is it in the first chapter?", "Who was it that saw the whale?",
        "How long does it take the ship to reach Japan?", "Is there a doctor on the ship?",
    ],
)  # fmt: skip
def test_a_question_of_its_own(question: str) -> None:
    assert referred_to(question, BEFORE) == ""


@pytest.mark.parametrize(
    "question",
    [
        "When?", "By whom?", "How many feet?", "Where exactly?", "What colour?", "Who else?",
        "Why?", "And the miners of Deepfold?", "What about Pip?", "but who?", " At what time? ",
    ],
)  # fmt: skip
def test_an_elliptic_question_is_completed_by_the_one_before(question: str) -> None:
    assert completed(question, BEFORE) == f"Who is Ahab? {question}"
    assert completed(question, []) == question
    assert completed(question, [Turn("Who? " * LONGEST, "He.")]) == question


@pytest.mark.parametrize(
    "question",
    [
        "Who is Starbuck?", "And when did he die?", "Where did he live?", "What is whaling?",
        "Why did Ahab leave?", "Summarise the book.", "Where Ahab?", "", "?",
    ],
)  # fmt: skip
def test_a_whole_question_is_left_alone(question: str) -> None:
    assert completed(question, BEFORE) == question

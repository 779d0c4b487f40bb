"""Questions that ask for more than a quotation, and those that refer to the one before."""

from __future__ import annotations

import pytest

from esa_cli.qa.answering.question_form import LONGEST, completed, referred_to, wants_free_text
from esa_cli.qa.answering.reply import NOT_TOLD, Turn

BEFORE = [Turn("Who is Pip?", "A boy."), Turn("Who is Ahab?", "The captain.")]


@pytest.mark.parametrize(
    "question",
    [
        "Summarise the book.", "summarize it", " Please explain the end", "Can you describe Ahab?",
        "List the ships", "Give me a summary", "What are the main ships?", "Tell me about Ahab",
        "tell me more about him", "What is the difference between them?",
        # verbs that are nouns as well, with an object
        "List all ships", "List Ahab's ships", "Contrast Ahab with Starbuck", "Write a letter",
        "Please list ships", "Could you please outline chapter 3?", "Outline the plot",
        "write down what he said", "List 3 ships", "Contrast the two captains",
    ],
)  # fmt: skip
def test_free_text(question: str) -> None:
    assert wants_free_text(question)


@pytest.mark.parametrize(
    "question",
    [
        "Who is Ahab?", "What is the name of the ship?", "Who explains it?", "Writer of it?",
        "What are they?", "", "?!", "Did he list them?",
        # nouns at the beginning
        "List price of the Model T?", "Outline colour of the logo?",
        "Contrast ratio of the display?", "Write-offs in 2019", "List Price, 2019", "List: ships",
        "What is the main street called?", "Listing of ships?", "Contrast of the panel?",
        "Explained by whom?", "Outline", "Write speed of the disk",
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


@pytest.mark.parametrize("question", ["When?", "Where did he live?", "And the mate?", "Who is it?"])
def test_only_whole_turns_are_searched(question: str) -> None:
    noise = [Turn("You are a helpful assistant. Answer them.", ""), Turn("", "How can I help?")]
    assert completed(question, noise) == question
    assert referred_to(question, noise) == ""
    for history in ([*noise, *BEFORE], [*BEFORE, *noise]):
        assert completed(question, history) == completed(question, BEFORE)
        assert referred_to(question, history) == referred_to(question, BEFORE)


@pytest.mark.parametrize("answer", [NOT_TOLD, "The documents do not say.", "The text doesn't say."])
def test_what_was_not_found_is_not_searched(answer: str) -> None:
    assert referred_to("Where did he live?", [Turn("Who is Bob?", answer)]) == "Who is Bob?"

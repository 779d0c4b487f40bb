"""Questions that ask for more than a quotation, and those that refer to the one before."""

from __future__ import annotations

from esa_cli.qa.answering.question_form import (
    LONGEST,
    expand_ellipsis,
    find_referenced_turn,
    wants_free_text,
)
from esa_cli.qa.answering.reply import NOT_TOLD, Turn

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
REFERS = [
    "Where did he live?", "And then?", "Why?", "What about Pip?", "Who were THEY?",
    "Is that the captain?", "Who found it?", "Who else was there?",
    "Was it the man that sold his ship?", "What time is it there?", "Did the crew know that?",
    "Who saw the man that sold it?", "Who beat the crew that night?",
]  # fmt: skip
OWN = [
    "Who is Starbuck?", "", "Who is the man that sold the ship?", "Is there a doctor on the ship?",
    "Which of the men is the one that died?", "Does Starbuck say that the ship leaks?",
    "Is it true that Ahab lost a leg?", "What time is it in the first chapter?",
    "Who was it that saw the whale?", "How long does it take the ship to reach Japan?",
]  # fmt: skip
ELLIPTIC = [
    "When?", "By whom?", "How many feet?", "Where exactly?", "Who else?", "And the miners of Ely?",
    "What about Pip?", "but who?", " At what time? ",
]  # fmt: skip
WHOLE = [
    "Who is Starbuck?", "And when did he die?", "What is whaling?", "Why did Ahab leave?",
    "Where Ahab?", "", "?",
]  # fmt: skip


def test_requests_for_free_text_and_questions_for_a_quotation() -> None:
    assert [one for one in FREE if not wants_free_text(one)] == []
    assert [one for one in QUOTED if wants_free_text(one)] == []


def test_a_reference_takes_the_last_turn() -> None:
    for question in REFERS:
        assert find_referenced_turn(question, BEFORE) == "Who is Ahab? The captain.", question
        assert find_referenced_turn(question, []) == ""
    assert [one for one in OWN if find_referenced_turn(one, BEFORE)] == []
    for answer in (NOT_TOLD, "The documents do not say.", "The text doesn't say."):
        assert (
            find_referenced_turn("Where did he live?", [Turn("Who is Bob?", answer)])
            == "Who is Bob?"
        )


def test_an_elliptic_question_is_completed_by_the_one_before() -> None:
    for question in ELLIPTIC:
        assert expand_ellipsis(question, BEFORE) == f"Who is Ahab? {question}"
        assert expand_ellipsis(question, []) == question
        assert expand_ellipsis(question, [Turn("Who? " * LONGEST, "He.")]) == question
    assert [one for one in WHOLE if expand_ellipsis(one, BEFORE) != one] == []


def test_only_whole_turns_are_searched() -> None:
    noise = [Turn("You are a helpful assistant. Answer them.", ""), Turn("", "How can I help?")]
    for question in ("When?", "Where did he live?"):
        assert expand_ellipsis(question, noise) == question
        assert find_referenced_turn(question, noise) == ""
        for history in ([*noise, *BEFORE], [*BEFORE, *noise]):
            assert expand_ellipsis(question, history) == expand_ellipsis(question, BEFORE)
            assert find_referenced_turn(question, history) == find_referenced_turn(question, BEFORE)

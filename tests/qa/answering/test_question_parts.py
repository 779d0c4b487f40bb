"""Questions that ask several things."""

from __future__ import annotations

import pytest

from esa_cli.qa.answering.question_parts import split_question


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        ("Who gets a permit, and what is it?", ["Who gets a permit?", "what is it?"]),
        ("When and where is the fair?", ["When is the fair?", "where is the fair?"]),
        ("Which lab lost it, and for how long?", ["Which lab lost it?", "for how long?"]),
        ("Did Ann resign and why?", ["Did Ann resign?", "why?"]),
        ("Who came? Why did he come?", ["Who came?", "Why did he come?"]),
        ("Wer ist Kassier und seit wann?", ["Wer ist Kassier?", "seit wann?"]),
        ("Qui est le maire, et où vit-il ?", ["Qui est le maire?", "où vit-il ?"]),
        ("¿Quién es el alcalde y dónde vive?", ["¿Quién es el alcalde?", "dónde vive?"]),
    ],
)
def test_a_question_is_divided(question: str, parts: list[str]) -> None:
    divided = [part.replace(" ?", "?") for part in split_question(question)]
    assert divided == [part.replace(" ?", "?") for part in parts]


@pytest.mark.parametrize(
    "question",
    [
        "Who is the man who came and who left?",  # relative clauses
        "Do you know where and when the meeting is?",
        "Qui est la femme que Jean a vue et qui est partie ?",
        "¿Es cierto que vino y que se fue?",
        "My son was ill. When may he come back?",  # a sentence that asks nothing
        "Was he ill? Tell me more.",
        "Does the ?? operator have an assignment?",
        "Who wrote War and Peace?",
        "What did Ann and Bob buy?",
        "Who came and who left and who stayed and who slept?",  # too many
    ],
)
def test_a_question_stays_whole(question: str) -> None:
    assert split_question(question) == [question]

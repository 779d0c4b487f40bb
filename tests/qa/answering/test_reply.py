"""Questions, and answers that repeat the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from selectolax.lexbor import LexborHTMLParser

from esa_cli.documents.document import Document
from esa_cli.qa.answering.passage_choice import choose_passages, find_cited_numbers
from esa_cli.qa.answering.question_parts import split_question
from esa_cli.qa.answering.reply import (
    LONGEST,
    Quotation,
    Reply,
    Turn,
    find_last_answered_turn,
    repeats_answer,
)
from esa_cli.qa.finding.passage import Passage

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


NASTY = "<script>alert(1)</script> & \"<img src=x onerror='x'>"
TEXT = "The gate opens at nine.\nThe market closes at dusk."
PASSAGES = (
    Passage("gate.pdf", "gate.pdf", 3, 1207, "The Gate", 100, 100 + len(TEXT), TEXT),
    Passage("boat.txt", "boat.txt", None, 1, None, 100, 112, "A grey boat."),
)


def page(reply: Reply) -> LexborHTMLParser:
    return LexborHTMLParser(reply._repr_html_())


def test_the_quoted_words_are_marked_in_their_passage() -> None:
    start = 100 + TEXT.index("nine")
    reply = Reply("nine", PASSAGES, quotations=(Quotation("gate.pdf", start, start + 4),))
    shown = page(reply)
    assert shown.css_first("b").text() == "nine"
    assert [mark.text() for mark in shown.css("mark")] == ["nine"]
    assert [one.text() for one in shown.css("li > div")] == [TEXT, "A grey boat."]
    places = [one.text() for one in shown.css("small")]
    assert places == [one.describe_place() for one in PASSAGES]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (90, 104), (140, 900), (900, 950), (99, 99)])
def test_a_quotation_that_leaves_the_passage_marks_what_is_in_it(start: int, end: int) -> None:
    shown = page(Reply("x", PASSAGES[:1], quotations=(Quotation("gate.pdf", start, end),)))
    inside = "".join(TEXT[at - 100] for at in range(100, 100 + len(TEXT)) if start <= at < end)
    assert "".join(mark.text() for mark in shown.css("mark")) == inside
    assert shown.css_first("li > div").text() == TEXT


def test_an_uncertain_answer_says_so() -> None:
    assert page(Reply("nine", certainty="perhaps")).css_first("b").text() == "perhaps: nine"
    nothing = Reply("Nothing found that answers.", PASSAGES, found=False, certainty="nothing")
    assert "The nearest passages:" in page(nothing).body.text()  # type: ignore[union-attr]
    assert "may not contain" in Reply("nine", found=False)._repr_html_()
    assert "passages" not in Reply("nine", found=False)._repr_html_()


def test_everything_is_escaped() -> None:
    passage = Passage(NASTY, NASTY, 1, 1, NASTY, 0, len(NASTY), NASTY)
    reply = Reply(NASTY + "\ud800", (passage,), quotations=(Quotation(NASTY, 5, 20),))
    shown = page(reply)
    assert not shown.css("script, img, [onerror]")
    assert shown.css_first("li > div").text() == NASTY
    assert shown.css_first("b").text().startswith(NASTY)


CHOSEN_TEXT = (
    "The gate opens at nine. Nobody came to the mill. A bell rang in the town. "
    "Contents\n\n3.1 Types ......................................... 24\n\nThe mill burned down. "
    "Its owner wept for a week."
)
DOCUMENT = Document("a.txt", CHOSEN_TEXT, "a.txt", "utf-8", len(CHOSEN_TEXT))


def cut(first: str, last: str, weight: float = 0.3) -> Passage:
    start, end = CHOSEN_TEXT.index(first), CHOSEN_TEXT.index(last) + len(last)
    return Passage.cut_from(DOCUMENT, start, end, weight=weight)


def choose(*passages: Passage, count: int = 9, text: str = "nine", **reply: object) -> list[int]:
    made = Reply(text, passages, answered_from="text", **reply)  # type: ignore[arg-type]
    chosen = choose_passages(made, count)
    if not find_cited_numbers(made):
        assert [number for number, _ in chosen] == list(range(1, len(chosen) + 1))
    return [1 + passages.index(passage) for _, passage in chosen]


WHOLE = cut("The gate", "the town.")
CONTENTS = cut("3.1", "24")
MILL = cut("The mill", "a week.")


@pytest.mark.parametrize(
    ("passages", "wanted"),
    [
        ([WHOLE, WHOLE, MILL], [1, 3]),
        ([WHOLE, replace(WHOLE, document="copy.txt"), MILL], [1, 3]),
        ([WHOLE, cut("A bell", "Contents"), MILL], [1, 3]),  # only a heading is new
        ([cut("The gate", "nine."), WHOLE], [1, 2]),  # two thirds are new
        ([cut("Nobody", "the town."), WHOLE], [1]),
        ([CONTENTS, WHOLE], [2]),
        ([CONTENTS], [1]),
        ([WHOLE, replace(MILL, weight=0.004)], [1]),
        ([], []),
    ],
)  # fmt: skip
def test_no_passage_twice_and_none_with_nothing_to_say(
    passages: Sequence[Passage], wanted: list[int]
) -> None:
    assert choose(*passages, certainty="answer") == wanted
    assert choose(*passages, certainty="answer", count=1) == wanted[:1]


def test_a_passage_whose_best_words_are_shown_is_left_out() -> None:
    gate, rest = cut("The gate", "to the mill."), cut("Nobody", "a week.")
    at = CHOSEN_TEXT.index("to the mill")
    mill = CHOSEN_TEXT.index("burned")
    assert choose(gate, replace(rest, quote=(at, at + 11)), certainty="answer") == [1]
    assert choose(gate, replace(rest, quote=(mill, mill + 6)), certainty="answer") == [1, 2]
    other = replace(rest, document="b.txt", quote=(at, at + 11))
    assert choose(gate, other, certainty="answer") == [1, 2]


def test_a_quoted_passage_is_always_shown() -> None:
    at = CHOSEN_TEXT.index("24")
    quotation = Quotation("a.txt", at, at + 2)
    assert choose(CONTENTS, MILL, certainty="perhaps", quotations=(quotation,)) == [1, 2]


def test_cited_passages_keep_their_numbers() -> None:
    cited = "It opens at nine [2; 3], it says [9]."
    reply = Reply(cited, (WHOLE, CONTENTS, MILL), answered_from="text")
    assert choose_passages(reply, 9) == [(2, CONTENTS), (3, MILL)]
    assert choose(WHOLE, CONTENTS, MILL, text=cited, certainty="answer") == [1, 3]
    assert choose(WHOLE, CONTENTS, MILL, text="It opens at nine.") == [1, 3]

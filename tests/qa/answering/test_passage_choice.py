"""The passages that people see: none twice, none with nothing to say, cited ones with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from esa_cli.documents.document import Document
from esa_cli.qa.answering.passage_choice import choose_passages
from esa_cli.qa.answering.reply import Quotation, Reply
from esa_cli.qa.finding.passage import Passage

TEXT = (
    "The gate opens at nine. Nobody came to the mill. A bell rang in the town. "
    "Contents\n\n3.1 Types ......................................... 24\n\nThe mill burned down. "
    "Its owner wept for a week."
)
DOCUMENT = Document("a.txt", TEXT, "a.txt", "utf-8", len(TEXT))


def cut(first: str, last: str, weight: float = 0.3) -> Passage:
    start, end = TEXT.index(first), TEXT.index(last) + len(last)
    return Passage.cut_from(DOCUMENT, start, end, weight=weight)


def choose(*passages: Passage, count: int = 9, text: str = "nine", **reply: object) -> list[int]:
    made = Reply(text, passages, answered_from="text", **reply)  # type: ignore[arg-type]
    return [number for number, _ in choose_passages(made, count)]


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
    at = TEXT.index("to the mill")
    mill = TEXT.index("burned")
    assert choose(gate, replace(rest, quote=(at, at + 11)), certainty="answer") == [1]
    assert choose(gate, replace(rest, quote=(mill, mill + 6)), certainty="answer") == [1, 2]
    other = replace(rest, document="b.txt", quote=(at, at + 11))
    assert choose(gate, other, certainty="answer") == [1, 2]


def test_a_quoted_passage_is_always_shown() -> None:
    at = TEXT.index("24")
    quotation = Quotation("a.txt", at, at + 2)
    assert choose(CONTENTS, MILL, certainty="perhaps", quotation=quotation) == [1, 2]


def test_cited_passages_keep_their_numbers() -> None:
    cited = "It opens at nine [2; 3], it says [9]."
    assert choose(WHOLE, CONTENTS, MILL, text=cited) == [2, 3]
    assert choose(WHOLE, CONTENTS, MILL, text=cited, certainty="answer") == [1, 3]
    assert choose(WHOLE, CONTENTS, MILL, text="It opens at nine.") == [1, 3]

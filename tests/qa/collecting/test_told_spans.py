"""Where another model's words stand in a passage, and what counts as no answer. No model."""

from __future__ import annotations

import pytest

from esa_cli.qa.answering.reply import NOT_TOLD, Evidence
from esa_cli.qa.collecting.told_spans import WrittenDecision, quoted_place
from esa_cli.qa.second_model.answer_reader import WrittenAnswer

TEXT = "The gate\nopens at nine. Ninety boats (all grey) lie there."


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("the gate opens at nine", "The gate\nopens at nine"),
        ("“All grey.”", "all grey"),
        ("nine", "nine"),
        ("boats all", "boats (all"),
        ("It is at nine, says the passage.", "at nine"),
        ("It is grey.", "grey"),
        ("ten", TEXT),
        ("It is at the.", TEXT),
        ("...", TEXT),
    ],
)
def test_the_place_of_words(answer: str, words: str) -> None:
    start, end = quoted_place(answer, TEXT)
    assert TEXT[start:end] == words


def test_another_model_decides_by_its_words() -> None:
    said = iter([f"{NOT_TOLD}", "At  nine.", " ", "Twelve, I think."])
    decision = WrittenDecision(lambda passage: WrittenAnswer(next(said), 1, False))
    passage = Evidence("a.txt", None, 1, None, 0, len(TEXT), TEXT, 0.0)
    spans = decision.spans([passage] * 4, [0.0] * 4)
    assert [one is None for one in spans] == [True, False, True, False]
    first, second = spans[1], spans[3]
    assert first is not None
    assert second is not None
    assert (TEXT[first.start : first.end], first.answer) == ("at nine", "At nine.")
    assert (second.start, second.end, second.answer) == (0, len(TEXT), "Twelve, I think.")
    assert first.weight > second.weight, "the shorter place is the surer"
